"""Where an object differs from what is wanted of it, seen by the fields that are wanted.

The API server adds defaults and writes quantities its own way; other writers add fields and
entries. None of that is a difference, so that nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from octavo.operator import quantity

_KEYED: Final = {
    "conditions": ("type",),
    "containers": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
    "ports": ("name",),
    "readinessGates": ("conditionType",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
"""Lists whose entries have owners of their own, by what tells the entries apart. All other lists
are one value."""

_QUANTITIES: Final = ("limits", "requests", "sizeLimit")


def differences(found: object, wanted: object) -> list[str]:
    """Returns the paths, such as spec.template.spec.containers[engine].args, that differ."""
    return sorted(set(_differ(found, wanted, "", "")))


def _differ(found: object, wanted: object, path: str, field: str) -> Iterator[str]:
    if found is None and not wanted:
        return  # the API server leaves empty values out
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key, value in wanted.items():
            inner = field if field in _QUANTITIES else key
            yield from _differ(found.get(key), value, f"{path}.{key}".lstrip("."), inner)
    elif isinstance(wanted, list) and isinstance(found, list):
        yield from _lists_differ(found, wanted, path, field)
    elif not _is_same(found, wanted, field):
        yield path


def _lists_differ(
    found: list[object], wanted: list[object], path: str, field: str
) -> Iterator[str]:
    keys = _KEYED.get(field, ())
    if not keys or not all(_has(entry, keys) for entry in wanted):
        same_length = len(found) == len(wanted)
        if not same_length or any(
            True for pair in zip(found, wanted, strict=True) for _ in _differ(*pair, path, "")
        ):
            yield path
        return
    by_key = {_key(entry, keys): entry for entry in found if _has(entry, keys)}
    for entry in wanted:
        key = _key(entry, keys)
        yield from _differ(by_key.get(key), entry, f"{path}[{'/'.join(key)}]", "")


def _has(entry: object, keys: tuple[str, ...]) -> bool:
    return isinstance(entry, dict) and all(key in entry for key in keys)


def _key(entry: object, keys: tuple[str, ...]) -> tuple[str, ...]:
    assert isinstance(entry, dict)
    return tuple(str(entry[key]) for key in keys)


def _is_same(found: object, wanted: object, field: str) -> bool:
    if field in _QUANTITIES:
        number = quantity.parse(wanted)
        return number is not None and number == quantity.parse(found)
    return type(found) is type(wanted) and found == wanted
