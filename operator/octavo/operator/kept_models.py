"""Which models in a service's volume its loader must not remove, to make room for another one.

Those that an engine serves from, or would when it was started again: what runs goes on without its
files, but nothing begins without them.
"""

from __future__ import annotations

from octavo.operator import desired_engine, names, pods
from octavo.operator.kinds import DEPLOYMENT, Manifest
from octavo.operator.observed import Observed, metadata, of_kind
from octavo.operator.spec import InferenceService


def kept(service: InferenceService, observed: Observed) -> tuple[str, ...]:
    """Returns the folders of models that are wanted or in use, sorted.

    None when nobody knows all that is used: by a pod that uses the volume, or by engines that an
    older template may still make, as while they are replaced. Then nothing may be removed.
    """
    if not all(map(_is_settled, of_kind(observed.children, DEPLOYMENT))):
        return ()
    claim = names.models(service.name)
    loaders = pods.of_component(observed.pods, names.LOADER)
    using = [
        *(deployment["spec"]["template"] for deployment in of_kind(observed.children, DEPLOYMENT)),
        *(pod for pod in observed.pods if pod not in loaders and not pods.is_over(pod)),
    ]
    used = {desired_engine.folder_of(pod) for pod in using if pods.uses_claim(pod, claim)}
    return () if "" in used else tuple(sorted({service.spec.model.key, *used}))


def _is_settled(deployment: Manifest) -> bool:
    """Tells whether all that a Deployment makes is of its present template."""
    status = deployment.get("status") or {}
    generation = metadata(deployment).get("generation", 0)
    return (
        not deployment["spec"].get("paused")
        and status.get("observedGeneration", generation) == generation
        and status.get("updatedReplicas", 0) == status.get("replicas", 0)
    )
