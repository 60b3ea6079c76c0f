"""Carries out a plan, write by write, so that it may end after any of them.

What is gone needs no write. A refused write does not stop those behind it, and the status waits
until the refusals are known to whoever made the plan. A conflict, or an API server that does not
answer, ends the plan; what is in conflict is read again first, and so is the InferenceService
before anything is taken away, as a watch may be late. A write that the API server fails at ends the
plan, too, until that has lasted: then it is as good as refused, and the status says why. Decides
nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import structlog

from octavo.operator import names
from octavo.operator.cluster import (
    Cluster,
    ClusterError,
    ConflictError,
    FailedError,
    Key,
    MissingError,
    RefusedError,
    UnavailableError,
    key_of,
)
from octavo.operator.kinds import EVENT, INFERENCE_SERVICE, POD, Kind, Manifest, object_of
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.mirror import Mirror
from octavo.operator.observed import Refusal, is_controlled_by
from octavo.operator.plan import Apply, Delete, Event, PatchPodCondition, Plan, Scale, Write
from octavo.operator.timestamps import to_text
from octavo.runtime.env import Env

T = TypeVar("T")

log = structlog.get_logger(__name__)

MAX_MESSAGE: Final = 1024
"""Characters of an event's message; the API takes no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a plan that was carried out to its end."""

    refusals: tuple[Refusal, ...]
    """What was refused for good."""
    num_writes: int
    """What was written, the status and events not counted."""
    status_waits: bool
    """Whether the status was held back, because there are other refusals than it was made from."""


class Executor:
    """Carries out plans.

    Args:
        cluster: is written to.
        mirror: is told of what comes back, so that the next plan knows it before a watch does.
        may_act: whether this operator is the one that writes; asked before each write, as a plan
            may take longer than a lease lasts.
        metrics: counts the writes.
        env: gives events their names and times.
    """

    def __init__(
        self,
        cluster: Cluster,
        mirror: Mirror,
        *,
        may_act: Callable[[], bool],
        metrics: OperatorMetrics,
        env: Env,
    ) -> None:
        self._cluster = cluster
        self._mirror = mirror
        self._may_act = may_act
        self._metrics = metrics
        self._env = env

    async def execute(
        self,
        plan: Plan,
        resource: Manifest,
        *,
        known: tuple[Refusal, ...],
        is_lasting: bool = False,
    ) -> Outcome:
        """Carries out a plan for an InferenceService.

        Args:
            plan: what to write.
            resource: the InferenceService as the plan was made from it.
            known: the refusals that the plan was made from.
            is_lasting: whether earlier plans have ended before their end for long.

        Raises:
            ConflictError: something is not as the plan thought; observe again.
            UnavailableError: the API server did not answer, or this operator may not act any more.
        """
        refusals: list[Refusal] = []
        num_writes = 0
        for write in plan.writes:
            try:
                num_writes += await self._write(write, resource)
            except (RefusedError, MissingError, FailedError) as error:
                kind, name = _target(write)
                refusal = Refusal(kind=kind.name, name=name, message=error.message)
                is_settled = is_lasting or (kind.name, name) in _targets(known)
                if isinstance(error, FailedError) and not is_settled:
                    raise
                refusals.append(refusal)
                if refusal not in known:
                    log.warning(
                        "write_refused",
                        resource=str(key_of(resource)),
                        kind=kind.name,
                        name=name,
                        reason=error.message,
                    )
        status_waits = _targets(refusals) != _targets(known)
        if plan.status is not None and not status_waits:
            # By version: of the UID the API server takes no notice where the status of a custom
            # resource is applied, and one that was made anew would get that of the one before.
            state = ("name", "namespace", "resourceVersion")
            of_it = {key: resource["metadata"][key] for key in state}
            written = await self._write_status(INFERENCE_SERVICE, of_it, plan.status)
            await self.post(plan.events if written else (), resource)
        return Outcome(refusals=tuple(refusals), num_writes=num_writes, status_waits=status_waits)

    async def _write(self, write: Write, resource: Manifest) -> bool:
        """Carries out one write; returns whether anything was written."""
        namespace = key_of(resource).namespace
        if write.takes_away:
            await self._confirm(resource)
        match write:
            case Apply():
                return await self._apply(write, resource)
            case Scale():
                return await self._scale(write, Key(namespace, write.name))
            case Delete():
                return await self._delete(write, Key(namespace, write.name))
            case PatchPodCondition():
                metadata = {"name": write.pod, "namespace": namespace, "uid": write.uid}
                status = {"conditions": [write.condition]}
                return await self._write_status(POD, metadata, status)

    async def _confirm(self, resource: Manifest) -> None:
        """Asks the API server whether an InferenceService is as the plan thought."""
        key = key_of(resource)
        found = await self._look_again(INFERENCE_SERVICE, key)
        version = resource["metadata"]["resourceVersion"]
        if found is None or found["metadata"]["resourceVersion"] != version:
            raise ConflictError(f"{INFERENCE_SERVICE.name} {key} is not as it was")

    async def _apply(self, write: Apply, resource: Manifest) -> bool:
        key = key_of(write.manifest)
        if write.creates:
            found = await self._cluster.get(write.kind, key)
            if found is not None:
                self._mirror.see(write.kind, found)
                if not is_controlled_by(found, resource["metadata"]["uid"]):
                    raise RefusedError("it exists already and belongs to somebody else")
        try:
            applied = await self._write_as_holder(
                write.kind, "apply", lambda: self._cluster.apply(write.kind, write.manifest)
            )
        except ConflictError:
            await self._look_again(write.kind, key)
            raise
        self._mirror.see(write.kind, applied)
        return True

    async def _scale(self, write: Scale, key: Key) -> bool:
        try:
            await self._write_as_holder(
                write.kind,
                "scale",
                lambda: self._cluster.scale(
                    write.kind, key, uid=write.uid, replicas=write.replicas
                ),
            )
        except MissingError:
            return False
        finally:
            await self._look_again(write.kind, key)
        return True

    async def _delete(self, write: Delete, key: Key) -> bool:
        found = await self._look_again(write.kind, key)
        if found is None:
            return False
        now = found["metadata"]
        if (now["uid"], now["resourceVersion"]) != (write.uid, write.resource_version):
            raise ConflictError(f"{write.kind.name} {key} is not as it was")
        try:
            await self._write_as_holder(
                write.kind,
                "delete",
                lambda: self._cluster.delete(
                    write.kind, key, uid=write.uid, resource_version=write.resource_version
                ),
            )
        except MissingError:
            return False
        return True

    async def _write_status(self, kind: Kind, metadata: Manifest, status: Manifest) -> bool:
        written = object_of(kind, metadata, status=status)
        try:
            applied = await self._write_as_holder(
                kind, "status", lambda: self._cluster.apply(kind, written, subresource="status")
            )
        except MissingError:
            return False
        except ConflictError:
            await self._look_again(kind, key_of(written))
            raise
        self._mirror.see(kind, applied)
        return True

    async def post(self, events: tuple[Event, ...], resource: Manifest) -> None:
        """Posts events about an InferenceService, as far as that can be done."""
        for event in events:
            create = partial(self._cluster.create, EVENT, self._event(event, resource))
            try:
                await self._write_as_holder(EVENT, "create", create)
            except ClusterError as error:
                log.warning("event_not_posted", reason=error.message, event_reason=event.reason)

    def _event(self, event: Event, resource: Manifest) -> Manifest:
        key = key_of(resource)
        now = self._env.wall()
        at = to_text(now)
        # By second and name they are shown, so the name has the rest of the time.
        name = f"{key.name}.{int(now * 1e6):014x}{self._env.new_id()[:8]}"
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {"name": name, "namespace": key.namespace},
            "involvedObject": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": key.name,
                "namespace": key.namespace,
                "uid": resource["metadata"]["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:MAX_MESSAGE],
            "source": {"component": "octavo-operator"},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }

    async def _look_again(self, kind: Kind, key: Key) -> Manifest | None:
        """Reads an object from the API server, and has the mirror know it."""
        found = await self._cluster.get(kind, key)
        if found is None:
            self._mirror.forget(kind, key)
        else:
            self._mirror.see(kind, found)
        return found

    async def _write_as_holder(self, kind: Kind, verb: str, write: Callable[[], Awaitable[T]]) -> T:
        if not self._may_act():
            raise UnavailableError("the lease could not be renewed in time")
        outcome = "failed"
        try:
            result = await write()
            outcome = "written"
            return result
        except ConflictError:
            outcome = "conflict"
            raise
        except (RefusedError, MissingError):
            outcome = "refused"
            raise
        except UnavailableError:
            outcome = "unavailable"
            raise
        finally:
            self._metrics.writes.labels(kind.name, verb, outcome).inc()


def _targets(refusals: Iterable[Refusal]) -> set[tuple[str, str]]:
    """Returns what was refused, without the reasons, whose numbers may change each time."""
    return {(refusal.kind, refusal.name) for refusal in refusals}


def _target(write: Write) -> tuple[Kind, str]:
    """Returns what a write is about."""
    match write:
        case PatchPodCondition():
            return POD, write.pod
        case _:
            return write.kind, write.name
