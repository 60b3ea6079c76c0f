"""An API server of Kubernetes in memory: versions, ownership of fields, refusals, watches.

Holds objects of all kinds and nothing that acts by itself: controllers are whoever subscribes. Pure
and synchronous; time comes from an argument, and UIDs are counted. What it hands out is what it
holds, by the convention of `Manifest` that nobody changes one in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.kube import merging
from tests.sim.kube.api_checks import check, check_types, expect
from tests.sim.kube.api_defaults import created, defaulted
from tests.sim.kube.api_kinds import WITH_GENERATION, shape_of
from tests.sim.kube.api_objects import (
    OF_THE_SERVER,
    arrived,
    grace_s,
    identity,
    json_merged,
    matches,
    only,
    unmanaged,
    within,
)
from tests.sim.kube.merging import Fields, Owner, Owners

from octavo.operator.cluster import (
    NO_LABELS,
    ConflictError,
    ExpiredError,
    Key,
    Labels,
    Listing,
    MissingError,
    RefusedError,
    key_of,
)
from octavo.operator.kinds import INFERENCE_SERVICE, KINDS, OPTIONAL_KINDS, POD, Kind, Manifest
from octavo.operator.timestamps import from_text, to_text

_UNOWNED = frozenset(
    [("f:apiVersion",), ("f:kind",), ("f:metadata",)]
    + [("f:metadata", f"f:{name}") for name in OF_THE_SERVER]
)
_REPLICAS: Fields = frozenset({("f:spec", "f:replicas")})


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch tells."""

    version: int
    event: str
    """ADDED, MODIFIED or DELETED."""
    kind: Kind
    manifest: Manifest


Changes = list[Change]


@dataclass(frozen=True, slots=True)
class _Stored:
    manifest: Manifest
    owners: Owners


class ApiModel:
    """The API server.

    Args:
        wall: Unix time.
        served: kinds that there are.
        history: how many changes a watch can be continued over.
        storage_class: of claims that name none.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float],
        served: frozenset[Kind] = frozenset(KINDS) - frozenset(OPTIONAL_KINDS),
        history: int = 1000,
        storage_class: str = "standard",
    ) -> None:
        self.version = 1
        """resourceVersion of the last change."""
        self.served = served
        self._wall = wall
        self._storage_class = storage_class
        self._objects: dict[Kind, dict[Key, _Stored]] = {kind: {} for kind in KINDS}
        self._uids: set[str] = set()
        self._num_created = 0
        self._changes: deque[Change] = deque(maxlen=history)
        self._told: list[Callable[[Change], None]] = []

    # Reading

    def get(self, kind: Kind, key: Key) -> Manifest | None:
        """Returns an object, None if there is none."""
        stored = self._objects[kind].get(key)
        return stored.manifest if stored else None

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        """Returns the objects of a kind that have the labels, of one namespace or (None) of all."""
        self._serve(kind)
        items = [
            stored.manifest
            for key, stored in sorted(self._objects[kind].items(), key=_by_key)
            if namespace in (None, key.namespace) and matches(stored.manifest, labels)
        ]
        return Listing(items=items, resource_version=str(self.version))

    def changes(self, kind: Kind, since: int) -> Changes:
        """Returns the changes of a kind after a version, oldest first.

        Raises:
            ExpiredError: some of them are forgotten.
        """
        self._serve(kind)
        oldest = self._changes[0].version if self._changes else self.version + 1
        if since < oldest - 1 and len(self._changes) == self._changes.maxlen:
            raise ExpiredError(f"too old resource version: {since} ({oldest - 1})")
        found: Changes = []
        for change in reversed(self._changes):
            if change.version <= since:
                break
            if change.kind == kind:
                found.append(change)
        return found[::-1]

    def subscribe(self, told: Callable[[Change], None]) -> None:
        """Has each change told, as soon as it has happened."""
        self._told.append(told)

    # Writing

    def apply(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Manifest:
        """Makes the fields of a manifest what it says, by server-side apply.

        With the UID of another object that exists it is a RefusedError: the field cannot change;
        except for an InferenceService's status, which takes no notice of it.
        """
        self._serve(kind)
        config, key = within(kind, arrived(manifest), subresource), key_of(manifest)
        check_types(kind, config)
        stored = self._objects[kind].get(key)
        if stored is None and subresource:
            raise MissingError(f'{kind.plural} "{key.name}" not found')
        if stored is None and "uid" in config["metadata"]:
            raise ConflictError(f'{kind.plural} "{key.name}": no existing object was found')
        live = unmanaged(stored.manifest) if stored else {}
        owners = stored.owners if stored else {}
        if stored and not owners:
            first = Owner("Update", "before-first-apply")
            owners = merging.update(_empty(kind, live), live, shape_of(kind), {}, first)
        owner = Owner("Apply", manager, subresource)
        new, owners = merging.apply(live, config, shape_of(kind), owners, owner, force=force)
        if stored is not None:
            expect(kind, stored.manifest, config["metadata"], subresource)
        return self._write(kind, key, stored, defaulted(kind, new, live), owners, owner)

    def patch(
        self,
        kind: Kind,
        key: Key,
        change: Manifest,
        *,
        manager: str,
        subresource: str = "",
        uid: str = "",
    ) -> Manifest:
        """Merges a change into an object or into its `status` or `scale`; returns the object.

        One of a pod's spec.nodeName stands for its binding, which real servers have apart.
        """
        stored = self._found(kind, key)
        change = arrived(change)
        metadata = change.pop("metadata", None) or {}
        expect(kind, stored.manifest, metadata | ({"uid": uid} if uid else {}), subresource)
        if subresource == "scale":
            return self._scale(kind, key, stored, change["spec"]["replicas"], manager)
        if metadata := {k: v for k, v in metadata.items() if k not in OF_THE_SERVER}:
            change["metadata"] = metadata
        before = unmanaged(stored.manifest)
        new = json_merged(before, change)
        if new == before:
            return stored.manifest
        return self._replace(kind, key, stored, new, Owner("Update", manager, subresource))

    def create(self, kind: Kind, manifest: Manifest, *, manager: str) -> Manifest:
        """Creates an object; a ConflictError where it exists."""
        self._serve(kind)
        key, new = key_of(manifest), arrived(manifest)
        if key in self._objects[kind]:
            check(kind, None, only(kind, {}, defaulted(kind, new, {}), ""))
            raise ConflictError(f'{kind.plural} "{key.name}" already exists')
        if new["metadata"].get("resourceVersion"):
            raise RefusedError("resourceVersion should not be set on objects to be created")
        return self._replace(kind, key, None, new, Owner("Update", manager))

    def delete(self, kind: Kind, key: Key, *, uid: str = "", resource_version: str = "") -> None:
        """Deletes an object, or begins to: a pod that runs, and what has finalizers, go later."""
        stored = self._found(kind, key)
        wanted = {"uid": uid, "resourceVersion": resource_version}
        for name, value in wanted.items():
            if value and value != stored.manifest["metadata"][name]:
                raise ConflictError(f"{kind.plural} {key}: the {name} in the precondition differs")
        self._delete(kind, key, stored, grace_s(kind, stored.manifest))

    def remove(self, kind: Kind, key: Key) -> None:
        """Deletes an object without a delay, as a kubelet does; finalizers still hold it."""
        self._delete(kind, key, self._found(kind, key), 0)

    def collect(self) -> int:
        """Deletes what had owners that are all gone; returns how many objects."""
        orphans = [
            (kind, key)
            for kind, objects in self._objects.items()
            for key, stored in objects.items()
            if "deletionTimestamp" not in stored.manifest["metadata"]
            and (owners := stored.manifest["metadata"].get("ownerReferences"))
            and not any(owner["uid"] in self._uids for owner in owners)
        ]
        for kind, key in orphans:
            self.delete(kind, key)
        return len(orphans)

    # Within

    def _serve(self, kind: Kind) -> None:
        if kind not in self.served:
            raise MissingError("404 page not found")

    def _found(self, kind: Kind, key: Key) -> _Stored:
        self._serve(kind)
        stored = self._objects[kind].get(key)
        if stored is None:
            raise MissingError(f'{kind.plural} "{key.name}" not found')
        return stored

    def _replace(
        self, kind: Kind, key: Key, stored: _Stored | None, new: Manifest, owner: Owner
    ) -> Manifest:
        """Writes an object whole, as whoever read it before."""
        before = unmanaged(stored.manifest) if stored else {}
        new = defaulted(kind, new, before)
        new = only(kind, before, new, owner.subresource)
        owners = stored.owners if stored else {}
        if owners or stored is None:  # what has no owners at all is not looked after
            owners = merging.update(before or _empty(kind, new), new, shape_of(kind), owners, owner)
        return self._write(kind, key, stored, new, owners, owner)

    def _scale(
        self, kind: Kind, key: Key, stored: _Stored, replicas: int, manager: str
    ) -> Manifest:
        """Writes a number of replicas and nothing else.

        It gets another owner if it had one, unless it is zero, which a Scale leaves out.
        """
        owner = Owner("Update", manager, "scale")
        before, owners = unmanaged(stored.manifest), stored.owners
        is_owned = any(fields >= _REPLICAS for fields in owners.values())
        if is_owned and replicas != before["spec"].get("replicas", 0):
            owners = {who: fields - _REPLICAS for who, fields in owners.items()}
            owners |= {owner: _REPLICAS} if replicas else {}
        new = before | {"spec": before["spec"] | {"replicas": replicas}}
        return self._write(kind, key, stored, new, owners, owner)

    def _write(
        self,
        kind: Kind,
        key: Key,
        stored: _Stored | None,
        new: Manifest,
        owners: Owners,
        owner: Owner,
    ) -> Manifest:
        """Stores an object, unless nothing changes."""
        before = unmanaged(stored.manifest) if stored else {}
        new = only(kind, before, new, owner.subresource)
        owners = {who: left for who, fields in owners.items() if (left := fields - _UNOWNED)}
        if stored is None:
            self._num_created += 1
            uid = f"00000000-0000-4000-8000-{self._num_created:012x}"
            made = {"uid": uid, "creationTimestamp": to_text(self._wall())}
            new = new | {"metadata": new["metadata"] | made}
            new = created(kind, new, self._storage_class)
        check(kind, stored.manifest if stored else None, new)
        if stored and new == before and owners == stored.owners:
            return stored.manifest
        metadata = dict(new["metadata"])
        if kind in WITH_GENERATION:
            metadata["generation"] = before["metadata"]["generation"] if before else 0
            metadata["generation"] += identity(kind, before) != identity(kind, new)
        metadata |= self._managed_fields(kind, stored, owners)
        is_over = "deletionTimestamp" in metadata and not metadata.get("finalizers")
        new = new | {"metadata": metadata}
        if stored and is_over and not metadata.get("deletionGracePeriodSeconds"):
            self._drop(kind, key, stored)
            return new
        return self._store(kind, key, _Stored(new, owners))

    def _managed_fields(self, kind: Kind, stored: _Stored | None, owners: Owners) -> Manifest:
        """Returns managedFields, where there are any; entries that stay are the same."""
        old = stored.manifest["metadata"].get("managedFields", []) if stored else []
        known = dict(zip(sorted(stored.owners), old, strict=True)) if stored else {}
        entries = [
            known[owner]
            if stored and stored.owners.get(owner) == owners[owner]
            else _entry(kind, owner, owners[owner], to_text(self._wall()))
            for owner in sorted(owners)
        ]
        return {"managedFields": entries} if entries else {}

    def _store(self, kind: Kind, key: Key, stored: _Stored) -> Manifest:
        event = "MODIFIED" if key in self._objects[kind] else "ADDED"
        stored = self._next(stored)
        self._objects[kind][key] = stored
        self._uids.add(stored.manifest["metadata"]["uid"])
        self._tell(event, kind, stored)
        return stored.manifest

    def _drop(self, kind: Kind, key: Key, stored: _Stored) -> None:
        stored = self._next(stored)
        del self._objects[kind][key]
        self._uids.discard(stored.manifest["metadata"]["uid"])
        self._tell("DELETED", kind, stored)

    def _delete(self, kind: Kind, key: Key, stored: _Stored, after_s: int) -> None:
        metadata = stored.manifest["metadata"]
        is_held = bool(metadata.get("finalizers"))
        if is_held or kind == POD:  # even a pod that never ran is told to go before it is gone
            stored = self._mark(kind, key, stored, after_s)
        if not after_s and not is_held:
            self._drop(kind, key, stored)

    def _mark(self, kind: Kind, key: Key, stored: _Stored, after_s: int) -> _Stored:
        """Notes on an object that it goes, and when; a second time only if that is earlier."""
        metadata = stored.manifest["metadata"]
        marks: Manifest = {"deletionGracePeriodSeconds": after_s}
        if "deletionTimestamp" not in metadata:
            marks["deletionTimestamp"] = to_text(self._wall() + after_s)
            if "generation" in metadata:
                marks["generation"] = metadata["generation"] + 1
        elif (sooner_s := metadata["deletionGracePeriodSeconds"] - after_s) > 0:
            at = from_text(metadata["deletionTimestamp"])
            assert at is not None
            marks["deletionTimestamp"] = to_text(at - sooner_s)
        else:
            return stored
        marked = stored.manifest | {"metadata": metadata | marks}
        self._store(kind, key, _Stored(marked, stored.owners))
        return self._objects[kind][key]

    def _next(self, stored: _Stored) -> _Stored:
        self.version += 1
        metadata = stored.manifest["metadata"] | {"resourceVersion": str(self.version)}
        return _Stored(stored.manifest | {"metadata": metadata}, stored.owners)

    def _tell(self, event: str, kind: Kind, stored: _Stored) -> None:
        change = Change(self.version, event, kind, stored.manifest)
        self._changes.append(change)
        for told in self._told:
            told(change)


def _by_key(entry: tuple[Key, _Stored]) -> tuple[str, str]:
    return entry[0].namespace, entry[0].name


def _empty(kind: Kind, manifest: Manifest) -> Manifest:
    """Returns what a kind has before it has anything: built-in kinds an empty spec."""
    return {"spec": {}} if "spec" in manifest and kind != INFERENCE_SERVICE else {}


def _entry(kind: Kind, owner: Owner, fields: Fields, time: str) -> Manifest:
    entry = {
        "manager": owner.manager,
        "operation": owner.operation,
        "apiVersion": kind.api_version,
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": merging.tree(fields),
    }
    return entry | ({"subresource": owner.subresource} if owner.subresource else {})
