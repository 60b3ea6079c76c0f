"""The link model against real gRPC: the same faults have the same outcome after about as long."""

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

import pytest
from tests.bounds import EVENTUALLY_S
from tests.fakes import byte_tokenizer_json
from tests.sim.engine_link import SimLink, serve_shell
from tests.sim.loop import SimLoop, run
from tests.sim.net import Net

from octavo.engine.prompt import PromptEncoder
from octavo.engine.server import EngineServer
from octavo.engine.session import EngineShell, Loaded
from octavo.engine.spans import RequestSpans
from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.link import Duplex, EngineLink, LinkLostError
from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2

ROOT = Path(__file__).parents[2]
PATHS = [ROOT, *(ROOT / folder for folder in ("services", "operator", "kernels", "proto"))]
ENVIRONMENT = {**os.environ, "PYTHONPATH": ":".join(map(str, PATHS))}
LOADING_FOR_S = 0.3


class CountingShell(EngineShell):
    """A shell without a core, whose card tells how many streams it serves."""

    def load(self) -> None:
        template = ChatTemplate("", bos_token="<", eos_token=">")
        encoder = PromptEncoder(Tokenizer.from_json(byte_tokenizer_json()), template, None)
        card = engine_pb2.ModelCard(model="bare")
        self.attach(Loaded(card=card, files=(), encoder=encoder, put=lambda _: None))

    def card(self) -> list[engine_pb2.CardChunk]:
        chunks = super().card()
        chunks[0].card.max_num_seqs = len(self._sinks)
        chunks[0].card.num_blocks = len(self.feed._subscribers)
        return chunks


async def serve() -> None:
    """The real server in a process of its own: says its address, then loads."""
    shell = CountingShell(epoch=1, spans=RequestSpans())
    port = await EngineServer(shell, lambda: "id").start("127.0.0.1:0")
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.sleep(LOADING_FOR_S)
    shell.load()
    await asyncio.Event().wait()


class Peer(Protocol):
    """An engine that obeys, and the way to it."""

    link: EngineLink

    def stop(self) -> None: ...
    def go_on(self) -> None: ...
    def kill(self) -> None: ...


class RealPeer:
    """A process; `link` is the test's own."""

    link: EngineLink

    def __init__(self) -> None:
        code = "import asyncio; from tests.sim.test_link_conformance import serve as s"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{code}; asyncio.run(s())"],
            stdout=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        with self._process as process:
            process.kill()


class SimPeer:
    def __init__(self, net: Net) -> None:
        self._net = net
        self.link: EngineLink = SimLink(net, "gw0", "e0", 7000)
        net.loop.spawn(net.loop.process("e0"), self._serve())

    async def _serve(self) -> None:
        shell = CountingShell(epoch=1, spans=RequestSpans())
        serve_shell(self._net, "e0", 7000, shell)
        await asyncio.sleep(LOADING_FOR_S)
        shell.load()
        await asyncio.Event().wait()

    def stop(self) -> None:
        self._net.pause_host("e0")

    def go_on(self) -> None:
        self._net.resume_host("e0")

    def kill(self) -> None:
        self._net.kill_host("e0")


@pytest.fixture(scope="module")
def shared() -> Iterator[RealPeer]:
    """An engine for all rows that leave it as it was."""
    peer = RealPeer()
    yield peer
    peer.end()


async def outcome(work: Awaitable[object]) -> str:
    """Describes how something ended and after how long, coarsely."""
    clock = asyncio.get_running_loop().time
    begin = clock()
    try:
        async with asyncio.timeout(EVENTUALLY_S):
            result = await work
    except LinkLostError:
        what = "lost"
    except asyncio.CancelledError:
        what = "cancelled"
    except TimeoutError:
        what = "nothing"
    else:
        what = "data" if isinstance(result, bytes) else "end" if result is None else "odd"
    took = clock() - begin
    return f"{what} at once" if took < 1.4 else what if 3.5 < took < 8.5 else f"{what} {took:.1f}"


async def ready(peer: Peer) -> None:
    """Waits until the engine has loaded."""
    async with asyncio.timeout(EVENTUALLY_S):
        while await outcome(peer.link.fetch_card().recv()) != "data at once":
            await asyncio.sleep(0.02)


async def streams(peer: Peer, sessions: int, states: int) -> str:
    """Waits a moment for the engine to know of so many streams."""
    for _ in range(20):
        chunk = engine_pb2.CardChunk.FromString(await peer.link.fetch_card().recv() or b"")
        if (chunk.card.max_num_seqs, chunk.card.num_blocks) == (sessions, states):
            return "known"
        await asyncio.sleep(0.05)
    return f"{chunk.card.max_num_seqs} sessions, {chunk.card.num_blocks} states"


NAMELESS = engine_pb2.SessionRequest(generate=[engine_pb2.GenerateRequest()]).SerializeToString()
"""Is refused, which is an answer."""


async def loading(peer: Peer) -> list[str]:
    early = [await outcome(peer.link.fetch_card().recv()) for _ in range(2)]
    state = [await outcome(peer.link.open_state().recv())]
    await ready(peer)
    return early + state


async def greeted(peer: Peer) -> Duplex:
    """Opens a session and reads the engine's greeting."""
    session = peer.link.open_session()
    assert await session.recv() is not None
    return session


async def kill(peer: Peer) -> list[str]:
    await ready(peer)
    state, session = peer.link.open_state(), await greeted(peer)
    await session.send(NAMELESS)
    seen = [await outcome(s.recv()) for s in (state, session)]
    peer.kill()
    seen += [await outcome(s.recv()) for s in (state, session, session)]
    seen.append(await outcome(session.send(NAMELESS)))
    reopened = peer.link.open_session()
    seen.append(await outcome(reopened.recv()))
    seen.append(await outcome(reopened.send(NAMELESS)))
    seen += [await outcome(peer.link.open_state().recv()) for _ in range(3)]
    return seen


async def quiet(peer: Peer) -> list[str]:
    session = await greeted(peer)
    reading = asyncio.create_task(outcome(session.recv()))
    await asyncio.sleep(1.2)
    seen = ["ended" if reading.done() else "quiet"]
    await session.send(NAMELESS)
    return [*seen, await reading]


async def clean_end(peer: Peer) -> list[str]:
    await ready(peer)
    session = await greeted(peer)
    await session.send(b"\xff\xff not protobuf")
    seen = [await outcome(session.recv()) for _ in range(3)]
    seen.append(await outcome(session.send(NAMELESS)))
    card = peer.link.fetch_card()
    seen += [await outcome(card.recv()) for _ in range(3)]
    seen.append(await streams(peer, 0, 0))
    return seen


async def silent(peer: Peer) -> list[str]:
    await ready(peer)
    state, session = peer.link.open_state(), await greeted(peer)
    await session.send(NAMELESS)
    seen = [await outcome(s.recv()) for s in (state, session)]
    peer.stop()
    seen += await asyncio.gather(*(outcome(s.recv()) for s in (state, session)))
    seen.append(await outcome(session.send(NAMELESS)))
    seen += [await outcome(peer.link.open_state().recv()) for _ in range(2)]
    peer.go_on()
    await ready(peer)
    seen.append(await streams(peer, 0, 0))
    return seen


async def silent_for_a_moment(peer: Peer) -> list[str]:
    await ready(peer)
    state = peer.link.open_state()
    seen = [await outcome(state.recv())]
    session = await greeted(peer)
    peer.stop()
    await session.send(NAMELESS)
    reading = asyncio.create_task(outcome(session.recv()))
    await asyncio.sleep(1.0)
    peer.go_on()
    seen += [await reading, await streams(peer, 1, 1)]
    return seen


async def cancelled_reader(peer: Peer) -> list[str]:
    await ready(peer)
    state, session = peer.link.open_state(), await greeted(peer)
    await session.send(NAMELESS)
    seen = [await outcome(s.recv()) for s in (state, session)]
    reading = asyncio.create_task(session.recv())
    await asyncio.sleep(0.1)
    reading.cancel()
    seen.append(await outcome(reading))
    seen += [await outcome(session.recv()), await outcome(session.send(NAMELESS))]
    seen.append(await streams(peer, 0, 1))
    reading = asyncio.create_task(state.recv())
    await asyncio.sleep(0.1)
    seen.append("still reading" if not reading.done() else "ended")
    reading.cancel()
    await outcome(reading)
    seen.append(await streams(peer, 0, 0))
    return seen


async def closed_here(peer: Peer) -> list[str]:
    await ready(peer)
    state, session = peer.link.open_state(), await greeted(peer)
    await session.send(NAMELESS)
    seen = [await outcome(s.recv()) for s in (state, session)]
    readings = [asyncio.create_task(outcome(s.recv())) for s in (state, session)]
    await asyncio.sleep(0.1)
    for stream in (state, session, session):
        stream.close()
    seen += [await r for r in readings]
    seen += [await outcome(session.recv()), await outcome(session.send(NAMELESS))]
    seen.append(await streams(peer, 0, 0))
    unused = peer.link.open_session()
    unused.close()
    seen += [await outcome(unused.recv()), await outcome(unused.send(NAMELESS))]
    await peer.link.close()
    return seen


async def link_closed(peer: Peer) -> list[str]:
    await ready(peer)
    state, session = peer.link.open_state(), await greeted(peer)
    seen = [await outcome(state.recv())]
    readings = [asyncio.create_task(outcome(s.recv())) for s in (state, session)]
    await asyncio.sleep(0.1)
    await peer.link.close()
    return seen + [await r for r in readings]


Row: TypeAlias = Callable[[Peer], Awaitable[list[str]]]
DATA, END, LOST = "data at once", "end at once", "lost at once"
ROWS: dict[Row, list[str]] = {
    loading: [LOST, LOST, DATA],
    kill: [DATA, DATA, *[LOST] * 9],
    quiet: ["quiet", "data at once"],
    clean_end: [END, END, END, LOST, DATA, END, END, "known"],
    silent: [DATA, DATA, "lost", "lost", LOST, LOST, LOST, "known"],
    silent_for_a_moment: [DATA, DATA, "known"],
    cancelled_reader: [
        DATA,
        DATA,
        "cancelled at once",
        LOST,
        LOST,
        "known",
        "still reading",
        "known",
    ],
    closed_here: [DATA, DATA, LOST, LOST, LOST, LOST, "known", LOST, LOST],
    link_closed: [DATA, LOST, LOST],
}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_real_grpc_behaves_like_the_table(row: Row, shared: RealPeer) -> None:
    peer = RealPeer() if row in (loading, kill) else shared

    async def main() -> list[str]:
        peer.link = GrpcLink(peer.address)
        try:
            return await row(peer)
        finally:
            await peer.link.close()

    try:
        assert asyncio.run(main()) == ROWS[row]
    finally:
        if peer is not shared:
            peer.end()


def run_in_model(row: Row, seed: int, trace: Callable[[float, str], object]) -> list[str]:
    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        loop.trace = trace
        peer = SimPeer(Net(loop, random.Random(seed)))
        await asyncio.sleep(0.001)
        return await row(peer)

    return run(main, rng=random.Random(seed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
def test_the_model_behaves_like_the_table(row: Row, seed: int) -> None:
    assert run_in_model(row, seed, lambda _at, _name: None) == ROWS[row]


def trace_of(seed: int) -> str:
    """Returns a digest of every task's every step in all rows."""
    digest = hashlib.sha256()
    for row in ROWS:
        run_in_model(row, seed, lambda at, name: digest.update(f"{at} {name}\n".encode()))
    return digest.hexdigest()


def test_the_model_has_the_same_trace_in_another_process() -> None:
    code = "from tests.sim.test_link_conformance import trace_of; print(trace_of(1), trace_of(2))"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**ENVIRONMENT, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    traces = [trace_of(1), trace_of(2)]
    assert child.stdout.split()[-2:] == traces  # log lines come before
    assert traces[0] != traces[1]
