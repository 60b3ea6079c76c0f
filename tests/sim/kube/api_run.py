"""One side of a comparison: the model or a real API server, and what it does with operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeAlias

from tests.sim.kube.api_model import Change
from tests.sim.kube.api_operations import Operation

from octavo.operator.cluster import (
    ConflictError,
    Key,
    Labels,
    Listing,
    MissingError,
    RefusedError,
    UnavailableError,
)
from octavo.operator.kinds import POD, Kind, Manifest, object_of

SHARED = ("labels", "annotations", "finalizers", "generation", "deletionGracePeriodSeconds")
OUTCOMES = (ConflictError, MissingError, RefusedError, UnavailableError)


class Api(Protocol):
    """What model and real server both do."""

    def get(self, kind: Kind, key: Key) -> Manifest | None: ...
    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: Labels = ...
    ) -> Listing: ...
    def apply(
        self,
        kind: Kind,
        manifest: Manifest,
        *,
        manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Manifest: ...
    def patch(
        self,
        kind: Kind,
        key: Key,
        change: Manifest,
        *,
        manager: str,
        subresource: str = "",
        uid: str = "",
    ) -> Manifest: ...
    def create(self, kind: Kind, manifest: Manifest, *, manager: str) -> Manifest: ...
    def delete(
        self, kind: Kind, key: Key, *, uid: str = "", resource_version: str = ""
    ) -> None: ...
    def remove(self, kind: Kind, key: Key) -> None: ...


IDENTITY = ("metadata", "apiVersion", "kind")
Result: TypeAlias = tuple[object, ...]


class Run:
    """Carries operations out on one side and notes what can be compared.

    Args:
        api: the model or a real server.
        kind: of all objects.
        namespace: where they are.
        prefix: of their names.
    """

    def __init__(self, api: Api, kind: Kind, namespace: str, prefix: str) -> None:
        self._api, self._kind, self._namespace, self._prefix = api, kind, namespace, prefix
        self._uids: dict[str, int] = {}

    def do(self, operation: Operation) -> Result:
        """Returns outcome, what came back, and what is there afterwards."""
        key = Key(self._namespace, f"{self._prefix}-{operation.name}")
        if operation.verb == "list":
            return "listed", *self._listed(operation.name)
        before = self._api.get(self._kind, key)
        try:
            outcome = self.comparable(self._ask(operation, key, before))
        except OUTCOMES as error:
            outcome = type(error).__name__
        after = self._api.get(self._kind, key)
        is_written = version_of(before) != version_of(after)
        return outcome, is_written, self.comparable(after)

    def _ask(self, operation: Operation, key: Key, before: Manifest | None) -> Manifest | None:
        verb, kind, api = operation.verb, self._kind, self._api
        bound = _bound(operation.bound, before)
        if verb == "delete":
            api.delete(
                kind,
                key,
                uid=bound.get("uid", ""),
                resource_version=bound.get("resourceVersion", ""),
            )
            return None
        if verb == "remove":
            api.remove(kind, key)
            return None
        place = {"name": key.name, "namespace": key.namespace}
        metadata = operation.metadata | bound
        if verb == "patch":
            change = operation.body | ({"metadata": metadata} if metadata else {})
            if operation.subresource == "scale" and before:
                change = {**change, "spec": {"replicas": _other(before, change)}}
            found = api.patch(
                kind, key, change, manager=operation.manager, subresource=operation.subresource
            )
            return None if operation.subresource == "scale" else found
        manifest = object_of(kind, metadata | place, **operation.body)
        if kind == POD and "spec" in manifest and operation.name == "y":
            manifest["spec"] = manifest["spec"] | {"nodeName": "nowhere"}
        if verb == "create":
            return api.create(kind, manifest, manager=operation.manager)
        return api.apply(
            kind,
            manifest,
            manager=operation.manager,
            subresource=operation.subresource,
            force=operation.force,
        )

    def _listed(self, selector: str) -> list[str]:
        name, _, value = selector.partition("=")
        labels: Labels = {name: value or None} if name else {}
        found = self._api.list(self._kind, self._namespace, labels=labels).items
        names = [item["metadata"]["name"] for item in found]
        return [name[-1] for name in names if name.startswith(f"{self._prefix}-")]

    def comparable(self, manifest: Manifest | None) -> object:
        """Returns what two servers should have in common of an object."""
        if manifest is None:
            return None
        metadata = manifest["metadata"]
        kept = {name: metadata[name] for name in SHARED if name in metadata}
        rest = _without_nulls({k: v for k, v in manifest.items() if k not in IDENTITY})
        if self._kind == POD:
            rest.pop("spec")
        uid = self._uids.setdefault(metadata["uid"], len(self._uids))
        is_going = "deletionTimestamp" in metadata
        return kept, rest, uid, is_going, _owned(metadata.get("managedFields") or [])

    def told(self, changes: list[Change]) -> list[object]:
        """Returns what a watch told."""
        return [
            (change.event, self.comparable(change.manifest))
            for change in changes
            if change.manifest["metadata"]["name"].startswith(f"{self._prefix}-")
        ]


def _other(before: Manifest, change: Manifest) -> int:
    """Returns another number of replicas than there is.

    Scaled to the same number, real servers tear entries of managedFields apart, which neither the
    operator nor an autoscaler does.
    """
    wanted, now = int(change["spec"]["replicas"]), before["spec"].get("replicas", 0)
    return wanted + int(wanted == now)


def _without_nulls(value: Any) -> Any:
    """Returns a value without fields that are null: some times of built-in kinds are."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def version_of(manifest: Manifest | None) -> str | None:
    return manifest["metadata"]["resourceVersion"] if manifest else None


def _bound(bound: str, before: Manifest | None) -> dict[str, str]:
    if not bound:
        return {}
    name = "uid" if "uid" in bound else "resourceVersion"
    other = "00000000-0000-0000-0000-000000000000" if name == "uid" else "1"
    if "other" in bound or before is None:
        return {name: other}
    return {name: before["metadata"][name]}


def _owned(entries: list[Manifest]) -> object:
    """Returns owners and their fields, without the maps around fields: nothing asks for those."""
    return {
        " ".join((e["operation"], e["manager"], e.get("subresource", ""))): sorted(
            leaves(e["fieldsV1"], "")
        )
        for e in entries
    }


def leaves(node: Manifest, path: str) -> Iterator[str]:
    for part, below in node.items():
        if part == ".":
            if path.rpartition("/")[2].startswith("k:"):
                yield path
        elif part == "f:lastProbeTime":
            continue  # null, and yet somebody's
        elif below:
            yield from leaves(below, f"{path}/{part}")
        else:
            yield f"{path}/{part}"
