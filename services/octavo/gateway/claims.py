"""Idempotency keys in the store: who generates the answer of a key, and the answer afterwards.

    acquire   read → decide → take the lease of a try | wait and look again | replay
    keep      renews the lease while the answer is generated
    settle    writes how it ended, the answer itself if it was finished

Single commands only. When the store does not answer, a request is served without it: at worst an
answer is generated twice, never delivered twice to one client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from octavo.gateway.idempotency import (
    KEY_PREFIX,
    PARAM,
    Entry,
    State,
    Step,
    decide,
    decode,
    encode,
    next_try,
)
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.store import Item, Store, StoreUnavailableError
from octavo.v1.errors import ANSWER_NOT_KEPT, IDEMPOTENCY_KEY_REUSED, OctavoError

log = structlog.get_logger(__name__)

LEASE_S: Final = 10
RENEW_S: Final = 3.0
POLL_S: Final = 0.25
SETTLE_TRIES: Final = 4
"""Writes of an answer while the store is away, RENEW_S apart."""


@dataclass(slots=True, kw_only=True)
class Claim:
    """The right to generate an answer, or the answer."""

    entry: Entry
    held: bool = True
    """False: the store knows nothing of it, or somebody else goes on."""


class Claims:
    """The claims of one gateway.

    Args:
        store: shared by all gateways.
        metrics: counts values that cannot be read.
        owner: names this gateway in its leases, for people.
        ttl_s: how long an entry is kept after its last change.
    """

    def __init__(self, store: Store, *, metrics: GatewayMetrics, owner: str, ttl_s: int) -> None:
        self._store = store
        self._metrics = metrics
        self._owner = owner
        self._ttl_s = ttl_s

    async def acquire(self, wanted: Entry, *, on_wait: Callable[[Entry], None]) -> Claim:
        """Returns a claim to generate under, or one whose entry is finished.

        Args:
            wanted: what to claim if nothing is known of the key.
            on_wait: told what another gateway has claimed, while it generates.

        Raises:
            OctavoError: IDEMPOTENCY_KEY_REUSED or ANSWER_NOT_KEPT.
        """
        loop = asyncio.get_running_loop()
        last: Entry | None = None
        # So long a lease may be in the way, or the store away once another gateway is known to
        # generate; then nobody is waited for any more.
        give_up = loop.time() + LEASE_S
        while True:
            try:
                found = await self._read(wanted.key)
                held = found is not None and found.state == "running" and await self._held(found)
                step = decide(found, fingerprint=wanted.fingerprint, held=held)
                if step is Step.TAKE:
                    entry = next_try(found or last, wanted)
                    if await self._take(entry, found):
                        return Claim(entry=entry)
                    last = found or last
                else:
                    assert found is not None, "there is nothing to wait for or to replay"
                    _check(step)
                    last = found
                    if step is Step.REPLAY:
                        return Claim(entry=found, held=False)
                    give_up = loop.time() + LEASE_S
                    on_wait(found)
            except StoreUnavailableError:
                if last is None:
                    give_up = 0.0
            if loop.time() >= give_up:
                entry = next_try(last, wanted)
                self._metrics.keyed.labels("unclaimed").inc()
                log.warning("generating_without_claim", id=entry.identity.id, tries=entry.tries)
                return Claim(entry=entry, held=False)
            await asyncio.sleep(POLL_S)

    async def keep(self, claim: Claim) -> None:
        """Renews a claim until cancelled, or until it turns out to be somebody else's."""
        while claim.held:
            await asyncio.sleep(RENEW_S)
            try:
                claim.held = await self._renew(claim.entry)
            except StoreUnavailableError as error:
                log.warning("claim_not_renewed", id=claim.entry.identity.id, reason=str(error))

    async def settle(
        self, claim: Claim, state: State, deltas: tuple[tuple[bytes, ...], ...] = ()
    ) -> None:
        """Writes how a claim ended, unless it is somebody else's."""
        entry = msgspec.structs.replace(claim.entry, state=state, deltas=deltas)
        for again in range(SETTLE_TRIES):
            if again:
                await asyncio.sleep(RENEW_S)
            if not claim.held:
                return
            try:
                await self._store.put_many([self._item(entry)])
            except StoreUnavailableError as error:
                reason = str(error)
            else:
                return
        self._metrics.keyed.labels("not_stored").inc()
        log.warning("answer_not_stored", id=entry.identity.id, reason=reason)

    async def _read(self, key: str) -> Entry | None:
        """Returns what is kept under a key; what cannot be read counts as nothing."""
        raw = await self._store.get(f"{KEY_PREFIX}{key}", patient=True)
        if raw is None:
            return None
        entry = decode(raw, key=key)
        if entry is None:
            self._metrics.keyed.labels("unreadable").inc()
        return entry

    async def _held(self, entry: Entry) -> bool:
        value = await self._store.get(entry.lease, patient=True)
        return value is not None and value.startswith(_lease_head(entry))

    async def _take(self, entry: Entry, found: Entry | None) -> bool:
        if not await self._store.put_if_absent(self._lease(entry)):
            return False
        item = self._item(entry)
        if found is None:
            if await self._store.put_if_absent(item):
                return True
            # Somebody was faster by a whole lease, or the value there cannot be read.
            if await self._read(entry.key) is not None:
                return False
        await self._store.put_many([item])
        return True

    async def _renew(self, entry: Entry) -> bool:
        if await self._store.renew(entry.lease, LEASE_S):
            await self._store.renew(entry.name, self._ttl_s)
            return True
        found = await self._read(entry.key)
        if found is not None and found != entry:
            return False
        # The store has lost it, or was away too long for the lease: nobody has taken over.
        await self._store.put_many([self._item(entry), self._lease(entry)])
        return True

    def _item(self, entry: Entry) -> Item:
        return Item(entry.name, encode(entry), self._ttl_s)

    def _lease(self, entry: Entry) -> Item:
        return Item(entry.lease, _lease_head(entry) + self._owner.encode(), LEASE_S)


def _lease_head(entry: Entry) -> bytes:
    return f"{entry.lease} owner=".encode()


def _check(step: Step) -> None:
    if step is Step.CONFLICT:
        raise OctavoError(IDEMPOTENCY_KEY_REUSED, param=PARAM)
    if step is Step.TOO_LARGE:
        raise OctavoError(ANSWER_NOT_KEPT, param=PARAM)
