"""What an API server refuses: InferenceServices that break their schema, fields that are fixed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tests.sim.kube.api_kinds import SCHEMA

from octavo.operator.cluster import ConflictError, RefusedError, UnavailableError
from octavo.operator.kinds import (
    DEPLOYMENT,
    INFERENCE_SERVICE,
    JOB,
    LEASE,
    POD,
    SERVICE,
    VOLUME_CLAIM,
    Kind,
    Manifest,
)


def expect(kind: Kind, found: Manifest, wanted: Manifest, subresource: str) -> None:
    """Raises where a write is meant for another object, or another version of it.

    A definition's own kinds take no notice of the UID where only a part is written; all kinds take
    it for a field that cannot change where the whole is.
    """
    uid, version = (found["metadata"][name] for name in ("uid", "resourceVersion"))
    if wanted.get("resourceVersion") not in (None, "", version):
        raise ConflictError("the object has been modified; please apply your changes to the latest")
    if wanted.get("uid") in (None, "", uid) or (subresource and kind == INFERENCE_SERVICE):
        return
    if subresource == "scale":
        raise ConflictError(f"Precondition failed: UID in object meta: {uid}")
    raise RefusedError(f"metadata.uid: Invalid value: {wanted['uid']!r}: field is immutable")


def check_types(kind: Kind, config: Manifest) -> None:
    """Raises UnavailableError, as it is no 4xx, for an apply with other types than the schema."""
    if kind == INFERENCE_SERVICE:
        for part in ("spec", "status"):
            if part in config:
                _check_types(config[part], SCHEMA["properties"][part], f".{part}")


def _check_types(value: Any, schema: Manifest, path: str) -> None:
    wanted = _TYPES[schema["type"]] if "type" in schema else (int, str)
    if not _is_a(value, wanted):
        raise UnavailableError(f"failed to create typed patch object: {path}: got {value!r}")
    if isinstance(value, dict):
        rules, other = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            rule = rules.get(name, other)
            if rule is None:
                raise UnavailableError(
                    f"failed to create typed patch object: {path}.{name}: field not declared in "
                    "schema"
                )
            _check_types(inner, rule, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            _check_types(inner, schema["items"], f"{path}[]")


def _is_a(value: Any, wanted: tuple[type, ...]) -> bool:
    return isinstance(value, wanted) and (not isinstance(value, bool) or bool in wanted)


def check(kind: Kind, old: Manifest | None, new: Manifest) -> None:
    """Raises RefusedError for an object that the API server would not take."""
    if kind == INFERENCE_SERVICE:
        parts = ("spec", "status") if "status" in new else ("spec",)
        for part in parts:
            if part not in new:
                raise RefusedError(f"{part}: Required value")
            _check(new[part], SCHEMA["properties"][part], part)
    elif old is not None:
        for path in _FIXED.get(kind, ()):
            if _value(old, path) != _value(new, path):
                raise RefusedError(f"{'.'.join(path)}: Invalid value: field is immutable")
    for name, holds in _RULES.get(kind, ()):
        if not holds(new.get("spec") or {}):
            raise RefusedError(f"spec.{name}: Invalid value")
    owners = new["metadata"].get("ownerReferences", [])
    if sum(bool(owner.get("controller")) for owner in owners) > 1:
        raise RefusedError("metadata.ownerReferences: only one reference can have controller true")


def _selects(spec: Manifest) -> bool:
    """Tells whether the pods of a template have the labels by which they are found."""
    wanted = _value(spec, ("selector", "matchLabels"))
    labels = _value(spec, ("template", "metadata", "labels"))
    return bool(wanted) and wanted.items() <= labels.items()


def _is_pod(spec: Manifest) -> bool:
    containers = spec.get("containers") or []
    return bool(containers) and all(c.get("name") and c.get("image") for c in containers)


def _has_pod(spec: Manifest) -> bool:
    return _is_pod(_value(spec, ("template", "spec")))


_RULES: Final[Mapping[Kind, Sequence[tuple[str, Callable[[Manifest], bool]]]]] = {
    DEPLOYMENT: [
        ("selector", _selects),
        ("template.spec.containers", _has_pod),
        ("replicas", lambda spec: spec.get("replicas", 0) >= 0),
    ],
    JOB: [("template.spec.containers", _has_pod)],
    LEASE: [("leaseDurationSeconds", lambda spec: spec.get("leaseDurationSeconds", 1) > 0)],
    POD: [("containers", _is_pod)],
}
"""Rules of the built-in kinds that these tests come near to."""

_FIXED: Final = {
    DEPLOYMENT: [("spec", "selector")],
    JOB: [("spec", "template"), ("spec", "selector"), ("spec", "completions")],
    VOLUME_CLAIM: [("spec", "accessModes"), ("spec", "storageClassName"), ("spec", "volumeMode")],
    SERVICE: [("spec", "clusterIP")],
}


def _value(manifest: Manifest, path: tuple[str, ...]) -> Any:
    for name in path:
        manifest = manifest.get(name) or {}
    return manifest


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,), "integer": (int,),
    "number": (int, float),
}  # fmt: skip


def _check(value: Any, schema: Manifest, path: str) -> None:
    """Raises RefusedError where a value breaks its schema; rules in CEL are not looked at."""
    wanted = _TYPES[schema["type"]] if "type" in schema else (int, str)
    if not _is_a(value, wanted):
        raise RefusedError(f"{path}: Invalid value: {value!r}: must be of another type")
    if "enum" in schema and value not in schema["enum"]:
        raise RefusedError(f"{path}: Unsupported value: {value!r}")
    if isinstance(value, dict):
        for name in schema.get("required", ()):
            if name not in value:
                raise RefusedError(f"{path}.{name}: Required value")
        rules, other = schema.get("properties", {}), schema.get("additionalProperties")
        for name, inner in value.items():
            _check(inner, rules.get(name, other), f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            _check(inner, schema["items"], f"{path}[]")
    elif isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            raise RefusedError(f"{path}: Invalid value: {value!r}: should match its pattern")
    elif not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        raise RefusedError(f"{path}: Invalid value: {value!r}: out of bounds")
    if isinstance(value, (str, list, dict)):
        most = {str: "maxLength", list: "maxItems", dict: "maxProperties"}[type(value)]
        least = schema.get("minLength", 0)
        if not least <= len(value) <= schema.get(most, len(value)):
            raise RefusedError(f"{path}: Invalid value: its length is out of bounds")
