"""The cluster as the operator sees it: objects by kind, and refusals that have a type.

    ClusterError            says in `message` what the API server said
      ├ ConflictError       another writer was first, or the object exists already: observe again
      ├ RefusedError        the API server will not take this object, however often it is sent
      ├ MissingError        there is no such object, or no such namespace, or no such kind
      ├ ExpiredError        a list is too old to be continued
      └ UnavailableError    nothing is known, not even whether a write took effect: try again
          └ FailedError     the API server answers, but what it asks does not: a webhook

A port: `lightkube_cluster` is its adapter, the tests bring a fake one. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from octavo.operator.kinds import Kind, Manifest

Labels = Mapping[str, str | None]
"""Labels that objects must have; None: with any value."""

NO_LABELS: Final[Labels] = MappingProxyType({})


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Namespace and name of an object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(manifest: Manifest) -> Key:
    """Returns namespace and name of an object."""
    metadata = manifest["metadata"]
    return Key(metadata.get("namespace", ""), metadata["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """All objects of a kind at one moment."""

    items: list[Manifest]
    resource_version: str
    """Of the list: what changed later has a higher one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How the API server is reached, for whoever brings a client of its own."""

    server: str
    ca_path: str | None
    ca_data: str | None
    insecure: bool
    token: str | None
    certificate_path: str | None
    certificate_data: str | None
    key_path: str | None
    key_data: str | None


class ClusterError(Exception):
    """The API server did not do what it was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConflictError(ClusterError):
    """Another writer was first, or the object exists already."""


class RefusedError(ClusterError):
    """The object is invalid, forbidden, or over a quota."""


class MissingError(ClusterError):
    """There is no such object, namespace or kind."""


class ExpiredError(ClusterError):
    """The list that was to be continued is gone."""


class UnavailableError(ClusterError):
    """No answer, or one that settles nothing.

    Args:
        message: what happened.
        retry_after_s: how long the server asked to be left alone; zero: it did not say.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FailedError(UnavailableError):
    """The API server failed at this very request (500): a webhook that it has to ask is away."""


class Cluster(Protocol):
    """Objects of a cluster; every call is bounded in time and raises ClusterError."""

    async def get(self, kind: Kind, key: Key) -> Manifest | None:
        """Returns an object as it is now, None if there is none."""
        ...

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        """Returns the objects of a kind that have the labels, of one namespace or (None) of all.

        MissingError means that the cluster does not serve the kind.
        """
        ...

    async def apply(self, kind: Kind, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Makes the fields of a manifest what it says, by server-side apply; returns the object.

        Creates the object where it is missing, but never for a subresource. Where the manifest
        has `metadata.resourceVersion` or `metadata.uid`, another one is a ConflictError.
        """
        ...

    async def scale(self, kind: Kind, key: Key, *, uid: str, replicas: int) -> None:
        """Sets an object's number of replicas and nothing else.

        One that is gone is a MissingError, another one a ConflictError.
        """
        ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Creates an object and returns it; a ConflictError where it exists."""
        ...

    async def delete(self, kind: Kind, key: Key, *, uid: str, resource_version: str) -> None:
        """Deletes an object, if it still is this one, and what it owns.

        One that is gone is a MissingError, another one or another version a ConflictError.
        """
        ...
