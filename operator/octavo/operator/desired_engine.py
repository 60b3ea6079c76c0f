"""The Deployment of a service's engines.

Its pod template holds all that must restart the engines when it changes, and nothing else: neither
the operator's version, nor labels of the InferenceService, nor numbers of replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from octavo.operator import engine_cache, engine_tls, gpus, names, options
from octavo.operator.fingerprint import fingerprint
from octavo.operator.kinds import DEPLOYMENT, Manifest, object_of
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
from octavo.operator.spec import Engine, InferenceService, Model

CONTAINER: Final = "engine"
MODELS_VOLUME: Final = "models"

GRACE_S: Final = 15
"""Time after the drain before a pod is killed: to say goodbye and to end."""

PROGRESS_DEADLINE_S: Final = 1800
"""Loading a large model is progress, though Kubernetes sees none."""

_SHARED_MEMORY: Final = "1Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How many pods may be above and below the wanted number while they are replaced."""

    max_surge: int | str
    max_unavailable: int | str


def model_path(model: Model) -> str:
    """Returns where the engine finds its model."""
    source = model.source
    if source.is_loaded:
        return "/".join(part for part in (MODELS, model.key, source.file) if part)
    if source.scheme == "file":
        return f"/{source.path}"
    return f"{MODELS}/{source.path}".rstrip("/")


def model_of(template: Manifest) -> str:
    """Returns where the pods of a template find their model; empty for a foreign template."""
    for container in template["spec"].get("containers") or []:
        given = container.get("args") or []
        if container.get("name") == CONTAINER and given[:1] == ["--model"]:
            return str(given[1])
    return ""


def folder_of(template: Manifest) -> str:
    """Returns the folder of a loaded model in its volume; empty where `model_of` knows none."""
    return model_of(template).removeprefix(f"{MODELS}/").partition("/")[0]


def arguments(service: InferenceService, caller: str) -> list[str]:
    """Returns the engine's arguments; see `pod_template`."""
    engine = service.spec.engine
    return [
        "--model", model_path(service.spec.model),
        "--served-name", ",".join(service.served_names),
        "--listen", f"0.0.0.0:{names.GRPC_PORT}",
        *engine_tls.arguments(engine, caller),
        "--metrics-listen", f"0.0.0.0:{names.STATUS_PORT}",
        "--drain-s", str(service.spec.rollout.drain_seconds),
        *engine_cache.arguments(service.spec.cache),
        *options.arguments(engine.options),
        *engine.extra_args,
    ]  # fmt: skip


def pod_template(
    service: InferenceService, image: str, references: str, caller: str = ""
) -> Manifest:
    """Returns the template of the pods, with the hash of what the user decides as annotation.

    Args:
        service: what is wanted.
        image: of the engine.
        references: hash of the data that the pods take values from; empty when there is none.
        caller: name that the gateways' certificate bears; matters to engines with TLS only.
    """
    engine = service.spec.engine
    annotations = dict(engine.pod_annotations)
    if references:
        annotations[names.REFERENCES] = references
    labels = engine.pod_labels | names.labels(service.name, names.ENGINE)
    decided = [labels, annotations, _pod(service, engine.image, caller)]
    annotations[names.TEMPLATE] = fingerprint(decided)
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": _pod(service, image, caller),
    }


def deployment(
    service: InferenceService,
    template: Manifest,
    strategy: Strategy,
    replicas: int | None,
    *,
    is_paused: bool = False,
) -> Manifest:
    """Returns the Deployment, without metadata that all children have.

    Args:
        service: what is wanted.
        template: of the pods.
        strategy: how they are replaced.
        replicas: None leaves the number to others.
        is_paused: whether they are not replaced for now.
    """
    spec: Manifest = {
        "selector": {"matchLabels": names.selector(service.name)},
        "revisionHistoryLimit": 3,
        "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {
                "maxSurge": strategy.max_surge,
                "maxUnavailable": strategy.max_unavailable,
            },
        },
        "template": template,
    }
    if is_paused:
        spec["paused"] = True
    if replicas is not None:
        spec["replicas"] = replicas
    return object_of(
        DEPLOYMENT,
        {
            "name": names.engine(service.name),
            "labels": names.labels(service.name, names.ENGINE),
            "annotations": {names.IMAGE: template["spec"]["containers"][0]["image"]},
        },
        spec=spec,
    )


def _pod(service: InferenceService, image: str, caller: str) -> Manifest:
    engine = service.spec.engine
    volumes, mounts = _volumes(service)
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": engine.image_pull_policy,
        "command": ["python", "-m", "octavo.engine"],
        "args": literal(arguments(service, caller)),
        "ports": [
            {
                "name": engine_tls.port(engine),
                "containerPort": names.GRPC_PORT,
                "protocol": "TCP",
            },
            {"name": "status", "containerPort": names.STATUS_PORT, "protocol": "TCP"},
        ],
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **environment(engine, service.spec.model),
        **_probes(),
    }
    if resources := _resources(engine):
        container["resources"] = resources
    pod = isolation(engine) | placement(engine) | {
        "containers": [container],
        "volumes": volumes,
        "readinessGates": [{"conditionType": names.ROUTABLE_GATE}],
        "terminationGracePeriodSeconds": service.spec.rollout.drain_seconds + GRACE_S,
    }  # fmt: skip
    if engine.runtime_class_name:
        pod["runtimeClassName"] = engine.runtime_class_name
    if engine.topology_spread_constraints:
        mine = {"labelSelector": {"matchLabels": names.selector(service.name)}}
        pod["topologySpreadConstraints"] = [c | mine for c in engine.topology_spread_constraints]
    return pod


def _volumes(service: InferenceService) -> tuple[list[Manifest], list[Manifest]]:
    source = service.spec.model.source
    shared = {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}
    volumes = [temporary_volume(), {"name": "shm", "emptyDir": shared}]
    mounts = [temporary_mount(), {"name": "shm", "mountPath": "/dev/shm"}]
    claim = names.models(service.name) if source.is_loaded else source.claim
    if source.scheme == "oci":
        image = {"reference": source.image, "pullPolicy": service.spec.engine.image_pull_policy}
        volumes.append({"name": MODELS_VOLUME, "image": image})
    elif source.scheme != "file":
        mounted = {"claimName": claim, "readOnly": True}
        volumes.append({"name": MODELS_VOLUME, "persistentVolumeClaim": mounted})
    if source.scheme != "file":
        mounts.append({"name": MODELS_VOLUME, "mountPath": MODELS, "readOnly": True})
    for more_volumes, more_mounts in (
        engine_cache.volumes(service),
        engine_tls.volumes(service.spec.engine),
    ):
        volumes += more_volumes
        mounts += more_mounts
    return volumes, mounts


def _probes() -> Manifest:
    def probe(path: str, **more: int) -> Manifest:
        return {"httpGet": {"path": path, "port": "status"}, "timeoutSeconds": 5, **more}

    return {
        # Only until the process answers: a model that loads is alive, however long it takes.
        "startupProbe": probe("/healthz", periodSeconds=2, failureThreshold=150),
        "livenessProbe": probe("/healthz", periodSeconds=10, failureThreshold=3),
        "readinessProbe": probe("/readyz", periodSeconds=3, failureThreshold=2),
    }


def _resources(engine: Engine) -> Manifest:
    resources: Manifest = {part: amounts for part, amounts in engine.resources.items() if amounts}
    limits = resources.get("limits", {})
    if engine.device == "cuda" and not any(map(gpus.is_gpu, limits)):
        resources["limits"] = limits | {"nvidia.com/gpu": 1}
    return resources
