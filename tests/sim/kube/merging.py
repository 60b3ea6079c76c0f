"""Server-side apply: who owns which fields, and what becomes of an object when one is applied.

The rules are those of Kubernetes' structured merge: a field is a path of `f:name`, `k:{"key":…}`
or `v:value`, as managedFields write them. Pure: nothing is changed in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from octavo.operator.cluster import ConflictError
from octavo.operator.kinds import Manifest

Path = tuple[str, ...]
Fields = frozenset[Path]

KEY_DEFAULTS = {"protocol": "TCP"}
"""What a key of an entry is that does not have it."""


@dataclass(slots=True, eq=False)
class Shape:
    """How the values at one place merge. Maps merge by field unless atomic, lists are one value."""

    is_atomic: bool = False
    keys: tuple[str, ...] = ()
    """Of a list whose entries merge by these."""
    is_set: bool = False
    fields: Mapping[str, Shape] = field(default_factory=dict)
    others: Shape | None = None
    """Of fields that are not named, and of entries of lists."""

    def at(self, name: str) -> Shape:
        """Returns the shape of a field."""
        return self.fields.get(name) or self.others or ATOMIC

    @property
    def items(self) -> Shape:
        """Returns the shape of entries."""
        return self.others or ATOMIC

    @property
    def is_associative(self) -> bool:
        """Whether the entries of a list merge one by one."""
        return bool(self.keys) or self.is_set

    def element(self, item: Any) -> str:
        """Returns the part of a path that an entry of a list is."""
        if self.is_set:
            return "v:" + json.dumps(item)
        keys = {k: item.get(k, KEY_DEFAULTS.get(k)) for k in self.keys}
        return "k:" + json.dumps(
            {k: keys[k] for k in sorted(keys) if keys[k] is not None}, separators=(",", ":")
        )


ATOMIC = Shape(is_atomic=True)


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """Who owns fields: one entry of managedFields."""

    operation: str
    """Apply or Update."""
    manager: str
    subresource: str = ""


Owners = dict[Owner, Fields]


# Field sets


def field_set(value: Any, shape: Shape) -> Fields:
    """Returns the fields that an applied object claims."""
    found: set[Path] = set()
    _claim(value, shape, (), found)
    return frozenset(found)


def _claim(value: Any, shape: Shape, path: Path, found: set[Path]) -> None:
    if isinstance(value, dict) and value and not shape.is_atomic:
        for name, inner in value.items():
            _claim(inner, shape.at(name), (*path, f"f:{name}"), found)
    elif isinstance(value, list) and shape.is_associative:
        for item in value:
            inner_path = (*path, shape.element(item))
            found.add(inner_path)
            _claim(item, shape.items, inner_path, found)
    elif path:
        found.add(path)


def tree(fields: Iterable[Path]) -> Manifest:
    """Returns fields as `fieldsV1` has them."""
    root: Manifest = {}
    for path in sorted(fields):
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node["."] = {}
    return _without_lone_dots(root)


def _without_lone_dots(node: Manifest) -> Manifest:
    """A field without fields below is {}, one with some has itself as a dot."""
    if node.keys() == {"."}:
        return {}
    return {part: _without_lone_dots(below) if below else below for part, below in node.items()}


# What differs


_ABSENT: Final = object()


@dataclass(slots=True)
class Difference:
    """The fields that differ between two objects."""

    added: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)


def difference(old: Any, new: Any, shape: Shape) -> Difference:
    """Returns what differs; None is what has lost all its entries, and yet is there."""
    found = Difference()
    _differ(old, new, shape, (), found)
    return found


def _differ(old: Any, new: Any, shape: Shape, path: Path, found: Difference) -> None:
    if old is new or (old == new and type(old) is type(new)):
        return
    if old is _ABSENT:
        found.added.update(_all(new, shape, path))
    elif new is _ABSENT:
        found.removed.update(_all(old, shape, path))
    elif new is None:
        found.removed.update(inner for inner in _all(old, shape, path) if inner != path)
    elif isinstance(old, dict) and isinstance(new, dict) and not shape.is_atomic:
        for name in {**old, **new}:
            before, after = old.get(name, _ABSENT), new.get(name, _ABSENT)
            _differ(before, after, shape.at(name), (*path, f"f:{name}"), found)
    elif isinstance(old, list) and isinstance(new, list) and shape.is_associative:
        left = {shape.element(item): item for item in old}
        right = {shape.element(item): item for item in new}
        for part in {**left, **right}:
            before, after = left.get(part, _ABSENT), right.get(part, _ABSENT)
            _differ(before, after, shape.items, (*path, part), found)
    else:
        found.modified.add(path)


def _all(value: Any, shape: Shape, path: Path) -> Iterator[Path]:
    """Yields a value's path, and those of all that merges within it."""
    if path:
        yield path
    if isinstance(value, dict) and not shape.is_atomic:
        for name, inner in value.items():
            yield from _all(inner, shape.at(name), (*path, f"f:{name}"))
    elif isinstance(value, list) and shape.is_associative:
        for item in value:
            yield from _all(item, shape.items, (*path, shape.element(item)))


# Merging


def merged(live: Any, config: Any, shape: Shape) -> Any:
    """Returns a live value with an applied one on top."""
    if isinstance(live, dict) and isinstance(config, dict) and not shape.is_atomic:
        return live | {n: merged(live.get(n), v, shape.at(n)) for n, v in config.items()}
    if isinstance(live, list) and isinstance(config, list) and shape.is_associative:
        return _merged_lists(live, config, shape)
    return live if config is None else config


def _merged_lists(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    """Returns the entries of both: in the order of `config`, those of `live` alone in between."""
    left = [(shape.element(item), item) for item in live]
    right = [(shape.element(item), item) for item in config]
    known, wanted = dict(left), dict(right)
    shared = [part for part, _ in right if part in known]
    result: list[Any] = []
    i = j = 0

    def take(part: str) -> None:
        result.append(merged(known.get(part), wanted[part], shape.items))
        if shared and shared[0] == part:
            shared.pop(0)

    while i < len(left) or j < len(right):
        if i < len(left) and j < len(right):
            if left[i][0] == right[j][0]:
                take(left[i][0])
                i, j = i + 1, j + 1
                continue
            if left[i][0] in wanted and shared and shared[0] != left[i][0]:
                i += 1
                continue
        if i < len(left) and left[i][0] not in wanted:
            result.append(left[i][1])
            i += 1
        elif j < len(right):
            take(right[j][0])
            j += 1
        else:
            i += 1
    return result


def _without(value: Any, shape: Shape, gone: Fields, above: set[Path], path: Path) -> Any:
    """Returns a value without the fields `gone`; `above` has all beginnings of their paths."""
    if isinstance(value, dict) and not shape.is_atomic:
        left: Manifest = {}
        for name, inner in value.items():
            at = (*path, f"f:{name}")
            if at in above and at not in gone:
                inner = _without(inner, shape.at(name), gone, above, at)
            if at not in gone:
                left[name] = inner
        return left or None
    if isinstance(value, list) and shape.is_associative:
        entries = ((item, (*path, shape.element(item))) for item in value)
        return [
            _without(item, shape.items, gone, above, at) if at in above else item
            for item, at in entries
            if at not in gone
        ] or None
    return value


def without(value: Any, shape: Shape, gone: Fields) -> Any:
    """Returns a value without some of its fields; what is empty then is None."""
    if not gone:
        return value
    return _without(value, shape, gone, {p[:n] for p in gone for n in range(len(p))}, ())


def _named(fields: Iterable[Path]) -> Fields:
    """Returns fields, and the named fields that they are in."""
    return frozenset(
        path[:n]
        for path in fields
        for n in range(1, len(path) + 1)
        if n == len(path) or path[n - 1].startswith("f:")
    )


def _pruned(value: Any, shape: Shape, last: Fields, owners: Owners) -> Any:
    """Returns an object without what its applier owned last and nobody owns now."""
    every = _named(field_set(value, shape))
    dropped = _named(last)
    kept = _named(field_set(without(value, shape, dropped), shape))
    managed = _named(path for fields in owners.values() for path in fields)
    back = without(value, shape, every - (kept | managed))
    return without(value, shape, (every - _named(field_set(back, shape))) & dropped)


# The two kinds of writes


def _others_lose(owners: Owners, owner: Owner, changed: Difference, *, force: bool) -> Owners:
    """Returns the owners after a change; a field that changes has no other owner."""
    written = changed.added | changed.modified
    lost = written | changed.removed
    result: Owners = {}
    for other, fields in owners.items():
        if other != owner and not force and not written.isdisjoint(fields):
            names = ", ".join(sorted(".".join(path) for path in written & fields))
            raise ConflictError(f'Apply failed: conflict with "{other.manager}": {names}')
        result[other] = fields - (changed.removed if other == owner else lost)
    return result


def apply(
    live: Manifest, config: Manifest, shape: Shape, owners: Owners, owner: Owner, *, force: bool
) -> tuple[Manifest, Owners]:
    """Returns an object after a server-side apply, and who owns what then.

    What has lost all its entries, and yet belongs to somebody, is null.

    Raises:
        ConflictError: without force: a field that changes belongs to somebody else.
    """
    new = merged(live, config, shape)
    last = owners.get(owner, frozenset())
    claimed = field_set(config, shape)
    after = owners | {owner: claimed}
    if not last <= claimed:
        new = _pruned(new, shape, last, after)
    after = _others_lose(after, owner, difference(live, new, shape), force=force)
    return new, after | {owner: claimed}


def without_nulls(value: Any) -> Any:
    """Returns a value without fields that are null, as typed kinds read it."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def update(live: Manifest, new: Manifest, shape: Shape, owners: Owners, owner: Owner) -> Owners:
    """Returns who owns what after an object was replaced."""
    changed = difference(live, new, shape)
    after = _others_lose(owners, owner, changed, force=True)
    mine = after.get(owner, frozenset()) | changed.added | changed.modified
    return after | {owner: mine}
