"""What the link model does beyond what can be compared with gRPC in a moment."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
from tests.sim.conn import Conn
from tests.sim.engine_link import SimLink, serve_shell
from tests.sim.loop import SimLoop, run
from tests.sim.net import Net

from octavo.engine.session import EngineShell
from octavo.engine.spans import RequestSpans
from octavo.gateway.link import LinkLostError
from octavo.v1 import engine_pb2

PORT = 7000


def in_net(scenario: Callable[[Net], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        await scenario(Net(loop, random.Random(1)))

    run(main, rng=random.Random(0))


def new_shell() -> EngineShell:
    return EngineShell(epoch=7, spans=RequestSpans())


def seq(data: bytes | None) -> int:
    return engine_pb2.StateUpdate.FromString(data or b"").seq


def test_a_channel_that_could_not_connect_rests_and_streams_fail_at_once_meanwhile() -> None:
    async def scenario(net: Net) -> None:
        link = SimLink(net, "gw0", "e0", PORT)
        streams = [link.open_session(), link.open_state(), link.fetch_card()]
        for stream in streams:
            with pytest.raises(LinkLostError, match="refused"):
                await stream.recv()
        serve_shell(net, "e0", PORT, new_shell())
        begin = net.loop.time()
        while True:
            state = link.open_state()
            try:
                assert seq(await state.recv()) == 1
                break
            except LinkLostError as error:
                assert "a moment ago" in error.reason  # noqa: PT017
                await asyncio.sleep(0.01)
        assert 0.15 < net.loop.time() - begin < 0.25, "three streams, one failure"

    in_net(scenario)


def test_patience_grows_to_a_second_while_nobody_answers() -> None:
    async def scenario(net: Net) -> None:
        serve_shell(net, "e0", PORT, new_shell())
        net.cut("gw0", "e0")
        link = SimLink(net, "gw0", "e0", PORT)
        waits: list[float] = []
        for _ in range(6):
            begin = net.loop.time()
            with pytest.raises(LinkLostError, match="not answered"):
                await link.open_state().recv()
            waits.append(net.loop.time() - begin)
        assert waits == pytest.approx([0.2, 0.32, 0.512, 0.8192, 1.0, 1.0])
        net.heal_all()
        state = link.open_state()
        assert seq(await state.recv()) == 1

    in_net(scenario)


def test_an_engine_forgets_a_gateway_that_vanished_within_ten_seconds() -> None:
    async def scenario(net: Net) -> None:
        shell = new_shell()
        serve_shell(net, "e0", PORT, shell)
        link = SimLink(net, "gw0", "e0", PORT)
        session, state = link.open_session(), link.open_state()
        await state.recv()
        await session.recv()
        await asyncio.sleep(0.1)
        assert (len(shell._sinks), len(shell.feed._subscribers)) == (1, 1)
        net.pause_host("gw0")
        await asyncio.sleep(4.9)
        assert (len(shell._sinks), len(shell.feed._subscribers)) == (1, 1)
        await asyncio.sleep(5.2)
        assert (len(shell._sinks), len(shell.feed._subscribers)) == (0, 0)
        net.resume_host("gw0")
        with pytest.raises(LinkLostError):
            await session.recv()

    in_net(scenario)


def test_state_messages_can_be_lost_repeated_and_reordered() -> None:
    async def scenario(net: Net) -> None:
        shell = new_shell()
        serve_shell(net, "e0", PORT, shell)
        state = SimLink(net, "gw0", "e0", PORT).open_state()
        assert seq(await state.recv()) == 1
        held: list[bytes] = []

        def fault(_: Conn, message: bytes) -> list[bytes]:
            if seq(message) == 2:
                held.append(message)
                return []
            return [message, message, *held]

        net.event_fault = fault
        for detail in ("one", "two"):
            shell.feed.set_stage(engine_pb2.STAGE_LOADING, detail)
            await asyncio.sleep(1)
        assert [seq(await state.recv()) for _ in range(3)] == [3, 3, 2]

    in_net(scenario)


def test_a_server_that_stops_breaks_its_calls_off_and_listens_no_more() -> None:
    async def scenario(net: Net) -> None:
        shell = new_shell()
        stop = serve_shell(net, "e0", PORT, shell)
        link = SimLink(net, "gw0", "e0", PORT)
        state, session = link.open_state(), link.open_session()
        await state.recv()
        await session.recv()
        stop()
        for stream in (state, session):
            with pytest.raises(LinkLostError, match="reset"):
                await stream.recv()
        with pytest.raises(LinkLostError, match="refused"):
            await link.open_state().recv()
        await asyncio.sleep(1)
        assert not shell._sinks
        assert not net.conns

    in_net(scenario)


def test_a_gateway_that_does_not_read_holds_the_writer_up_and_loses_nothing() -> None:
    async def scenario(net: Net) -> None:
        shell = new_shell()
        serve_shell(net, "e0", PORT, shell)
        state = SimLink(net, "gw0", "e0", PORT).open_state()
        await state.recv()
        for i in range(100):
            shell.feed.set_stage(engine_pb2.STAGE_LOADING, f"{i} " + "x" * 10_000)
            await asyncio.sleep(0.5)
        (conn,) = [c for c in net.conns if c.local == "e0"]
        assert conn.unread < 80_000
        details: list[str] = []
        while not details or not details[-1].startswith("99"):
            update = engine_pb2.StateUpdate.FromString(await state.recv() or b"")
            details.append(update.detail)
        assert 6 <= len(details) <= 10, "what waited was merged"

    in_net(scenario)
