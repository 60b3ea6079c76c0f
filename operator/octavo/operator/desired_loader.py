"""The volume of a service's model, and the Job that loads the model into it.

The Job's name stands for the model and its revision, so that another model is another Job and the
same one is never loaded twice at once. Its pod tries again by itself for ever, with Kubernetes'
own pauses: a token that becomes valid needs no operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from octavo.operator import names, shared_volume
from octavo.operator.kinds import JOB, VOLUME_CLAIM, Manifest, object_of
from octavo.operator.pod_parts import (
    CONTAINER_SECURITY,
    MODELS,
    environment,
    isolation,
    literal,
    placement,
    temporary_mount,
    temporary_volume,
)
from octavo.operator.spec import InferenceService, Volume

CONTAINER: Final = "loader"
_TRIES: Final = 1_000_000
_REQUESTS: Final[Manifest] = {"cpu": "100m", "memory": "256Mi"}


def job_name(service: InferenceService) -> str:
    """Returns the name of the Job for the model that is wanted."""
    return names.load_job(service.name, service.spec.model.key)


def arguments(service: InferenceService, kept: Sequence[str] = ()) -> list[str]:
    """Returns the loader's arguments; `kept` are folders that it must not remove."""
    model = service.spec.model
    revision = ["--revision", model.revision] if model.revision else []
    keep = ["--keep", ",".join(kept)] if kept else []
    return ["--model", model.uri, *revision, "--target", f"{MODELS}/{model.key}", *keep]


def kept_by(job: Manifest) -> tuple[str, ...]:
    """Returns the folders that the loader of a Job must not remove; none: it removes none."""
    for container in job["spec"]["template"]["spec"]["containers"]:
        given = container.get("args") or []
        if container.get("name") == CONTAINER and given[-2:-1] == ["--keep"]:
            return tuple(given[-1].split(","))
    return ()


def volume_claim(service: InferenceService, volume: Volume) -> Manifest:
    """Returns the claim, without metadata that all children have."""
    spec: Manifest = {
        "accessModes": [volume.access_mode],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name:
        spec["storageClassName"] = volume.storage_class_name
    return object_of(
        VOLUME_CLAIM,
        {
            "name": names.models(service.name),
            "labels": names.labels(service.name, names.LOADER),
        },
        spec=spec,
    )


def job(
    service: InferenceService,
    image: str,
    references: str,
    kept: Sequence[str] = (),
    *,
    claim: str = "",
) -> Manifest:
    """Returns the Job, without metadata that all children have.

    Args:
        service: what is wanted.
        image: of the loader.
        references: hash of the data that the pod takes values from; empty when there is none.
        kept: folders of the volume that the loader must not remove; none lets it remove none.
        claim: UID of the volume claim; empty while there is none.
    """
    labels = names.labels(service.name, names.LOADER)
    metadata: Manifest = {"labels": labels}
    if references:
        metadata["annotations"] = {names.REFERENCES: references}
    noted = {"annotations": {names.CLAIM: claim}} if claim else {}
    return object_of(
        JOB,
        {"name": job_name(service), "labels": labels, **noted},
        spec={
            "backoffLimit": _TRIES,
            "template": {"metadata": metadata, "spec": _pod(service, image, kept)},
        },
    )


def _resources(volume: Volume | None) -> Manifest:
    given = volume.loader_resources if volume else {}
    limits = given.get("limits", {})
    # What is limited only is requested as far as it is limited.
    usual = {name: amount for name, amount in _REQUESTS.items() if name not in limits}
    found = {"requests": usual | given.get("requests", {}), "limits": limits}
    return {part: amounts for part, amounts in found.items() if amounts}


def _pod(service: InferenceService, image: str, kept: Sequence[str]) -> Manifest:
    engine = service.spec.engine
    claim = {"claimName": names.models(service.name)}
    container = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": ["python", "-m", "octavo.loader"],
        "args": literal(arguments(service, kept)),
        "resources": _resources(service.spec.cache.volume),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [temporary_mount(), {"name": "models", "mountPath": MODELS}],
        **environment(engine, service.spec.model),
    }
    # It is placed like an engine: the volume that it binds has to be where engines can run.
    near = {"affinity": affinity} if (affinity := shared_volume.affinity(service)) else {}
    return isolation(engine) | placement(engine) | near | {
        "containers": [container],
        "volumes": [temporary_volume(), {"name": "models", "persistentVolumeClaim": claim}],
        "restartPolicy": "OnFailure",
    }  # fmt: skip
