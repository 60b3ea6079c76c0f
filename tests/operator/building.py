"""Resources as the API server hands them out, and the installation that tests run in."""

from __future__ import annotations

import copy
from typing import Any

from octavo.operator import names, schema
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Installation
from octavo.operator.spec import InferenceService, parse

NAMESPACE = "team"
UID = "00000000-0000-0000-0000-000000000001"

INSTALLATION = Installation(
    engine_images={"cpu": "octavo-engine:cpu", "cuda": "octavo-engine:cuda"},
    loader_image="octavo-loader:1",
    gateway_namespace="octavo",
    gateway_labels={"app.kubernetes.io/component": "gateway"},
    monitoring_namespaces=("monitoring",),
    url="http://octavo-gateway.octavo.svc/v1",
)


def defaulted(part: Any, rules: Manifest) -> Any:
    """Returns a value with the defaults of its schema, as the API server fills them in."""
    if isinstance(part, dict):
        for name, inner in rules.get("properties", {}).items():
            if name not in part and "default" in inner:
                part[name] = copy.deepcopy(inner["default"])
            if name in part:
                part[name] = defaulted(part[name], inner)
    if isinstance(part, list):
        part = [defaulted(entry, rules.get("items", {})) for entry in part]
    return part


def resource(name: str = "llama", *, generation: int = 1, **spec: Any) -> Manifest:
    """Returns an InferenceService; its model is in a volume claim unless `model` says otherwise."""
    spec.setdefault("model", {"uri": "pvc://weights/llama"})
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": UID,
            "generation": generation,
            "resourceVersion": "1",
        },
        "spec": defaulted(copy.deepcopy(spec), schema.spec()),
    }


def from_hub(**more: Any) -> dict[str, Any]:
    """Returns the parts of a spec whose model is loaded from a hub."""
    return {
        "model": {"uri": "hf://org/llama", **more},
        "cache": {"volume": {"size": "20Gi"}},
    }


def service(name: str = "llama", **spec: Any) -> InferenceService:
    """Returns a valid service as typed values."""
    parsed = parse(resource(name, **spec))
    assert isinstance(parsed, InferenceService), parsed
    return parsed
