"""Request records: what became of each request, in memory at once and in the store soon after.

    accepted → routed → first_token → finished | failed | cancelled

Writing never waits: one background task sends the latest state of changed records in pipelines.
A record that is not final is kept in the store for 30 s only and renewed while its gateway lives;
so a gateway that dies leaves no record that says "running". While the store is away changed
records wait, up to a bound; what is lost beyond it is counted. Knows no HTTP and no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import OrderedDict
from typing import Literal

import msgspec
import structlog

from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.store import Item, Store, StoreUnavailableError
from octavo.v1.errors import RECORD_UNAVAILABLE, OctavoError

log = structlog.get_logger(__name__)

KEY_PREFIX = "octavo:request:"
VERSION = 1

OPEN_TTL_S = 30
RENEW_S = 10.0
FLUSH_S = 0.05
"""Pause that lets changes gather: a short request is one write instead of four."""
MAX_BATCH = 100
MAX_WAITING = 10_000
"""Changed records that wait for the store, about 1 KB each."""
MAX_RECENT = 2_000
"""Final records that stay in memory, so that they can be read without a store."""

RETRY_MS = 1000
"""Advice to come back while the store is away."""

_ID = re.compile(r"[0-9a-f]{32}")

State = Literal["accepted", "routed", "first_token", "finished", "failed", "cancelled"]


class RouteNote(msgspec.Struct, kw_only=True, frozen=True):
    """Why the engine was chosen."""

    engine: str
    hit_tokens: int
    seconds: float
    runner_up: str
    runner_up_seconds: float | None


class Record(msgspec.Struct, kw_only=True):
    """One request; no text of it, only names, counts and times."""

    version: int = VERSION
    id: str
    state: State
    model: str
    endpoint: str
    client: str = ""
    engine: str = ""
    route: RouteNote | None = None
    attempts: int = 0
    deaths: int = 0
    resumes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    finish_reasons: list[str] = []
    error: str = ""
    """Code of the catalogue."""
    ignored: list[str] = []
    clamped: bool = False
    trace_id: str = ""
    accepted_at: float
    """Unix seconds, as all times that end in _at; zero: has not happened."""
    routed_at: float = 0.0
    first_token_at: float = 0.0
    ended_at: float = 0.0

    @property
    def final(self) -> bool:
        """Whether it cannot change any more."""
        return self.state in ("finished", "failed", "cancelled")


class Records:
    """All records of this gateway.

    Args:
        store: where they are kept; None keeps the latest in memory only.
        metrics: counts what is lost.
        ttl_s: how long a final record is kept.
    """

    def __init__(self, store: Store | None, *, metrics: GatewayMetrics, ttl_s: int) -> None:
        self._store = store
        self._metrics = metrics
        self._ttl_s = ttl_s
        self._open: dict[str, Record] = {}
        self._recent: OrderedDict[str, Record] = OrderedDict()
        self._waiting: OrderedDict[str, Record] = OrderedDict()
        self._changed = asyncio.Event()
        self._encode = msgspec.json.Encoder().encode

    @property
    def num_open(self) -> int:
        """Records that are not final."""
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        """Changed records that the store does not have yet."""
        return len(self._waiting)

    def write(self, record: Record) -> None:
        """Notes that a record is new or was changed."""
        if record.final:
            self._open.pop(record.id, None)
            self._recent[record.id] = record
            if len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        else:
            self._open[record.id] = record
        self._enqueue(record)

    async def get(self, id: str) -> dict[str, object] | None:
        """Returns a record as plain data; None when there is none.

        Raises:
            OctavoError: RECORD_UNAVAILABLE when it may exist but the store is away.
        """
        record = self._open.get(id) or self._recent.get(id) or self._waiting.get(id)
        if record is None and self._store is not None and _ID.fullmatch(id):
            record = await self._read(self._store, id)
        if record is None:
            return None
        plain: dict[str, object] = msgspec.to_builtins(record)
        return plain

    async def run(self) -> None:
        """Writes changed records and renews open ones, until cancelled."""
        loop = asyncio.get_running_loop()
        renew_at = loop.time() + RENEW_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(renew_at):
                    await self._changed.wait()
            await asyncio.sleep(FLUSH_S)
            if loop.time() >= renew_at:
                for record in list(self._open.values()):
                    self._enqueue(record)
                renew_at = loop.time() + RENEW_S
            self._changed.clear()
            # What changes meanwhile gathers for the next round.
            for _ in range(math.ceil(len(self._waiting) / MAX_BATCH)):
                if not await self._flush_batch():
                    break

    async def flush(self, timeout_s: float) -> None:
        """Writes what waits, for so long at most; what stays behind is counted as dropped."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self._waiting and loop.time() < deadline:
            if not await self._flush_batch():
                await asyncio.sleep(FLUSH_S)
        if self._waiting:
            self._metrics.records_dropped.inc(len(self._waiting))
            log.warning("records_lost", count=len(self._waiting))

    async def _flush_batch(self) -> bool:
        store = self._store
        if store is None or not self._waiting:
            return True
        batch = [self._waiting.popitem(last=False)[1] for _ in range(self._batch_size())]
        try:
            await store.put_many([self._item(record) for record in batch])
        except StoreUnavailableError:
            for record in batch:
                self._enqueue(record)
            return False
        return True

    def _batch_size(self) -> int:
        return min(MAX_BATCH, len(self._waiting))

    def _item(self, record: Record) -> Item:
        ttl_s = self._ttl_s if record.final else OPEN_TTL_S
        return Item(KEY_PREFIX + record.id, self._encode(record), ttl_s)

    def _enqueue(self, record: Record) -> None:
        if self._store is None:
            return
        self._waiting[record.id] = record
        if len(self._waiting) > MAX_WAITING:
            _, lost = self._waiting.popitem(last=False)
            # One that is still open comes back with its next change.
            if lost.final:
                self._metrics.records_dropped.inc()
        self._changed.set()

    async def _read(self, store: Store, id: str) -> Record | None:
        try:
            raw = await store.get(KEY_PREFIX + id)
        except StoreUnavailableError as error:
            raise OctavoError(
                RECORD_UNAVAILABLE, reason=str(error), retry_after_ms=RETRY_MS
            ) from error
        if raw is None:
            return None
        try:
            record = msgspec.json.decode(raw, type=Record)
        except msgspec.DecodeError:
            record = None
        # A value names its own key: a mixed-up reply must not show another request.
        if record is None or record.version != VERSION or record.id != id:
            self._metrics.records_unreadable.inc()
            return None
        return record
