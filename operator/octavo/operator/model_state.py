"""Whether a service's model is where its engines find it."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import desired_loader, failures, names, pods
from octavo.operator.conditions import MODEL_CACHED, Condition
from octavo.operator.kinds import JOB, Manifest
from octavo.operator.observed import Observed, metadata
from octavo.operator.spec import InferenceService

_JOB_LABEL = "batch.kubernetes.io/job-name"


def condition(service: InferenceService, observed: Observed, now: float) -> Condition:
    """Returns the condition ModelCached."""
    model = service.spec.model
    if not model.source.is_loaded:
        where = "the engine's image" if model.source.scheme == "file" else model.uri
        return _condition("True", "NotNeeded", f"engines read the model from {where}")
    name = desired_loader.job_name(service)
    job = observed.child(JOB, name)
    if job is not None and is_complete(job):
        return _condition("True", "Loaded", f"{model.uri} is in the volume")
    if job is not None and (ended := _condition_of(job, "Failed")):
        message = f"loading {model.uri} failed: {ended.get('message', '')}"
        return _condition("False", "LoadFailed", message, is_failure=True)
    loaders = pods.of_component(observed.pods, names.LOADER)
    failure = failures.of_pods(_of_job(loaders, name), now)
    if failure is not None:
        return Condition(
            type=MODEL_CACHED,
            status="False",
            reason=failure.reason,
            message=failure.message,
            detail=failure.detail,
            is_failure=True,
        )
    return _condition("False", "Loading", f"{model.uri} is being loaded")


def is_complete(job: Manifest) -> bool:
    """Whether a Job has done its work."""
    return bool(_condition_of(job, "Complete"))


def is_finished(job: Manifest) -> bool:
    """Whether a Job has ended, well or not."""
    return is_complete(job) or bool(_condition_of(job, "Failed"))


def _condition_of(job: Manifest, type: str) -> Manifest:
    found = pods.condition(job, type)
    return found if found.get("status") == "True" else {}


def _of_job(loaders: Iterable[Manifest], name: str) -> list[Manifest]:
    return [
        pod
        for pod in loaders
        if pods.is_live(pod) and (metadata(pod).get("labels") or {}).get(_JOB_LABEL) == name
    ]


def _condition(status: str, reason: str, message: str, *, is_failure: bool = False) -> Condition:
    return Condition(
        type=MODEL_CACHED,
        status="True" if status == "True" else "False",
        reason=reason,
        message=message,
        is_failure=is_failure,
    )
