"""What gRPC does by itself with our settings, on real connections: releases change it.

The rows are those of the table "what the transports do by themselves" of the design. Where the
transport sees nothing, the heartbeat above it must.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.bounds import EVENTUALLY_S
from tests.faults import netns
from tests.faults.bare_engine import BareEngine, bare_engine_process, block_loop
from tests.faults.deployment import Deployment, Engine
from tests.faults.disturbed_run import disturbed, undisturbed
from tests.faults.figures import milliseconds, record
from tests.faults.http2 import Frame, FrameTap, Kind, goaway, rst_stream
from tests.faults.proxy import CutAfter, HalfCloseAfter, Pipe, Plan, Proxy, StallAfter, Way
from tests.faults.workload import bodies
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.script import Script

from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.link import Inbound, LinkLostError
from octavo.v1 import engine_pb2

AT_ONCE_S = 2.0
"""Measured: milliseconds."""

PINGS_S = 9.0
"""Pings each 2 s that must be answered within 4 s."""


@asynccontextmanager
async def linked(address: str) -> AsyncIterator[GrpcLink]:
    link = GrpcLink(address)
    try:
        yield link
    finally:
        await link.close()


async def lost(stream: Inbound, within_s: float) -> float:
    """Reads until the stream breaks; returns after how long."""
    begin = time.perf_counter()
    try:
        async with asyncio.timeout(within_s):
            while await stream.recv() is not None:
                pass
    except LinkLostError:
        return time.perf_counter() - begin
    raise AssertionError("the stream ended cleanly")


def test_a_killed_process_is_seen_at_once() -> None:
    async def scenario() -> None:
        async with bare_engine_process() as (address, process), linked(address) as link:
            state, session = link.open_state(), link.open_session()
            await state.recv()
            process.kill()
            record("transport_kill", seconds=round(await lost(state, AT_ONCE_S), 3))
            await lost(session, AT_ONCE_S)

    asyncio.run(scenario())


@pytest.mark.faults
@netns.needs_namespace
@pytest.mark.parametrize(
    "drop", [netns.drop_to_engines, netns.drop_from_engines], ids=["to it", "from it"]
)
def test_a_black_hole_is_seen_within_seconds(drop: Callable[[], None]) -> None:
    async def scenario() -> None:
        async with BareEngine(netns.ENGINE_HOST) as engine, linked(engine.address) as link:
            state = link.open_state()
            await state.recv()
            drop()
            seconds = await lost(state, PINGS_S)
            record("transport_black_hole", way=drop.__name__, seconds=round(seconds, 2))
            netns.heal()
            await until_heard(link)

    netns.run_apart(scenario)


async def until_heard(link: GrpcLink) -> None:
    """Reconnects: the channel must find the way again by itself."""
    async with asyncio.timeout(EVENTUALLY_S):
        while True:
            stream = link.open_state()
            try:
                await stream.recv()
            except LinkLostError:
                await asyncio.sleep(0.1)
            else:
                stream.close()
                return


def test_a_peer_that_accepts_and_says_nothing_is_given_up() -> None:
    async def scenario() -> None:
        async with (
            BareEngine() as engine,
            Proxy(engine.port) as proxy,
            linked(proxy.address) as link,
        ):
            proxy.hold()
            seconds = await lost(link.open_state(), 25)
            record("transport_silent_peer", seconds=round(seconds, 2))
            proxy.release()
            await until_heard(link)

    asyncio.run(scenario())


@pytest.mark.faults
def test_quiet_streams_live_and_are_pinged() -> None:
    async def scenario() -> None:
        tap = FrameTap()
        async with (
            BareEngine() as engine,
            Proxy(engine.port, tap.plan) as proxy,
            linked(proxy.address) as link,
        ):
            state, session = link.open_state(), link.open_session()
            await state.recv()
            readers = [asyncio.create_task(stream.recv()) for stream in (state, session)]
            done, _ = await asyncio.wait(readers, timeout=60)
            assert not done
            assert tap.seen[Way.TO_SERVER, Kind.PING] >= 10
            assert tap.seen[Way.TO_CLIENT, Kind.GOAWAY] == 0
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(scenario())


def test_a_goaway_leaves_open_streams_alone() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.02, tokens=20)).start()
        tap = FrameTap()
        port = int(engine.address.split(":")[1])
        async with Proxy(port, tap.plan) as proxy, linked(proxy.address) as link:
            session = link.open_session()
            await session.send(one_request())
            await session.recv()
            [connection] = proxy.connections
            await connection.pipes[Way.TO_CLIENT].write(goaway())
            tokens = 0
            async with asyncio.timeout(EVENTUALLY_S):
                while tokens < 20:
                    update = engine_pb2.SessionUpdate.FromString(await session.recv() or b"")
                    tokens += sum(len(d.token_ids) for d in update.deltas)
            await until_heard(link)
            assert proxy.accepted == 2, "new streams take a new connection"
            session.close()
        await engine.kill()

    asyncio.run(scenario())


def one_request() -> bytes:
    request = engine_pb2.GenerateRequest(request_id="a", max_tokens=20)
    request.token_ids.ids.append(5)
    return engine_pb2.SessionRequest(generate=[request]).SerializeToString()


def test_a_reset_stream_breaks_alone() -> None:
    async def scenario() -> None:
        tap = FrameTap()
        async with (
            BareEngine() as engine,
            Proxy(engine.port, tap.plan) as proxy,
            linked(proxy.address) as link,
        ):
            state = link.open_state()
            await state.recv()
            session = link.open_session()
            reading = asyncio.create_task(lost(session, AT_ONCE_S))
            while tap.seen[Way.TO_SERVER, Kind.HEADERS] < 2:
                await asyncio.sleep(0.01)
            [connection] = proxy.connections
            # Streams of a client are odd, in the order of their opening.
            await connection.pipes[Way.TO_CLIENT].write(rst_stream(3))
            await reading
            engine.say("still there")
            assert b"still there" in (await asyncio.wait_for(state.recv(), 5) or b"")
            state.close()

    asyncio.run(scenario())


async def spoil(way: Way, frame: Frame, pipe: Pipe) -> bool:
    """Lets no answer pass without settings of a size that RFC 9113 §6.5 calls an error."""
    if way is Way.TO_CLIENT and frame.kind == Kind.HEADERS:
        await pipe.write(Frame(Kind.SETTINGS, 0, 0, b"?").encode())
    return True


@pytest.mark.parametrize(
    "plan",
    [
        Plan(to_client=CutAfter(200)),
        Plan(to_server=CutAfter(200)),
        Plan(to_client=HalfCloseAfter(200)),
        FrameTap(spoil).plan(0),
    ],
    ids=["cut", "cut upwards", "half-closed", "nonsense"],
)
def test_a_broken_connection_is_a_lost_link_and_the_next_one_serves(plan: Plan) -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        port = int(engine.address.split(":")[1])
        plans = [plan]
        async with (
            Proxy(port, lambda _: plans.pop() if plans else Plan()) as proxy,
            linked(proxy.address) as link,
        ):
            session = link.open_session()
            chatter = asyncio.create_task(keep_talking(session.send))
            await lost(session, PINGS_S)
            await asyncio.gather(chatter, return_exceptions=True)
            await until_heard(link)
        await engine.kill()

    asyncio.run(scenario())


async def keep_talking(send: Callable[[bytes], object]) -> None:
    while True:
        sent = send(one_request())
        assert asyncio.iscoroutine(sent)
        await sent
        await asyncio.sleep(0.02)


@pytest.mark.faults
def test_a_connection_that_stalls_in_the_middle_is_given_up() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        port = int(engine.address.split(":")[1])
        plans = [Plan(to_client=StallAfter(300))]
        async with (
            Proxy(port, lambda _: plans.pop() if plans else Plan()) as proxy,
            linked(proxy.address) as link,
        ):
            await lost(link.open_session(), PINGS_S + 3)
            await until_heard(link)
        await engine.kill()

    asyncio.run(scenario())


def test_a_message_beyond_four_megabytes_is_a_lost_link() -> None:
    async def scenario() -> None:
        async with BareEngine() as engine, linked(engine.address) as link:
            engine.say("x" * 5_000_000)
            with pytest.raises(LinkLostError, match="RESOURCE_EXHAUSTED"):
                await link.open_state().recv()

    asyncio.run(scenario())


@pytest.mark.faults
def test_the_transport_alone_does_not_see_a_blocked_server() -> None:
    """The reason for our own heartbeat; when a release changes this, the design may be simpler."""

    async def scenario() -> None:
        async with bare_engine_process() as (address, process), linked(address) as link:
            state = link.open_state()
            await state.recv()
            block_loop(process)
            reading = asyncio.create_task(state.recv())
            done, _ = await asyncio.wait([reading], timeout=20)
            assert not done
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(scenario())


@pytest.mark.faults
@netns.needs_namespace
@pytest.mark.parametrize(
    "drop", [netns.drop_to_engines, netns.drop_from_engines], ids=["to it", "from it"]
)
def test_streams_survive_the_partition_of_an_engine(
    drop: Callable[[], None], model: Path, tmp_path: Path
) -> None:
    async def scenario() -> None:
        engines = [
            Engine("engine-0", model, folder=tmp_path, host=netns.ENGINE_HOST),
            Engine("engine-1", model, folder=tmp_path),
        ]
        async with Deployment(tmp_path, own=engines) as d:
            asked = bodies(10, 1500)
            expected = await undisturbed(d, asked)

            async def part() -> None:
                drop()

            run = await disturbed(d, asked, expected, part, after_s=0.1)
            netns.heal()
            assert run.wrong == []
            pauses = milliseconds(run.pauses_s(engines[0].address))
            record("partition", way=drop.__name__, streams=len(asked), pause_ms=pauses)
            await d.gateway.engines("ready", 2)
            await d.idle(30)

    netns.run_apart(scenario)


def kill_sockets(port: int) -> int:
    """Has the kernel end all connections to a port of this machine; returns how many ends."""
    command = ["ss", "--kill", "--no-header", "-tn", "state", "established", "dport", f"= :{port}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=10)
    return len(done.stdout.splitlines())


@pytest.mark.faults
def test_streams_survive_the_loss_of_their_socket(model: Path, tmp_path: Path) -> None:
    """Both processes live on: only the connection between them is gone."""

    async def scenario() -> None:
        async with Deployment(tmp_path, model=model) as d:
            asked = bodies(20, 1500)
            expected = await undisturbed(d, asked)
            killed = 0

            async def kill() -> None:
                nonlocal killed
                killed = kill_sockets(d.engines[0].port)

            run = await disturbed(d, asked, expected, kill, after_s=0.1)
            assert killed, "the kernel ends no sockets"
            assert run.wrong == []
            pauses = milliseconds(run.pauses_s(d.engines[0].address))
            record("socket_killed", streams=len(asked), pause_ms=pauses)
            await d.gateway.engines("ready", 2)
            await d.idle(30)

    asyncio.run(scenario())


class Window:
    """Keeps window updates from an engine, which may then send no more, until it is opened."""

    def __init__(self) -> None:
        self.shut = False
        self._held: list[tuple[Pipe, Frame]] = []

    async def on_frame(self, way: Way, frame: Frame, pipe: Pipe) -> bool:
        holds = self.shut and way is Way.TO_SERVER and frame.kind == Kind.WINDOW_UPDATE
        if holds:
            self._held.append((pipe, frame))
        return not holds

    async def open(self) -> None:
        self.shut = False
        for pipe, frame in self._held:
            await pipe.write(frame.encode())


@pytest.mark.faults
@pytest.mark.parametrize("what", ["goaway", "reset", "window"])
def test_streams_survive_what_http2_can_do(what: str, model: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        window = Window()
        engines = [Engine(f"engine-{i}", model, folder=tmp_path) for i in range(2)]
        async with Proxy(engines[0].port, FrameTap(window.on_frame).plan) as proxy:
            d = Deployment(tmp_path, own=engines, through=[proxy.address, engines[1].address])
            async with d:
                asked = bodies(20, 1500)
                expected = await undisturbed(d, asked)

                async def interfere() -> None:
                    window.shut = what == "window"
                    for connection in proxy.connections:
                        pipe = connection.pipes[Way.TO_CLIENT]
                        if what == "goaway":
                            await pipe.write(goaway())
                        for stream in range(1, 12, 2) if what == "reset" else ():
                            await pipe.write(rst_stream(stream))
                    if what == "window":
                        await asyncio.sleep(6)
                        await window.open()

                run = await disturbed(d, asked, expected, interfere, after_s=0.1)
                assert run.wrong == []
                pauses = milliseconds(run.pauses_s(proxy.address))
                record("http2", what=what, streams=len(asked), pause_ms=pauses)
                await d.gateway.engines("ready", 2)
                await d.idle(30)

    asyncio.run(scenario())
