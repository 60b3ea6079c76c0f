"""Whether a service's model is where its engines find it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from octavo.operator import desired_loader, failures, names, pods, quantity, shared_volume
from octavo.operator.conditions import MODEL_CACHED, Condition, condition, of_failure
from octavo.operator.kinds import JOB, VOLUME_CLAIM, Manifest
from octavo.operator.observed import Observed, Refusal, annotation, metadata
from octavo.operator.spec import InferenceService, references_of
from octavo.operator.timestamps import age_s, from_text

NO_POD_AFTER_S: Final = 30.0
"""How long a Job may be without a pod before somebody should look at it."""

VOLUME_GOING: Final = "VolumeGoing"
"""Reason of ModelCached while the volume's claim is being deleted."""

_JOB_LABEL: Final = "batch.kubernetes.io/job-name"


def judge(service: InferenceService, observed: Observed, now: float) -> Condition:
    """Returns the condition ModelCached, which tells of the volume, too."""
    model = service.spec.model
    if not model.source.is_loaded:
        where = "the engine's image" if model.source.scheme == "file" else model.uri
        message = f"engines read the model from {where}"
        return condition(MODEL_CACHED, "True", "NotNeeded", message)
    return _with_volume(_of_loading(service, observed, now), service, observed)


def not_grown(service: InferenceService, observed: Observed) -> Refusal | None:
    """Returns why the volume does not grow, such as for its class; None when it does.

    It serves as it is: so this is told of the model, and keeps nothing else.
    """
    name = names.models(service.name)
    if observed.child(VOLUME_CLAIM, name) is None:
        return None
    refused = [r for r in observed.refusals if (r.kind, r.name) == (VOLUME_CLAIM.name, name)]
    return refused[0] if refused else None


def _with_volume(found: Condition, service: InferenceService, observed: Observed) -> Condition:
    """Returns the condition with what is wrong with the volume's size."""
    volume = service.spec.cache.volume
    claim = observed.child(VOLUME_CLAIM, names.models(service.name))
    if volume is None or claim is None:
        return found
    has = claim["spec"]["resources"]["requests"]["storage"]
    if (refusal := not_grown(service, observed)) is not None:
        message = f"{found.message}; its volume stays at {has}: {refusal.message}"
        reason = "VolumeNotGrown" if found.status == "True" else found.reason
        return replace(found, reason=reason, message=message, is_failure=True)
    if (quantity.parse(has) or quantity.ZERO) > (quantity.parse(volume.size) or quantity.ZERO):
        message = f"{found.message}; its volume has {has}, as none can shrink to {volume.size}"
        return replace(found, message=message)
    return found


def _of_loading(service: InferenceService, observed: Observed, now: float) -> Condition:
    model, name = service.spec.model, desired_loader.job_name(service)
    job, claim = observed.child(JOB, name), observed.child(VOLUME_CLAIM, names.models(service.name))
    if claim is not None and pods.is_going(claim):
        message = f"{metadata(claim)['name']} is being deleted: once no pod has it, it is made anew"
        return condition(MODEL_CACHED, "False", VOLUME_GOING, message, is_failure=True)
    if job is not None and (claim is None or is_of_lost_volume(job, claim)):
        job = None
    if job is not None and is_complete(job):
        return condition(MODEL_CACHED, "True", "Loaded", f"{model.uri} is in the volume")
    if job is not None and pods.has(job, "Failed"):
        message = f"loading {model.uri} failed: {pods.condition(job, 'Failed').get('message', '')}"
        return condition(MODEL_CACHED, "False", "LoadFailed", message, is_failure=True)
    if job is None and (others := others_at_work(service, observed)):
        message = f"waits until the loader of another model has ended: {', '.join(others)}"
        return condition(MODEL_CACHED, "False", "WaitingForLoader", message)
    mine = [p for p in pods.of_component(observed.pods, names.LOADER) if _job_of(p) == name]
    if job is not None and not mine and _has_no_pod(job, now):
        message = f"Kubernetes makes no pod of the Job {name}: kubectl describe job says why"
        return condition(MODEL_CACHED, "False", "NoLoaderPod", message, is_failure=True)
    failure = failures.of_pods(mine, now)
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


def is_of_lost_volume(job: Manifest, claim: Manifest) -> bool:
    """Whether a Job has loaded into a volume that goes, or into another than there is now.

    By the claim that it notes. Where it notes none, as the two were made at once, or by an earlier
    operator, by the times: a claim is written before its Job.
    """
    if pods.is_going(claim):
        return True
    if noted := annotation(job, names.CLAIM):
        return noted != str(metadata(claim).get("uid", ""))
    made = from_text(metadata(claim).get("creationTimestamp")) or 0.0
    return age_s(metadata(job).get("creationTimestamp"), made) > 0.0


def _has_no_pod(job: Manifest, now: float) -> bool:
    """Whether a Job says of itself that it should have a pod by now, and has none."""
    is_waited_for = age_s(metadata(job).get("creationTimestamp"), now) >= NO_POD_AFTER_S
    return is_waited_for and not (job.get("status") or {}).get("active")


def _job_of(pod: Manifest) -> str:
    return str((metadata(pod).get("labels") or {}).get(_JOB_LABEL, ""))
