"""Which models in a service's volume its loader must not remove, to make room for another one.

Those that an engine serves from, or would when it was started again: what runs goes on without its
files, but nothing begins without them.
"""

from __future__ import annotations

from octavo.operator import desired_engine, desired_loader, failures, model_state, names, pods
from octavo.operator.conditions import Condition
from octavo.operator.kinds import DEPLOYMENT, JOB, Manifest
from octavo.operator.observed import Observed, metadata, of_kind
from octavo.operator.spec import InferenceService


def kept(service: InferenceService, observed: Observed, model: Condition) -> tuple[str, ...]:
    """Returns the folders of models that the loader must not remove, sorted; none: it removes none.

    Those that are wanted or in use, where somebody knows them all. A loader at work keeps what it
    was told, as it would be ended to be told anything else: unless it may remove what is used, or
    found the volume full and may remove more by now.

    Args:
        service: what is wanted.
        observed: what there is.
        model: the condition ModelCached.
    """
    used = _used(service, observed)
    is_known = "" not in used and all(map(_is_settled, of_kind(observed.children, DEPLOYMENT)))
    needed = tuple(sorted({service.spec.model.key, *used})) if is_known else ()
    job = observed.child(JOB, desired_loader.job_name(service))
    if job is None or model_state.is_finished(job):
        return needed
    told = desired_loader.kept_by(job)
    # Of older templates it was told all: until it has ended, a Deployment gets none of a model but
    # its own.
    is_safe = not told or used <= set(told)
    is_due = bool(needed) and model.reason == failures.VOLUME_FULL
    return told if is_safe and not is_due else needed


def _used(service: InferenceService, observed: Observed) -> set[str]:
    """Returns the folders that pods have, or would have that a Deployment made now.

    An empty one stands for those of a pod that uses the volume nobody knows how.
    """
    claim = names.models(service.name)
    loaders = pods.of_component(observed.pods, names.LOADER)
    using = [
        *(deployment["spec"]["template"] for deployment in of_kind(observed.children, DEPLOYMENT)),
        *(pod for pod in observed.pods if pod not in loaders and not pods.is_over(pod)),
    ]
    return {desired_engine.folder_of(pod) for pod in using if pods.uses_claim(pod, claim)}


def _is_settled(deployment: Manifest) -> bool:
    """Tells whether all that a Deployment makes is of its present template.

    Else engines may be made of an older one, as while they are replaced.
    """
    status = deployment.get("status") or {}
    generation = metadata(deployment).get("generation", 0)
    return (
        not deployment["spec"].get("paused")
        and status.get("observedGeneration", generation) == generation
        and status.get("updatedReplicas", 0) == status.get("replicas", 0)
    )
