"""The API server as operators reach it: the model, behind a network and faults."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.sim.kube.api_model import ApiModel

from octavo.operator.cluster import (
    NO_LABELS,
    ClusterError,
    ConflictError,
    ExpiredError,
    FailedError,
    Key,
    Labels,
    Listing,
    RefusedError,
    UnavailableError,
)
from octavo.operator.kinds import EVENT, INFERENCE_SERVICE, LEASE, Kind, Manifest
from octavo.operator.names import SERVICE_LABEL
from octavo.operator.plan import FIELD_MANAGER
from octavo.operator.watches import Notice

T = TypeVar("T")

TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class Call:
    """One request of an operator."""

    operator: str
    life: int
    verb: str
    kind: Kind
    name: str
    manifest: Manifest | None = None
    subresource: str = ""

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list")


class ApiServer:
    """The model and what is wrong with it.

    Args:
        model: has the objects.
        rng: draws delays and troubles.
        slow_s: what each way of a call takes at most.
    """

    def __init__(self, model: ApiModel, rng: random.Random, slow_s: float) -> None:
        self.model = model
        self.is_away = False
        self.slow_s = slow_s
        self.troubles: dict[str, float] = {}
        """How likely each kind of trouble is: conflicts, busy, errors, late_errors, refusals."""
        self.before: list[Callable[[Call], None]] = []
        """Told of each write when it is asked for."""
        self.after: list[Callable[[Call], None]] = []
        """Told of each write that took effect, before it is answered."""
        self._rng = rng

    def delay_s(self) -> float:
        return self._rng.uniform(0.001, 0.02) + self._rng.uniform(0.0, self.slow_s)

    def trouble(self, call: Call) -> str:
        """Draws what goes wrong with a call; empty: nothing."""
        for kind, share in self.troubles.items():
            only_writes = kind in ("conflicts", "refusals")
            if self._rng.random() < share and (call.is_write or not only_writes):
                return kind
        return ""

    def heal(self) -> None:
        self.is_away, self.slow_s = False, 0.0
        self.troubles.clear()


class SimCluster:
    """The operator's port, of one process."""

    def __init__(self, server: ApiServer, operator: str, life: int) -> None:
        self.server = server
        self.silent = False
        """Whether its watches say nothing, though their streams stay open."""
        self.dropped = False
        """Whether its streams are to end at their next change."""
        self.lose_in = 0
        """The so many-th event from now is lost."""
        self._operator, self._life = operator, life

    async def close(self) -> None:
        """Nothing is open."""

    async def get(self, kind: Kind, key: Key) -> Manifest | None:
        return await self._do(self._call("get", kind, key.name), lambda m: m.get(kind, key))

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        call = self._call("list", kind, namespace or "*")
        return await self._do(call, lambda m: m.list(kind, namespace, labels=labels))

    async def apply(self, kind: Kind, manifest: Manifest, *, subresource: str = "") -> Manifest:
        call = self._call("apply", kind, manifest["metadata"]["name"], manifest, subresource)
        return await self._do(
            call,
            lambda m: m.apply(kind, manifest, manager=FIELD_MANAGER, subresource=subresource),
        )

    async def scale(self, kind: Kind, key: Key, *, uid: str, replicas: int) -> None:
        change = {"spec": {"replicas": replicas}}
        await self._do(
            self._call("scale", kind, key.name, change),
            lambda m: m.patch(
                kind, key, change, manager=FIELD_MANAGER, subresource="scale", uid=uid
            ),
        )

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        call = self._call("create", kind, manifest["metadata"]["name"], manifest)
        return await self._do(call, lambda m: m.create(kind, manifest, manager=FIELD_MANAGER))

    async def delete(self, kind: Kind, key: Key, *, uid: str, resource_version: str) -> None:
        await self._do(
            self._call("delete", kind, key.name),
            lambda m: m.delete(kind, key, uid=uid, resource_version=resource_version),
        )

    def _call(
        self,
        verb: str,
        kind: Kind,
        name: str,
        manifest: Manifest | None = None,
        subresource: str = "",
    ) -> Call:
        return Call(self._operator, self._life, verb, kind, name, manifest, subresource)

    async def _do(self, call: Call, act: Callable[[ApiModel], T]) -> T:
        server = self.server
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if call.is_write:
                    for told in server.before:
                        told(call)
                await asyncio.sleep(server.delay_s())
                if server.is_away:
                    raise UnavailableError("connection refused")
                trouble = server.trouble(call)
                if trouble and trouble != "late_errors":
                    raise _error(trouble, call)
                result = act(server.model)
                if call.is_write:
                    for told in server.after:
                        told(call)
                await asyncio.sleep(server.delay_s())
                if trouble:
                    raise _error(trouble, call)
                return result
        except TimeoutError:
            raise UnavailableError("no answer in time") from None
        except RefusedError as error:
            if error.message.startswith("metadata.uid"):  # as the adapter tells it
                raise ConflictError(error.message) from error
            raise

    async def follow(self, kind: Kind, notice: Notice) -> None:
        """Lists and watches a kind for ever, as kopf does: what a new list lacks is not told."""
        changed = asyncio.Event()
        self.server.model.subscribe(lambda change: changed.set() if change.kind is kind else None)
        labels = {} if kind is INFERENCE_SERVICE else {SERVICE_LABEL: None}
        since: int | None = None
        while True:
            try:
                if since is None:
                    listing = await self.list(kind, None, labels=labels)
                    since = int(listing.resource_version)
                    for manifest in listing.items:
                        notice(kind, "LISTED", manifest)
                since = self._tell(kind, since, labels, notice)
            except ExpiredError:
                since = None
                continue
            except ClusterError:
                await asyncio.sleep(self.server.delay_s() + 0.5)
                continue
            await changed.wait()
            changed.clear()
            await asyncio.sleep(self.server.delay_s())

    def _tell(self, kind: Kind, since: int, labels: Labels, notice: Notice) -> int:
        if self.silent or self.server.is_away:
            return since
        if self.dropped:
            self.dropped = False
            raise ExpiredError("the stream has ended, and what came meanwhile is forgotten")
        for change in self.server.model.changes(kind, since):
            since = change.version
            has = change.manifest["metadata"].get("labels") or {}
            if any(label not in has for label in labels):
                continue
            self.lose_in -= 1
            if self.lose_in != 0:
                notice(kind, change.event, change.manifest)
        return since


def _error(trouble: str, call: Call) -> ClusterError:
    match trouble:
        case "conflicts":
            return ConflictError("the object has been modified")
        case "refusals" if call.kind not in (LEASE, EVENT):
            return RefusedError("exceeded quota")
        case "busy":
            return UnavailableError("too many requests", retry_after_s=1.0)
        case _:
            return FailedError("failed calling webhook")
