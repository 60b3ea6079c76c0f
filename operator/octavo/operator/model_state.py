"""Whether a service's model is where its engines find it."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import desired_loader, failures, names, pods, shared_volume
from octavo.operator.conditions import MODEL_CACHED, Condition, condition, of_failure
from octavo.operator.kinds import JOB, Manifest
from octavo.operator.observed import Observed, metadata
from octavo.operator.spec import InferenceService, references_of

_JOB_LABEL = "batch.kubernetes.io/job-name"


def judge(service: InferenceService, observed: Observed, now: float) -> Condition:
    """Returns the condition ModelCached."""
    model = service.spec.model
    if not model.source.is_loaded:
        where = "the engine's image" if model.source.scheme == "file" else model.uri
        message = f"engines read the model from {where}"
        return condition(MODEL_CACHED, "True", "NotNeeded", message)
    name = desired_loader.job_name(service)
    job = observed.child(JOB, name)
    if job is not None and is_complete(job):
        return condition(MODEL_CACHED, "True", "Loaded", f"{model.uri} is in the volume")
    if job is not None and pods.has(job, "Failed"):
        message = f"loading {model.uri} failed: {pods.condition(job, 'Failed').get('message', '')}"
        return condition(MODEL_CACHED, "False", "LoadFailed", message, is_failure=True)
    if job is None and (others := others_at_work(service, observed)):
        message = f"waits until the loader of another model has ended: {', '.join(others)}"
        return condition(MODEL_CACHED, "False", "WaitingForLoader", message)
    loaders = pods.of_component(observed.pods, names.LOADER)
    failure = failures.of_pods(_of_job(loaders, name), now)
    if failure is not None:
        shared = shared_volume.conflict(service, observed.pods, failure)
        return of_failure(MODEL_CACHED, shared or failure)
    lacking = [r for r in references_of(service.spec) if observed.references.get(r) is None]
    if job is None and lacking:
        message = f"before {model.uri} is loaded: {', '.join(map(str, lacking))}"
        return condition(MODEL_CACHED, "False", "Waiting", message)
    return condition(MODEL_CACHED, "False", "Loading", f"{model.uri} is being loaded")


def others_at_work(service: InferenceService, observed: Observed) -> list[str]:
    """Returns the pods that load another model into the volume of a service.

    Such a loader was told what to keep before this model was wanted: it could remove it.
    """
    name = desired_loader.job_name(service)
    return [
        str(metadata(pod)["name"])
        for pod in pods.of_component(observed.pods, names.LOADER)
        if not pods.is_over(pod) and _job_of(pod) != name
    ]


def is_complete(job: Manifest) -> bool:
    """Whether a Job has done its work."""
    return pods.has(job, "Complete")


def is_finished(job: Manifest) -> bool:
    """Whether a Job has ended, well or not."""
    return is_complete(job) or pods.has(job, "Failed")


def _of_job(loaders: Iterable[Manifest], name: str) -> list[Manifest]:
    return [pod for pod in loaders if _job_of(pod) == name]


def _job_of(pod: Manifest) -> str:
    return str((metadata(pod).get("labels") or {}).get(_JOB_LABEL, ""))
