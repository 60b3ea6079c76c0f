"""Small resources for tests of clusters."""

from __future__ import annotations

from typing import Any

from tests.cluster.api import Object


def pod_template(app: str, *, gpus: int = 0, node: str = "", **spec: object) -> Object:
    """Returns a pod template with one container that asks for whole GPUs."""
    container: Object = {"name": "main", "image": "example/main:1"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {"containers": [container], **selector, **spec},
    }


def pod(name: str, *, annotations: dict[str, str] | None = None, **template: Any) -> Object:
    """Returns a pod that is its own app."""
    wanted = pod_template(name, **template)
    metadata = {"name": name, "annotations": annotations or {}, **wanted["metadata"]}
    return {"apiVersion": "v1", "kind": "Pod", **wanted, "metadata": metadata}


def deployment(name: str, replicas: int, **template: Any) -> Object:
    """Returns a deployment of such pods."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": pod_template(name, **template),
        },
    }


def job(name: str) -> Object:
    """Returns a job of one pod that is not tried again."""
    template = pod_template(name, restartPolicy="Never")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }


def disruption_budget(name: str, **limits: int) -> Object:
    """Returns what keeps evictions from an app."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": name}}, **limits},
    }
