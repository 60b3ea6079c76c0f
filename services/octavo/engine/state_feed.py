"""The state stream's side of the engine: stage, load and KV events for any number of gateways.

Subscribers get a snapshot first and then net changes; what a slow one has not taken yet is merged,
so a burst of events costs a bounded message and never a queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from octavo.engine.stepper import Bundle
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import OctavoError

SNAPSHOT_BLOCKS: Final = 8192
"""Blocks a message: about 350 kB, well below gRPC's 4 MB."""
PACE_S: Final = 0.05
"""Least time between two messages of one subscriber."""


class StateFeed:
    """Mirrors what the engine published and serves it to subscribers, on the server's loop."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.stage: engine_pb2.Stage.ValueType = engine_pb2.STAGE_LOADING
        self._detail = "starting"
        self._eta_ms = 0
        self._error: OctavoError | None = None
        self._load: engine_pb2.Load | None = None
        self._blocks: dict[BlockHash, BlockHash] = {}
        self._subscribers: list[Subscription] = []

    def set_stage(
        self,
        stage: engine_pb2.Stage.ValueType,
        detail: str = "",
        *,
        eta_ms: int = 0,
        error: OctavoError | None = None,
    ) -> None:
        """Changes the stage and tells everybody; only a failure ends a drain."""
        if self.stage == engine_pb2.STAGE_DRAINING and stage != engine_pb2.STAGE_FAILED:
            return
        self.stage, self._detail, self._eta_ms, self._error = stage, detail, eta_ms, error
        for subscriber in self._subscribers:
            subscriber.wake()

    @property
    def stage_text(self) -> str:
        """The stage in words, for error messages."""
        return self._detail or engine_pb2.Stage.Name(self.stage).removeprefix("STAGE_").lower()

    @property
    def eta_ms(self) -> int:
        """Expected time to readiness; zero when unknown."""
        return self._eta_ms

    def on_bundle(self, bundle: Bundle) -> None:
        """Takes the events and the load of one turn."""
        if bundle.cleared:
            self._blocks.clear()
        for block_hash in bundle.removed:
            self._blocks.pop(block_hash, None)
        self._blocks.update(bundle.stored)
        if bundle.load is not None:
            self._load = bundle.load
        changed = [*bundle.removed, *(h for h, _ in bundle.stored)]
        for subscriber in self._subscribers:
            subscriber.note(changed, cleared=bundle.cleared, load=bundle.load is not None)

    async def subscribe(self) -> AsyncIterator[engine_pb2.StateUpdate]:
        """Yields the snapshot and then changes, for ever."""
        subscription = Subscription(self)
        self._subscribers.append(subscription)
        try:
            async for update in subscription.updates():
                yield update
        finally:
            self._subscribers.remove(subscription)

    def describe(self, update: engine_pb2.StateUpdate) -> None:
        """Writes stage and load into a message."""
        update.epoch = self.epoch
        update.stage, update.detail, update.eta_ms = self.stage, self._detail, self._eta_ms
        if self._error is not None:
            update.error.CopyFrom(self._error.to_proto())
        if self._load is not None:
            update.load.CopyFrom(self._load)

    def changes(self, hashes: Iterable[BlockHash], update: engine_pb2.StateUpdate) -> None:
        """Writes where each hash stands now: stored or removed."""
        for block_hash in hashes:
            parent = self._blocks.get(block_hash)
            if parent is None:
                update.removed.append(block_hash)
            else:
                update.stored.add(hash=block_hash, parent=parent)

    def all_hashes(self) -> list[BlockHash]:
        """Returns every published hash."""
        return list(self._blocks)


class Subscription:
    """One gateway's place in the feed: which hashes changed since its last message."""

    def __init__(self, feed: StateFeed) -> None:
        self._feed = feed
        self._changed: dict[BlockHash, None] = {}
        self._restart = True
        self._seq = 0
        self._news = asyncio.Event()
        self._news.set()

    def wake(self) -> None:
        """Makes the next message go out."""
        self._news.set()

    def note(self, changed: list[BlockHash], *, cleared: bool, load: bool) -> None:
        """Remembers what a bundle changed."""
        if cleared:
            self._restart = True
            self._changed.clear()
        self._changed.update(dict.fromkeys(changed))
        if len(self._changed) > SNAPSHOT_BLOCKS:
            self._restart = True  # a snapshot is no larger
            self._changed.clear()
        if changed or cleared or load:
            self._news.set()

    async def updates(self) -> AsyncIterator[engine_pb2.StateUpdate]:
        """Yields messages, the snapshot first."""
        while True:
            await self._news.wait()
            self._news.clear()
            for update in self._take():
                yield update
            await asyncio.sleep(PACE_S)

    def _take(self) -> list[engine_pb2.StateUpdate]:
        restart, self._restart = self._restart, False
        hashes = self._feed.all_hashes() if restart else list(self._changed)
        self._changed.clear()
        updates = []
        for i in range(0, max(len(hashes), 1), SNAPSHOT_BLOCKS):
            self._seq += 1
            update = engine_pb2.StateUpdate(seq=self._seq, cleared=restart and i == 0)
            self._feed.describe(update)
            self._feed.changes(hashes[i : i + SNAPSHOT_BLOCKS], update)
            updates.append(update)
        return updates
