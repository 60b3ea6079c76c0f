"""Which of several operators acts: the one that holds a Lease of the cluster, and renews it.

Clocks of machines differ, so a Lease counts as given up when it has not changed for its duration
by our own clock. A holder that cannot renew it stops acting before anybody else may begin, and goes
on when it can, unless another one has begun meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from octavo.operator.cluster import Cluster, ClusterError, ConflictError, Key, MissingError
from octavo.operator.kinds import LEASE, Manifest, object_of
from octavo.runtime.env import Env

log = structlog.get_logger(__name__)

DURATION_S: Final = 15
"""How long a Lease counts after its last change."""

RENEW_S: Final = 5.0
"""Between two renewals, and between two tries to get it."""

MARGIN_S: Final = 3.0
"""How much earlier than anybody else the holder takes it for lost."""


class LeaseLostError(Exception):
    """Another operator acts now."""


class LeaseHolder:
    """One operator's claim to a Lease.

    Args:
        cluster: has the Lease.
        key: namespace and name of the Lease.
        identity: who claims; unique.
        now: the loop's clock.
        env: the time that is written for people.
    """

    def __init__(
        self, cluster: Cluster, key: Key, *, identity: str, now: Callable[[], float], env: Env
    ) -> None:
        self._cluster = cluster
        self._key = key
        self._identity = identity
        self._now = now
        self._env = env
        self._held_until = float("-inf")
        self._seen: tuple[str, float] = ("", float("-inf"))

    def is_held(self) -> bool:
        """Tells whether nobody else can be acting."""
        return self._now() < self._held_until

    async def acquire(self) -> None:
        """Waits until the Lease is ours."""
        while True:
            if await self._try():
                break
            await asyncio.sleep(RENEW_S)
        log.info("lease_acquired", lease=str(self._key), identity=self._identity)

    async def keep(self) -> None:
        """Renews the Lease for ever.

        Raises:
            LeaseLostError: another operator has it.
        """
        while True:
            await asyncio.sleep(RENEW_S)
            if not await self._try() and not self.is_held():
                log.warning("lease_not_renewed", lease=str(self._key))

    async def release(self) -> None:
        """Lets another operator begin at once."""
        if not self.is_held():
            return
        try:
            found = await self._cluster.get(LEASE, self._key)
            if found is not None and _holder(found) == self._identity:
                await self._cluster.apply(LEASE, self._manifest("", found))
        except ClusterError as error:
            log.info("lease_not_released", reason=error.message)
        self._held_until = float("-inf")

    async def _try(self) -> bool:
        """Takes or renews the Lease; returns whether it is ours."""
        begun = self._now()
        try:
            found = await self._cluster.get(LEASE, self._key)
            if found is not None and not self._may_take(found):
                return False
            if found is None:
                await self._cluster.create(LEASE, self._manifest(self._identity, None))
            else:
                await self._cluster.apply(LEASE, self._manifest(self._identity, found))
        except (ConflictError, MissingError):
            return False
        except ClusterError as error:
            log.warning("lease_unreachable", lease=str(self._key), reason=error.message)
            return False
        self._held_until = begun + DURATION_S - MARGIN_S
        return True

    def _may_take(self, found: Manifest) -> bool:
        holder, version = _holder(found), str(found["metadata"]["resourceVersion"])
        if version != self._seen[0]:
            self._seen = (version, self._now())
        if holder in ("", self._identity):
            return True
        if self._held_until > float("-inf"):
            raise LeaseLostError(holder)
        duration_s = (found.get("spec") or {}).get("leaseDurationSeconds") or DURATION_S
        return bool(self._now() - self._seen[1] >= duration_s)

    def _manifest(self, holder: str, found: Manifest | None) -> Manifest:
        at = datetime.fromtimestamp(self._env.wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict((found or {}).get("spec") or {})
        changes_hands = holder != spec.get("holderIdentity")
        metadata = {"name": self._key.name, "namespace": self._key.namespace}
        if found is not None:
            metadata["resourceVersion"] = found["metadata"]["resourceVersion"]
        return object_of(
            LEASE,
            metadata,
            spec={
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION_S,
                "acquireTime": at if changes_hands else spec.get("acquireTime", at),
                "renewTime": at,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + changes_hands,
            },
        )


def _holder(lease: Manifest) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")
