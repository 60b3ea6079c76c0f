"""Clients that leave, stall or flood, on raw sockets against a gateway process."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import struct
from asyncio.subprocess import Process
from collections.abc import Awaitable

import httpx
import psutil
import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.harness import until
from tests.gateway.script import Script
from tests.gateway.test_process import chat, ready, serving

from octavo.v1 import engine_pb2

MB = 1024 * 1024
RESET = struct.pack("ii", 1, 0)


class Flood(FakeEngine):
    """Sends long deltas to those who ask for many tokens, until they are cancelled."""

    async def _generate(self, session, request, script) -> None:  # type: ignore[no-untyped-def]
        if request.max_tokens < 1000:
            await super()._generate(session, request, script)
            return
        position = 0
        while True:
            delta = engine_pb2.Delta(
                request_id=request.request_id,
                attempt=request.attempt,
                position=position,
                token_ids=[65],
                text="x" * 8192,
            )
            session.outbox.put_nowait(engine_pb2.SessionUpdate(deltas=[delta]))
            position += 1
            await asyncio.sleep(0.004)
            while session.outbox.qsize() > 200:
                await asyncio.sleep(0.002)


def request_bytes(client: httpx.AsyncClient, *, claimed: int = 0, **fields: object) -> bytes:
    body = json.dumps(chat(**fields)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost:{client.base_url.port}\r\n"
        f"Content-Length: {claimed or len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """A raw connection that reads only what it is told to."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.socket = socket.create_connection(("127.0.0.1", client.base_url.port))
        self.socket.setblocking(False)
        opened.append(self)

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def read(self, size: int = 65536) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.socket, size)

    async def answer(self) -> tuple[int, bytes]:
        """Returns the status of an answer and what has come of it."""
        data = b""
        while b"\r\n\r\n" not in data:
            part = await self.read()
            assert part, data
            data += part
        return int(data.split()[1]), data

    def close(self) -> None:
        self.socket.close()

    def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)


LEAVES = (Connection.close, Connection.reset, Connection.half_close)


opened: list[Connection] = []


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(EVENTUALLY_S):
            await scenario

    try:
        asyncio.run(bounded())
    finally:
        while opened:
            opened.pop().close()


def rss(process: Process) -> int:
    return psutil.Process(process.pid).memory_info().rss


async def metric(client: httpx.AsyncClient, name: str) -> float:
    found = re.search(rf"^octavo_gateway_{name} (\S+)$", (await client.get("/metrics")).text, re.M)
    assert found, name
    return float(found[1])


async def drained(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while await metric(client, "requests_in_flight") or await metric(client, "body_bytes"):
            await asyncio.sleep(0.02)


async def complete(client: httpx.AsyncClient, **fields: object) -> str:
    """Streams an answer and returns its text; it must end properly."""
    body = chat(stream=True, **fields)
    text = ""
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line[6:])["choices"][0]["delta"].get("content", "")
    assert line in ("", "data: [DONE]")
    return text


def test_one_who_leaves_before_the_first_token_ends_the_work_at_once() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(first_delay_s=30)).start()
        async with serving(engine) as (_, client):
            await ready(client)
            for leave, stream in itertools.product(LEAVES, (True, False)):
                connection = Connection(client)
                await connection.send(request_bytes(client, stream=stream))
                await until(lambda: engine.num_running == 1)
                leave(connection)
                await until(lambda: engine.num_running == 0, timeout_s=1.0)
            await drained(client)

    run(scenario())


def test_one_who_leaves_in_mid_stream_ends_the_work_at_once() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(tokens=4000, delay_s=0.05)).start()
        async with serving(engine) as (_, client):
            await ready(client)
            for leave in LEAVES:
                connection = Connection(client)
                await connection.send(request_bytes(client, stream=True))
                assert (await connection.answer())[0] == 200
                leave(connection)
                await until(lambda: engine.num_running == 0, timeout_s=1.0)
            await drained(client)

    run(scenario())


def test_one_who_leaves_while_sending_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with serving(await FakeEngine().start()) as (_, client):
            await ready(client)
            for leave in LEAVES:
                connection = Connection(client)
                await connection.send(request_bytes(client, claimed=MB))
                while not await metric(client, "body_bytes"):
                    await asyncio.sleep(0.01)
                leave(connection)
                await drained(client)

    run(scenario())


@pytest.mark.parametrize("reads", [0, 1], ids=["nothing", "a byte at a time"])
def test_those_who_hardly_read_cost_bounded_memory_and_then_lose_their_streams(reads: int) -> None:
    async def scenario() -> None:
        engine = await Flood().start()
        async with serving(engine) as (process, client):
            await ready(client)
            await complete(client)
            before = peak = rss(process)
            slow = [Connection(client) for _ in range(4)]
            for connection in slow:
                await connection.send(request_bytes(client, stream=True, max_tokens=4000))
            async with asyncio.timeout(EVENTUALLY_S):
                while len(engine.cancelled) < len(slow):
                    peak = max(peak, rss(process))
                    for connection in slow if reads else []:
                        await connection.read(reads)
                    await asyncio.sleep(0.05)
            assert peak - before < len(slow) * 16 * MB
            assert await complete(client)
            await drained(client)
            log = (await client.get("/metrics")).text
            assert re.search(r'requests_total\{.*finish="OCT-2008".*\} 4.0', log)

    run(scenario())


def test_when_memory_ends_slow_readers_go_and_streams_that_are_read_go_on() -> None:
    async def scenario() -> None:
        engine = await Flood().start()
        async with serving(engine) as (probe, client):
            await ready(client)
            undisturbed = await complete(client, seed=1, max_tokens=300)
            memory = psutil.Process(probe.pid).memory_full_info()
            used = memory.rss - memory.shared
        engine = await Flood(script=lambda _: Script(delay_s=0.02)).start()
        limit = used + 48 * MB
        async with serving(engine, flags=("--memory-limit-bytes", str(limit))) as (process, client):
            await ready(client)
            reading = [
                asyncio.create_task(complete(client, seed=1, max_tokens=300)) for _ in range(5)
            ]
            slow = [Connection(client) for _ in range(12)]
            for connection in slow:
                await connection.send(request_bytes(client, stream=True, max_tokens=4000))
            refused = 0
            while len(engine.cancelled) < len(slow):
                memory = psutil.Process(process.pid).memory_full_info()
                assert memory.rss - memory.shared < limit
                answer = await client.post("/v1/chat/completions", json=chat(priority=5))
                if answer.status_code == 429:
                    refused += 1
                    assert answer.json()["error"]["code"] == "overloaded"
                    assert int(answer.headers["retry-after"]) >= 1
                await asyncio.sleep(0.02)
            assert refused
            assert await asyncio.gather(*reading) == [undisturbed] * 5
            async with asyncio.timeout(EVENTUALLY_S):
                while await metric(client, "overload_level"):
                    await asyncio.sleep(0.05)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    run(scenario())


def test_many_slow_uploads_cannot_take_more_memory_than_all_bodies_may() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        flags = ("--max-body-bytes-total", str(16 * MB))
        async with serving(engine, flags=flags) as (process, client):
            await ready(client)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
            before = rss(process)
            uploads = [Connection(client) for _ in range(100)]
            for connection in uploads:
                await connection.send(request_bytes(client, claimed=30 * MB))
            for _ in range(4):
                sending = [c.send(b" " * (MB // 8)) for c in uploads]
                await asyncio.gather(*sending, return_exceptions=True)
                assert await metric(client, "body_bytes") <= 16 * MB
                assert rss(process) - before < 48 * MB
                answer = await client.post("/v1/chat/completions", json=chat())
                assert answer.status_code == 200
            metrics = (await client.get("/metrics")).text
            ended = re.search(r'requests_shed_total\{kind="upload"\} (\d+)', metrics)
            assert ended
            assert 50 <= int(ended[1]) <= 90
            for connection in uploads:
                connection.close()
            await drained(client)

    run(scenario())


def test_beyond_the_cap_a_request_is_refused_before_its_body_has_come() -> None:
    async def scenario() -> None:
        go = asyncio.Event()
        engine = await FakeEngine(script=lambda _: Script(go=go)).start()
        async with serving(engine, flags=("--max-requests", "2")) as (_, client):
            await ready(client)
            running = [asyncio.create_task(complete(client)) for _ in range(2)]
            await until(lambda: engine.num_running == 2)
            connection = Connection(client)
            await connection.send(request_bytes(client, claimed=30 * MB))
            status, answer = await connection.answer()
            assert status == 429
            assert re.search(rb"retry-after: \d+\r\n", answer)
            assert (await client.get("/healthz")).status_code == 200
            go.set()
            assert await asyncio.gather(*running)
            assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200

    run(scenario())
