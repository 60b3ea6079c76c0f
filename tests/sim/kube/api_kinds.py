"""How the fields of each kind merge, and what of a kind is written apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.sim.kube.merging import ATOMIC, Shape

from octavo.operator import crd
from octavo.operator.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    INFERENCE_SERVICE,
    JOB,
    NETWORK_POLICY,
    POD,
    POD_MONITOR,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Manifest,
)

WITH_STATUS: Final = frozenset(
    {INFERENCE_SERVICE, DEPLOYMENT, SERVICE, DISRUPTION_BUDGET, VOLUME_CLAIM, JOB, POD}
)
"""Kinds whose status is written apart from the rest."""

WITH_GENERATION: Final = frozenset(
    {
        INFERENCE_SERVICE,
        DEPLOYMENT,
        DISRUPTION_BUDGET,
        JOB,
        POD,
        NETWORK_POLICY,
        ENDPOINT_SLICE,
        POD_MONITOR,
    }
)

SCHEMA: Final[Manifest] = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
"""Of InferenceServices."""


_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "podIPs": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
_PORTS: Final = {
    SERVICE: ("port", "protocol"),
    DEPLOYMENT: ("containerPort", "protocol"),
    JOB: ("containerPort", "protocol"),
    POD: ("containerPort", "protocol"),
}
_ATOMIC: Final = (
    "configMapKeyRef", "fieldRef", "involvedObject", "labelSelector", "namespaceSelector",
    "nodeSelector", "podSelector", "requiredDuringSchedulingIgnoredDuringExecution",
    "resourceFieldRef", "secretKeyRef", "selector",
)  # fmt: skip


def _open_shape(ports: tuple[str, ...] = ()) -> Shape:
    """Returns the shape of a built-in kind: the names of fields tell how they merge."""
    plain = Shape()
    keyed = {name: Shape(keys=keys, others=plain) for name, keys in _KEYS.items()}
    keyed["ownerReferences"] = Shape(keys=("uid",), others=ATOMIC)
    keyed["finalizers"] = Shape(is_set=True)
    if ports:
        keyed["ports"] = Shape(keys=ports, others=plain)
    plain.fields = keyed | dict.fromkeys(_ATOMIC, ATOMIC)
    plain.others = plain
    return plain


def _closed_shape(schema: Manifest) -> Shape:
    """Returns the shape that a structural schema says."""
    fields = {name: _closed_shape(s) for name, s in schema.get("properties", {}).items()}
    inner = schema.get("items") or schema.get("additionalProperties")
    return Shape(
        keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        is_set=schema.get("x-kubernetes-list-type") == "set",
        fields=fields,
        others=_closed_shape(inner) if inner else None,
    )


_OPEN: Final = _open_shape()
_SHAPES: Final = {kind: _open_shape(ports) for kind, ports in _PORTS.items()}
_SHAPES[INFERENCE_SERVICE] = _closed_shape(
    SCHEMA | {"properties": SCHEMA["properties"] | {"metadata": {}}}
)
_SHAPES[INFERENCE_SERVICE].fields = dict(_SHAPES[INFERENCE_SERVICE].fields) | {"metadata": _OPEN}


def shape_of(kind: Kind) -> Shape:
    """Returns how objects of a kind merge."""
    return _SHAPES.get(kind, _OPEN)
