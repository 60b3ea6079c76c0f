"""What it means that the volume of a service's model can be on one node only. Does no I/O.

Kubernetes places pods without a look at where a ReadWriteOnce volume is: one on another node waits
for it until the last pod on the first node is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import names, pods
from octavo.operator.failures import STUCK_CREATING, Failure
from octavo.operator.kinds import Manifest
from octavo.operator.spec import InferenceService

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def affinity(service: InferenceService) -> Manifest:
    """Returns the affinity of a loader: the engine's, and to where pods have the volume.

    The term means the loader, too: where the service has no pod yet, the scheduler lets a pod that
    it means go anywhere. Beside terms of the user's it is a wish, as only a pod that all terms mean
    would do, and one that keeps engines apart would keep the loader from where they are.
    """
    wanted = service.spec.engine.affinity
    if not _is_on_one_node(service):
        return wanted
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {names.SERVICE_LABEL: service.name}},
    }
    near = wanted.get("podAffinity") or {}
    apart = wanted.get("podAntiAffinity") or {}
    if near.get(_REQUIRED) or apart.get(_REQUIRED):
        wish = {"weight": 100, "podAffinityTerm": term}
        near = near | {_PREFERRED: [*(near.get(_PREFERRED) or []), wish]}
    else:
        near = near | {_REQUIRED: [term]}
    return wanted | {"podAffinity": near}


def conflict(
    service: InferenceService, observed: Iterable[Manifest], failure: Failure
) -> Failure | None:
    """Returns what is wrong when a pod waits for a volume that is on another node.

    Args:
        service: what is wanted.
        observed: its pods.
        failure: why one of them does not run.
    """
    if not _is_on_one_node(service) or failure.message != STUCK_CREATING:
        return None
    volume, claim = service.spec.cache.volume, names.models(service.name)
    nodes = {
        str(pod["spec"]["nodeName"])
        for pod in observed
        if pod["spec"].get("nodeName") and not pods.is_over(pod) and pods.uses_claim(pod, claim)
    }
    if volume is None or len(nodes) < 2:
        return None
    return Failure(
        reason="VolumeOnOtherNode",
        message=f"the volume is {volume.access_mode} and pods that need it were placed on "
        f"{', '.join(sorted(nodes))}: keep them on one node with engine.nodeSelector, or create "
        "another InferenceService with cache.volume.accessMode ReadWriteMany",
    )


def _is_on_one_node(service: InferenceService) -> bool:
    volume = service.spec.cache.volume
    is_loaded = service.spec.model.source.is_loaded
    return is_loaded and volume is not None and volume.access_mode != "ReadWriteMany"
