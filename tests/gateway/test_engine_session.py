import asyncio

import pytest

from octavo.gateway.attempts import Attempt, AttemptTable
from octavo.gateway.engine_session import EngineSession
from octavo.gateway.link import LinkLostError
from octavo.gateway.prefix_index import PrefixIndex
from octavo.v1 import engine_pb2


class Wire:
    """A duplex stream whose far end is the test."""

    def __init__(self) -> None:
        self.sent: list[engine_pb2.SessionRequest] = []
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.closed = False
        self.broken = False

    async def send(self, data: bytes) -> None:
        await asyncio.sleep(0)
        if self.broken:
            raise LinkLostError("broken pipe")
        self.sent.append(engine_pb2.SessionRequest.FromString(data))

    async def recv(self) -> bytes | None:
        data = await self.incoming.get()
        if self.closed:
            raise LinkLostError("closed")
        return data

    def close(self) -> None:
        self.closed = True
        self.incoming.put_nowait(None)

    def say(self, update: engine_pb2.SessionUpdate) -> None:
        self.incoming.put_nowait(update.SerializeToString())


class Bench:
    """A session over a wire, and its table."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.heard = 0
        self.table = AttemptTable(
            PrefixIndex(), on_outgoing=lambda: self.session.notify(), on_drop=lambda _: None
        )
        self.session = EngineSession(self.wire, self.table, epoch=7, on_message=self.listen)

    def listen(self, _: engine_pb2.SessionUpdate) -> None:
        self.heard += 1

    def open(self, request_id: str) -> Attempt:
        request = engine_pb2.GenerateRequest(request_id=request_id)
        attempt = Attempt(request, hashes=[], prefill_tokens=1)
        self.table.open(request, attempt)
        return attempt


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_requests_of_one_turn_leave_in_one_message() -> None:
    async def scenario() -> None:
        bench = Bench()
        running = asyncio.create_task(bench.session.run())
        for i in range(10):
            bench.open(str(i))
        await settle()
        assert [len(m.generate) for m in bench.wire.sent] == [10]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert bench.wire.closed

    asyncio.run(scenario())


def test_cancels_and_requests_travel_together() -> None:
    async def scenario() -> None:
        bench = Bench()
        running = asyncio.create_task(bench.session.run())
        first = bench.open("first")
        await settle()
        bench.table.cancel(first)
        bench.open("second")
        await settle()
        last = bench.wire.sent[-1]
        assert [c.request_id for c in last.cancel] == ["first"]
        assert [g.request_id for g in last.generate] == ["second"]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_every_message_counts_as_a_sign_of_life() -> None:
    async def scenario() -> None:
        bench = Bench()
        attempt = bench.open("a")
        running = asyncio.create_task(bench.session.run())
        bench.wire.say(engine_pb2.SessionUpdate(epoch=7, step=1))
        ref = engine_pb2.AttemptRef(request_id="a")
        accepted = engine_pb2.Accepted(attempt_ref=ref)
        bench.wire.say(engine_pb2.SessionUpdate(epoch=7, accepted=[accepted]))
        await attempt.answered()
        assert bench.heard == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.parametrize("fault", ["end", "garbage", "epoch", "close", "write"])
def test_every_end_is_a_lost_link(fault: str) -> None:
    async def scenario() -> None:
        bench = Bench()
        running = asyncio.create_task(bench.session.run())
        await settle()
        if fault == "end":
            bench.wire.incoming.put_nowait(None)
        elif fault == "garbage":
            bench.wire.incoming.put_nowait(b"\xff\xff\xff")
        elif fault == "epoch":
            bench.wire.say(engine_pb2.SessionUpdate(epoch=8))
        elif fault == "close":
            bench.session.close()
        else:
            bench.wire.broken = True
            bench.open("a")
        with pytest.raises(LinkLostError):
            await asyncio.wait_for(running, 1)
        assert bench.heard == 0
        assert bench.wire.closed

    asyncio.run(scenario())
