"""What waits for a reader, and what happens to readers that do not read."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.harness import generate

from octavo.engine.sinks import MAX_PENDING_BYTES, GenerateSink, SessionSink
from octavo.engine.stepper import Bundle
from octavo.v1 import engine_pb2
from octavo.v1.errors import QUEUE_FULL, OctavoError

BUNDLE = Bundle(step=7, oldest_runnable_ms=3, remaining=1)


def test_what_several_steps_said_is_one_message() -> None:
    async def check() -> None:
        sink = SessionSink(5, lambda: None)
        sink.accepted(generate([1], request_id="a"))
        for position in range(3):
            sink.delta(engine_pb2.Delta(request_id="a", position=position))
            sink.flush(BUNDLE)
        refusal = OctavoError(QUEUE_FULL, queued=1, limit=1, unit="requests")
        sink.refused(generate([1], request_id="b", attempt=2), refusal)
        update = await sink.next()
        assert update is not None
        assert (update.epoch, update.step, update.oldest_runnable_ms) == (5, 7, 3)
        assert [a.attempt_ref.request_id for a in update.accepted] == ["a"]
        assert [d.position for d in update.deltas] == [0, 1, 2]
        assert [r.attempt_ref.attempt for r in update.refused] == [2]
        sink.flush(BUNDLE)
        heartbeat = await sink.next()
        assert heartbeat is not None
        assert not heartbeat.deltas

    asyncio.run(check())


@pytest.mark.parametrize("what", ["deltas", "refusals"])
def test_too_much_unread_ends_the_session_once_and_takes_no_more_memory(what: str) -> None:
    async def check() -> None:
        slow: list[int] = []
        sink = SessionSink(5, lambda: slow.append(1))
        refusal = OctavoError(QUEUE_FULL, queued=1, limit=1, unit="requests")
        refusal.message = "x" * 100_000
        for _ in range(100):
            if what == "deltas":
                sink.delta(engine_pb2.Delta(request_id="a", text="x" * 100_000))
            else:
                sink.refused(generate([1]), refusal)
        assert slow == [1]
        assert sink.pending_bytes <= MAX_PENDING_BYTES + 200_000
        assert await sink.next() is None

    asyncio.run(check())


def test_a_direct_caller_gets_deltas_or_the_refusal() -> None:
    async def check() -> None:
        sink = GenerateSink()
        sink.delta(engine_pb2.Delta(text="a"))
        assert (await sink.next()).text == "a"
        sink.refused(generate([1]), OctavoError(QUEUE_FULL, queued=1, limit=1, unit="requests"))
        with pytest.raises(OctavoError, match="queue is full"):
            await sink.next()

    asyncio.run(check())
