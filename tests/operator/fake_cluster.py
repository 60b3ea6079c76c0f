"""A cluster in memory for the operator's shell: objects, versions, refusals; no controllers in it.

Server-side apply is a deep merge here: what an apply leaves out stays. What the real API server
does beyond that is shown by the tests on one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.operator.cluster import (
    NO_LABELS,
    ClusterError,
    ConflictError,
    Key,
    Labels,
    Listing,
    MissingError,
    key_of,
)
from octavo.operator.kinds import OPTIONAL_KINDS, Kind, Manifest

Watcher = Callable[[Kind, str, Manifest], None]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the port."""

    verb: str
    kind: Kind
    name: str
    subresource: str = ""

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list")


Fault = Callable[[Call], ClusterError | None]


@dataclass
class FakeCluster:
    """The port, in memory. Watchers are told of each change at once."""

    served: set[Kind] = field(default_factory=set)
    """Optional kinds that there are."""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    """Asked before each call; what one returns is raised."""
    late_faults: list[Fault] = field(default_factory=list)
    """Asked after each call has taken effect."""
    watchers: list[Watcher] = field(default_factory=list)
    applied: list[tuple[Kind, Manifest]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._objects: dict[tuple[Kind, Key], Manifest] = {}
        self.version = 100
        """Of the last change."""

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.is_write]

    def fail(
        self, error: ClusterError, *, when: Callable[[Call], bool] = lambda _call: True
    ) -> None:
        """Lets the calls that a test chooses fail from now on, until `faults` is cleared."""
        self.faults[:] = [lambda call: error if when(call) else None]

    def put(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Somebody else writes an object whole."""
        stored = copy.deepcopy(manifest)
        stored.setdefault("apiVersion", kind.api_version)
        stored.setdefault("kind", kind.name)
        return self._store(kind, stored)

    def remove(self, kind: Kind, key: Key) -> None:
        """Somebody else deletes an object."""
        gone = self._objects.pop((kind, key))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(kind, "DELETED", gone)

    def peek(self, kind: Kind, name: str, namespace: str = "shop") -> Manifest | None:
        found = self._objects.get((kind, Key(namespace, name)))
        return copy.deepcopy(found)

    def all(self, kind: Kind) -> list[Manifest]:
        return [copy.deepcopy(m) for (held, _), m in self._objects.items() if held == kind]

    async def get(self, kind: Kind, key: Key) -> Manifest | None:
        self._enter(Call("get", kind, key.name))
        return copy.deepcopy(self._objects.get((kind, key)))

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        self._enter(Call("list", kind, namespace or "*"))
        if kind in OPTIONAL_KINDS and kind not in self.served:
            raise MissingError("404 page not found")
        items = [
            copy.deepcopy(manifest)
            for (held, key), manifest in self._objects.items()
            if held == kind and namespace in (None, key.namespace) and _matches(manifest, labels)
        ]
        return Listing(items=items, resource_version=str(self.version))

    async def apply(self, kind: Kind, manifest: Manifest, *, subresource: str = "") -> Manifest:
        call = Call("apply", kind, manifest["metadata"]["name"], subresource)
        self._enter(call)
        self.applied.append((kind, copy.deepcopy(manifest)))
        known = self._objects.get((kind, key_of(manifest)))
        if known is None and subresource:
            raise MissingError(f'{kind.plural} "{call.name}" not found')
        if known is None and "uid" in manifest["metadata"]:
            raise ConflictError("uid mismatch: there is no object with it")
        for precondition in ("uid", "resourceVersion"):
            wanted = manifest["metadata"].get(precondition)
            if known is not None and wanted not in (None, known["metadata"][precondition]):
                raise ConflictError(f"Precondition failed: {precondition}")
        merged = _merged(known or {}, manifest)
        if subresource:
            merged["status"] = copy.deepcopy(manifest["status"])
        stored = known if merged == known else self._store(kind, merged)
        self._leave(call)
        return copy.deepcopy(stored)

    async def scale(self, kind: Kind, key: Key, *, uid: str, replicas: int) -> None:
        call = Call("scale", kind, key.name)
        self._enter(call)
        known = self._objects.get((kind, key))
        if known is None:
            raise MissingError(f'{kind.plural} "{key.name}" not found')
        if known["metadata"]["uid"] != uid:
            raise ConflictError("Precondition failed: uid")
        self._store(kind, _merged(known, {"spec": {"replicas": replicas}}))
        self._leave(call)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        call = Call("create", kind, manifest["metadata"]["name"])
        self._enter(call)
        if (kind, key_of(manifest)) in self._objects:
            raise ConflictError(f'{kind.plural} "{call.name}" already exists')
        stored = self._store(kind, copy.deepcopy(manifest))
        self._leave(call)
        return copy.deepcopy(stored)

    async def delete(self, kind: Kind, key: Key, *, uid: str, resource_version: str) -> None:
        call = Call("delete", kind, key.name)
        self._enter(call)
        known = self._objects.get((kind, key))
        if known is None:
            raise MissingError(f'{kind.plural} "{key.name}" not found')
        metadata = known["metadata"]
        if (metadata["uid"], metadata["resourceVersion"]) != (uid, resource_version):
            raise ConflictError("Precondition failed")
        self.remove(kind, key)
        self._leave(call)

    def _enter(self, call: Call) -> None:
        self.calls.append(call)
        for fault in self.faults:
            if (error := fault(call)) is not None:
                raise error

    def _leave(self, call: Call) -> None:
        for fault in self.late_faults:
            if (error := fault(call)) is not None:
                raise error

    def _store(self, kind: Kind, manifest: Manifest) -> Manifest:
        key = key_of(manifest)
        known = self._objects.get((kind, key))
        self.version += 1
        metadata = manifest["metadata"]
        metadata["resourceVersion"] = str(self.version)
        fresh: Manifest = {"uid": f"uid-{self.version}", "generation": 0}
        before = known["metadata"] if known else fresh
        metadata.setdefault("uid", before["uid"])
        is_new = known is None or known.get("spec") != manifest.get("spec")
        metadata["generation"] = before["generation"] + is_new
        self._objects[kind, key] = manifest
        self._tell(kind, "MODIFIED" if known else "ADDED", manifest)
        return manifest

    def _tell(self, kind: Kind, event: str, manifest: Manifest) -> None:
        for watcher in self.watchers:
            watcher(kind, event, copy.deepcopy(manifest))


def _matches(manifest: Manifest, labels: Labels) -> bool:
    has = manifest["metadata"].get("labels") or {}
    return all(k in has and wanted in (None, has[k]) for k, wanted in labels.items())


def _merged(old: Manifest, new: Manifest) -> Manifest:
    """Returns old with new on top, dictionaries by key."""
    result = copy.deepcopy(old)
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = _merged(result[key], value)
        else:
            result[key] = copy.deepcopy(value)
    return result
