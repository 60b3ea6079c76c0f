"""The state stream: snapshot, net changes, merging for slow subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bounds import EVENTUALLY_S

from octavo.engine.state_feed import SNAPSHOT_BLOCKS, StateFeed
from octavo.engine.stepper import Bundle
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash


def h(i: int) -> BlockHash:
    return BlockHash(i.to_bytes(16, "big"))


def bundle(stored: list[int] = [], removed: list[int] = [], *, cleared: bool = False) -> Bundle:  # noqa: B006
    return Bundle(
        step=1,
        oldest_runnable_ms=0,
        remaining=0,
        stored=[(h(i), h(i - 1)) for i in stored],
        removed=[h(i) for i in removed],
        cleared=cleared,
    )


def apply(held: set[bytes], update: engine_pb2.StateUpdate) -> None:
    if update.cleared:
        held.clear()
    held.difference_update(update.removed)
    held.update(b.hash for b in update.stored)


async def take(updates: AsyncIterator[engine_pb2.StateUpdate], held: set[bytes]) -> int:
    async with asyncio.timeout(EVENTUALLY_S):
        update = await anext(updates)
    apply(held, update)
    return update.seq


def test_a_late_subscriber_gets_a_snapshot_in_pieces() -> None:
    async def check() -> None:
        feed = StateFeed(epoch=7)
        feed.on_bundle(bundle(stored=list(range(1, SNAPSHOT_BLOCKS + 11))))
        updates, held = feed.subscribe(), set[bytes]()
        assert [await take(updates, held), await take(updates, held)] == [1, 2]
        assert len(held) == SNAPSHOT_BLOCKS + 10
        feed.on_bundle(bundle(removed=[1]))
        assert await take(updates, held) == 3
        assert len(held) == SNAPSHOT_BLOCKS + 9

    asyncio.run(check())


def test_stage_and_error_reach_subscribers() -> None:
    async def check() -> None:
        feed = StateFeed(epoch=7)
        updates = feed.subscribe()
        assert (await anext(updates)).stage == engine_pb2.STAGE_LOADING
        feed.set_stage(engine_pb2.STAGE_WARMING, "warm-up", eta_ms=900)
        update = await anext(updates)
        assert (update.stage, update.detail, update.eta_ms) == (
            engine_pb2.STAGE_WARMING,
            "warm-up",
            900,
        )

    asyncio.run(check())


@settings(max_examples=25)
@given(
    script=st.lists(
        st.tuples(st.sampled_from(["store", "remove", "clear", "read"]), st.integers(1, 6)),
        max_size=12,
    )
)
def test_whatever_is_merged_the_subscriber_ends_with_what_is_held(
    script: list[tuple[str, int]],
) -> None:
    async def check() -> None:
        feed, truth, held = StateFeed(epoch=1), set[bytes](), set[bytes]()
        updates = feed.subscribe()
        await take(updates, held)
        for action, i in script:
            if action == "store":
                truth.add(h(i))
                feed.on_bundle(bundle(stored=[i]))
            elif action == "remove":
                truth.discard(h(i))
                feed.on_bundle(bundle(removed=[i]))
            elif action == "clear":
                truth.clear()
                feed.on_bundle(bundle(cleared=True))
            else:
                feed.set_stage(engine_pb2.STAGE_READY)
                await take(updates, held)
                assert held == truth
        feed.set_stage(engine_pb2.STAGE_READY)
        await take(updates, held)
        assert held == truth

    asyncio.run(check())
