"""Pieces of structural schemas: each is closed and bounded, as CEL's cost estimate wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from octavo.operator import quantity
from octavo.operator.kinds import Manifest

DNS_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_NAME = f"{DNS_LABEL}([.]{DNS_LABEL})*"
LABEL_VALUE = "([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?"

SHARE: Final = "[0-9]{1,3}%"
SHARE_OF_ALL: Final = "0?[0-9]{1,2}%|100%"
"""A share that is no more than all."""
MAX_COUNT: Final = 2**31 - 1
"""What Kubernetes takes for a number of pods; as text it takes shares only."""


def text(
    description: str = "",
    *,
    pattern: str = "",
    most: int = 253,
    least: int = 0,
    rules: Sequence[Manifest] = (),
    **more: object,
) -> Manifest:
    """A string; `pattern` is that of the whole."""
    found: Manifest = {"type": "string", "maxLength": most}
    if least:
        found["minLength"] = least
    if pattern:
        found["pattern"] = f"^({pattern})$"
    return _described(found | _checked(rules), description, more)


def choice(description: str, *values: str, **more: object) -> Manifest:
    """One of a few strings."""
    return _described({"type": "string", "enum": list(values)}, description, more)


def whole(description: str, *, least: int = 0, most: int, **more: object) -> Manifest:
    """A whole number."""
    found: Manifest = {"type": "integer", "format": "int64", "minimum": least, "maximum": most}
    return _described(found, description, more)


def number(description: str, *, least: float, most: float, **more: object) -> Manifest:
    """Any number."""
    return _described({"type": "number", "minimum": least, "maximum": most}, description, more)


def switch(description: str, **more: object) -> Manifest:
    """On or off."""
    return _described({"type": "boolean"}, description, more)


def amount(description: str = "", **more: object) -> Manifest:
    """A quantity such as 500m, 20Gi or 2."""
    return _int_or_text(quantity.PATTERN, quantity.MAX_LENGTH, description, more)


def count_or_share(description: str, *, share: str, **more: object) -> Manifest:
    """A number of pods, or their share such as 25%; `share` is the pattern of those."""
    return _int_or_text(share, 4, description, {"maximum": MAX_COUNT} | more)


def fields(
    description: str,
    properties: Mapping[str, Manifest],
    *,
    required: Sequence[str] = (),
    rules: Sequence[Manifest] = (),
    **more: object,
) -> Manifest:
    """An object with these fields and no other."""
    found: Manifest = {"type": "object", "properties": dict(properties)}
    if required:
        found["required"] = list(required)
    return _described(found | _checked(rules), description, more)


def table(
    description: str, values: Manifest, *, most: int, rules: Sequence[Manifest] = ()
) -> Manifest:
    """An object with keys of the user's."""
    found: Manifest = {"type": "object", "additionalProperties": values, "maxProperties": most}
    return _described(found | _checked(rules), description, {})


def array(
    description: str,
    items: Manifest,
    *,
    most: int,
    least: int = 0,
    keys: Sequence[str] = (),
    is_set: bool = False,
    rules: Sequence[Manifest] = (),
) -> Manifest:
    """A list; with `keys` a map by these, else one value that has one owner."""
    found: Manifest = {"type": "array", "items": items, "maxItems": most}
    if least:
        found["minItems"] = least
    found["x-kubernetes-list-type"] = "map" if keys else "set" if is_set else "atomic"
    if keys:
        found["x-kubernetes-list-map-keys"] = list(keys)
    return _described(found | _checked(rules), description, {})


def rule(expression: str, message: str) -> Manifest:
    """A CEL rule and what is said to whoever breaks it."""
    return {"rule": expression, "message": message}


def at_creation(expression: str, message: str) -> Manifest:
    """A rule about what cannot change, judged only when the value is new."""
    return rule(f"oldSelf.hasValue() || {expression}", message) | {"optionalOldSelf": True}


def _checked(rules: Sequence[Manifest]) -> Manifest:
    return {"x-kubernetes-validations": list(rules)} if rules else {}


def _int_or_text(pattern: str, most: int, description: str, more: Mapping[str, object]) -> Manifest:
    found: Manifest = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "minimum": 0,
        "pattern": f"^({pattern})$",
        "maxLength": most,
    }
    return _described(found, description, more)


def _described(found: Manifest, description: str, more: Mapping[str, object]) -> Manifest:
    return ({"description": description} if description else {}) | found | dict(more)
