"""Checks a value against a structural schema, but for CEL rules: enough to test test data with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from octavo.operator.kinds import Manifest

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def problems_of(value: Any, schema: Manifest) -> list[str]:
    """Returns where a value does not fit."""
    return list(_problems(value, schema, "$"))


def _problems(value: Any, schema: Manifest, path: str) -> Iterator[str]:
    kinds = _TYPES.get(schema.get("type", ""), (int, str))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        yield f"{path}: {value!r} is no {schema.get('type')}"
        return
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", 10**9):
            yield f"{path}: too long"
        if len(value) < schema.get("minLength", 0):
            yield f"{path}: too short"
        if "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), value):
            yield f"{path}: {value!r} does not match"
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path}: {value!r} is no choice"
    elif isinstance(value, (int, float)):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            yield f"{path}: {value!r} is out of bounds"
    elif isinstance(value, list):
        if len(value) > schema["maxItems"]:
            yield f"{path}: too many"
        if len(value) < schema.get("minItems", 0):
            yield f"{path}: too few"
        for index, entry in enumerate(value):
            yield from _problems(entry, schema["items"], f"{path}[{index}]")
    elif isinstance(value, dict):
        yield from _of_object(value, schema, path)


def _of_object(value: dict[str, Any], schema: Manifest, path: str) -> Iterator[str]:
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}: {name} is missing"
    for name, inner in value.items():
        known = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
        if known is None:
            yield f"{path}: {name} is not known"
        else:
            yield from _problems(inner, known, f"{path}.{name}")
