"""Clients that leave, stall or dawdle: the engine stops for them, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress

import pytest
from tests.faults.conftest import Shared
from tests.faults.deployment import Deployment
from tests.faults.figures import milliseconds, record
from tests.faults.proxy import Drip, Plan, Proxy, Way
from tests.faults.stream_client import ask
from tests.faults.workload import Body, body

RUNNING = "vllm:num_requests_running"


def raw_request(asked: Body) -> bytes:
    content = json.dumps(asked).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def connect(d: Deployment, asked: Body) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", d.gateway.port)
    writer.write(raw_request(asked))
    await writer.drain()
    return reader, writer


async def running(d: Deployment) -> float:
    """Returns the choices that run on all engines together."""
    return sum([await e.metric(RUNNING) for e in d.engines])


async def until_running(d: Deployment, count: int, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while await running(d) != count:
            await asyncio.sleep(0.01)


def slam(writer: asyncio.StreamWriter) -> None:
    """Closes with a reset, as a crashed client's kernel does."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize("leave", [hang_up, slam])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_who_leaves_frees_the_engine(
    shared: Shared, leave: Callable[[asyncio.StreamWriter], None], stream: bool
) -> None:
    async def scenario(d: Deployment) -> None:
        asked = body(0, 3500, stream=stream)
        if not stream:
            del asked["stream_options"]
        reader, writer = await connect(d, asked)
        await until_running(d, 1)
        if stream:
            await reader.readuntil(b"data: ")
        leave(writer)
        async with asyncio.timeout(5):
            for engine in d.engines:
                await engine.blocks_free()

    shared.run(scenario)


def test_who_leaves_while_waiting_for_a_place(shared: Shared) -> None:
    """Before any token: the engines are stopped, so nothing can have come."""

    async def scenario(d: Deployment) -> None:
        for engine in d.engines:
            d.stop(engine)
        _, writer = await connect(d, body(0, 3000))
        await asyncio.sleep(0.3)
        slam(writer)
        async with asyncio.timeout(5):
            while await d.gateway.metric("octavo_gateway_requests_in_flight"):
                await asyncio.sleep(0.02)
        for engine in d.engines:
            d.resume(engine)
        await d.gateway.engines("ready", 2)

    shared.run(scenario)


@pytest.mark.faults
def test_a_client_that_never_reads_costs_bounded_memory(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        before = d.gateway.usage.memory_info().rss
        writers = []
        for i in range(20):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(sock, ("127.0.0.1", d.gateway.port))
            await loop.sock_sendall(sock, raw_request(body(2 + 10 * i, 600, logprobs=20)))
            writers.append(sock)
        neighbour = await d.ask(body(5, 100))
        assert neighbour.ok
        # Either the answers fit into bounded buffers, or their clients are given up as slow.
        async with asyncio.timeout(60):
            while not all([await e.idle() for e in d.engines]):
                await asyncio.sleep(0.05)
        grown = d.gateway.usage.memory_info().rss - before
        record("never_reads", clients=20, grown_mb=round(grown / 1e6, 1))
        assert grown < 20 * 12e6
        for sock in writers:
            sock.close()

    shared.run(scenario)


def test_a_client_that_dawdles_gets_the_same_bytes(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        asked = body(3, 120)
        expected = await d.ask(asked)
        async with Proxy(
            d.gateway.port, lambda _: Plan(to_client=Drip(600, 0.02), to_server=Drip(50, 0.001))
        ) as proxy:
            slow = asyncio.create_task(ask(d.session, f"http://{proxy.address}", asked))
            quick = await d.ask(asked)
            answer = await slow
        assert answer.content == quick.content == expected.content

    shared.run(scenario)


def test_a_body_that_never_ends_hurts_nobody(shared: Shared) -> None:
    async def scenario(d: Deployment) -> None:
        writers = []
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", d.gateway.port)
            writer.write(raw_request(body(0, 10))[:200])
            writers.append(writer)
        assert (await d.ask(body(0, 10))).ok
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    shared.run(scenario)


@pytest.mark.faults
def test_aborts_free_their_blocks(shared: Shared) -> None:
    """Fifty clients leave at drawn moments; the engine's own word tells when nothing is held."""

    async def scenario(d: Deployment) -> None:
        rng = random.Random(1)
        times = []
        for i in range(50):
            reader, writer = await connect(d, body(10 * i, 3500, prompt=[7] * rng.randrange(2000)))
            await reader.readuntil(b"data: ")
            await asyncio.sleep(rng.uniform(0, 0.2))
            slam(writer)
            left = time.perf_counter()
            async with asyncio.timeout(10):
                free = [await engine.blocks_free() for engine in d.engines]
            times.append(max(free) - left)
        step_s = sum([await e.metric("octavo:step_seconds_sum") for e in d.engines]) / sum(
            [await e.metric("octavo:step_seconds_count") for e in d.engines]
        )
        record(
            "abort_to_blocks_free", aborts=len(times), ms=milliseconds(times),
            mean_step_ms=round(1e3 * step_s, 2),
        )  # fmt: skip
        assert max(times) < 5

    shared.run(scenario)


@pytest.mark.faults
def test_a_client_that_vanishes_is_noticed(shared: Shared) -> None:
    """Its kernel acknowledges nothing more; the gateway's own socket has to give up."""

    async def scenario(d: Deployment) -> None:
        async with Proxy(d.gateway.port) as proxy:
            asking = asyncio.create_task(
                ask(d.session, f"http://{proxy.address}", body(2, 3500, logprobs=20))
            )
            await until_running(d, 1)
            proxy.hold(Way.TO_CLIENT)
            await d.idle(timeout_s=90)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    shared.run(scenario)
