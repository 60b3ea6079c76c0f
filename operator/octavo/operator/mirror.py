"""What was last seen of the objects of all services, so that observing one needs no request.

Watches tell what changes, listings what is; both come late and in any order, so of two states of
an object the one with the higher resourceVersion counts, and a deletion counts for all before it.
Knows neither who reads the API nor what follows from what is seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.operator import names, pods
from octavo.operator.cluster import Key, Listing, key_of
from octavo.operator.conditions import AT_REST, NOT_ROUTABLE, READY, ROUTABLE
from octavo.operator.kinds import (
    CHILD_KINDS,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    OPTIONAL_KINDS,
    POD,
    Kind,
    Manifest,
)

WATCHED_KINDS = (INFERENCE_SERVICE, POD, *CHILD_KINDS)
"""What a service is, and what belongs to one."""


class Mirror:
    """The last seen state of each object, by service."""

    def __init__(self) -> None:
        self._objects: dict[Kind, dict[Key, Manifest]] = {kind: {} for kind in WATCHED_KINDS}
        self._members: dict[Key, dict[tuple[Kind, Key], None]] = {}
        self._deleted: dict[tuple[Kind, Key], int] = {}
        self._served: set[Kind] = set()

    @property
    def services(self) -> Iterable[Key]:
        """The InferenceServices that exist."""
        return self._objects[INFERENCE_SERVICE].keys()

    @property
    def optional_kinds(self) -> frozenset[str]:
        """Names of the optional kinds that the cluster serves."""
        return frozenset(kind.name for kind in self._served)

    def resource(self, service: Key) -> Manifest | None:
        """Returns an InferenceService."""
        return self._objects[INFERENCE_SERVICE].get(service)

    def children(self, service: Key) -> tuple[Manifest, ...]:
        """Returns what has the service's label and is no pod."""
        members = self._members.get(service, {})
        return tuple(self._objects[kind][key] for kind, key in members if kind is not POD)

    def pods(self, service: Key) -> tuple[Manifest, ...]:
        """Returns the pods that have the service's label."""
        members = self._members.get(service, {})
        return tuple(self._objects[kind][key] for kind, key in members if kind is POD)

    def readiness(self) -> Iterable[tuple[Key, bool]]:
        """Yields each InferenceService, and whether its status says that it is Ready.

        One that is not and has no engines, because there are to be none, is left out.
        """
        for key, manifest in self._objects[INFERENCE_SERVICE].items():
            is_ready = pods.has(manifest, READY)
            if is_ready or pods.condition(manifest, READY).get("reason") not in AT_REST:
                yield key, is_ready

    def reach(self) -> Iterable[tuple[Key, bool]]:
        """Yields each InferenceService with loaded engines, and whether gateways reach one."""
        for key, manifest in self._objects[INFERENCE_SERVICE].items():
            is_reached = pods.has(manifest, ROUTABLE)
            if is_reached or pods.condition(manifest, ROUTABLE).get("reason") == NOT_ROUTABLE:
                yield key, is_reached

    def see(self, kind: Kind, manifest: Manifest) -> Key | None:
        """Takes in an object as it is or was; returns its service if that is news."""
        key, version = key_of(manifest), _version(manifest)
        known = self._objects[kind].get(key)
        newest = max(_version(known) if known else -1, self._deleted.get((kind, key), -1))
        if version <= newest:
            return None
        if known is not None:
            self._leave(kind, key, known)
        if kind is not DEPLOYMENT:
            # Large, and only the replicas of Deployments have several writers.
            metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
            manifest = manifest | {"metadata": metadata}
        self._objects[kind][key] = manifest
        service = _service(kind, manifest)
        if service is not None and kind is not INFERENCE_SERVICE:
            self._members.setdefault(service, {})[kind, key] = None
        return service

    def lose(self, kind: Kind, manifest: Manifest) -> Key | None:
        """Takes in that an object was deleted; returns its service if that is news."""
        key, version = key_of(manifest), _version(manifest)
        self._deleted[kind, key] = max(version, self._deleted.get((kind, key), -1))
        known = self._objects[kind].get(key)
        if known is None or _version(known) > version:
            return None
        return self._drop(kind, key)

    def forget(self, kind: Kind, key: Key) -> None:
        """Takes in that there is no such object just now."""
        if key in self._objects[kind]:
            self._drop(kind, key)

    def replace(self, kind: Kind, namespace: str | None, listing: Listing) -> set[Key]:
        """Takes in all objects of a kind, of one namespace or of all; returns whose have changed.

        What was deleted while the listing was made stays deleted.
        """
        if kind in OPTIONAL_KINDS:
            self._served.add(kind)
        changed = {self.see(kind, manifest) for manifest in listing.items}
        listed = {key_of(manifest) for manifest in listing.items}
        moment = int(listing.resource_version or 0)
        for key, known in list(self._objects[kind].items()):
            is_absent = namespace in (None, key.namespace) and key not in listed
            if is_absent and _version(known) <= moment:
                changed.add(self._drop(kind, key))
        for deleted, version in list(self._deleted.items()):
            if deleted[0] is kind and version <= moment:
                del self._deleted[deleted]
        return {key for key in changed if key is not None}

    def not_served(self, kind: Kind) -> set[Key]:
        """Takes in that the cluster has no such kind; returns whose objects are gone with it."""
        self._served.discard(kind)
        gone = {self._drop(kind, key) for key in list(self._objects[kind])}
        return {key for key in gone if key is not None}

    def leave(self, namespace: str) -> None:
        """Forgets all objects of a namespace of which nobody tells any more."""
        for kind, objects in self._objects.items():
            for key in [key for key in objects if key.namespace == namespace]:
                self._drop(kind, key)

    def _drop(self, kind: Kind, key: Key) -> Key | None:
        known = self._objects[kind].pop(key)
        self._leave(kind, key, known)
        return _service(kind, known)

    def _leave(self, kind: Kind, key: Key, known: Manifest) -> None:
        service = _service(kind, known)
        if service is None or kind is INFERENCE_SERVICE:
            return
        members = self._members[service]
        members.pop((kind, key), None)
        if not members:
            del self._members[service]


def _service(kind: Kind, manifest: Manifest) -> Key | None:
    """Returns the service that an object is or belongs to."""
    key = key_of(manifest)
    if kind is INFERENCE_SERVICE:
        return key
    name = (manifest["metadata"].get("labels") or {}).get(names.SERVICE_LABEL)
    return Key(key.namespace, name) if name else None


def _version(manifest: Manifest) -> int:
    """Returns the resourceVersion as the number that it is: the API defines their order so."""
    return int(manifest["metadata"].get("resourceVersion") or 0)
