from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from octavo.gateway import connection as module
from octavo.gateway.connection import Connection

HEAD_S = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(10 if scope["path"] == "/slow" else 1):
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        await asyncio.sleep(HEAD_S / 4 if scope["path"] == "/slow" else 0)
    await send({"type": "http.response.body", "body": b"."})


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with serving() as (_, reader, writer):
        yield reader, writer


@asynccontextmanager
async def serving() -> AsyncIterator[
    tuple[uvicorn.Server, asyncio.StreamReader, asyncio.StreamWriter]
]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, http=Connection, lifespan="off", log_level="critical")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.005)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            yield server, reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await task


def run(scenario: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", HEAD_S)
    asyncio.run(asyncio.wait_for(scenario(), 20))


def request(path: str = "/") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("begun", [b"", b"GET / HT", request()[:-1]], ids=["none", "some", "most"])
def test_whoever_sends_no_whole_head_is_cut_off(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            writer.write(begun)
            assert await is_cut_off(reader)

    run(scenario, monkeypatch)


def test_a_letter_now_and_then_is_no_help(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            cut = asyncio.create_task(is_cut_off(reader))
            writer.write(b"GET / HTTP/1.1\r\nX: ")
            while not cut.done():
                writer.write(b"a")
                await asyncio.sleep(HEAD_S / 10)
            assert cut.result()

    run(scenario, monkeypatch)


def test_neither_long_answers_nor_idle_connections_are_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            for path in ("/slow", "/"):
                writer.write(request(path))
                assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
                await asyncio.sleep(2 * HEAD_S)

    run(scenario, monkeypatch)


def test_the_next_request_of_a_connection_has_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            writer.write(request())
            await reader.readuntil(b"0\r\n\r\n")
            await asyncio.sleep(2 * HEAD_S)
            writer.write(request()[:-2])
            assert await is_cut_off(reader)

    run(scenario, monkeypatch)


def test_a_begun_request_does_not_cut_off_the_answer_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with connected() as (reader, writer):
            writer.write(request("/slow") + b"GET /")
            assert (await reader.readuntil(b"0\r\n\r\n")).count(b"part") == 10
            assert await is_cut_off(reader)

    run(scenario, monkeypatch)


async def shut_down(server: uvicorn.Server, writer: asyncio.StreamWriter) -> None:
    """Begins a shutdown; returns when nobody listens any more."""
    address = writer.get_extra_info("peername")
    server.should_exit = True
    while True:
        try:
            _, other = await asyncio.open_connection(*address)
            other.close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # in the moment itself
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("before", ["nothing", "an answer", "half an answer", "half a head"])
def test_a_client_that_asks_while_the_server_shuts_down_is_answered(
    before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        asked = request()
        async with serving() as (server, reader, writer):
            if before == "an answer":
                writer.write(request())
                await reader.readuntil(b"0\r\n\r\n")
            elif before == "half an answer":
                writer.write(request("/slow"))
                await reader.readuntil(b"part")
            elif before == "half a head":
                writer.write(asked[:9])
                asked = asked[9:]
            await shut_down(server, writer)
            if before == "half an answer":
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(asked)
            assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")

    monkeypatch.setattr(module, "LAST_REQUEST_S", 60)
    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.parametrize("silence_s", [0.0, 0.2])
def test_a_client_that_is_silent_holds_up_no_shutdown(
    silence_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving() as (server, reader, writer):
            writer.write(request())
            await reader.readuntil(b"0\r\n\r\n")
            await shut_down(server, writer)
            assert await is_cut_off(reader)

    monkeypatch.setattr(module, "LAST_REQUEST_S", silence_s)
    asyncio.run(asyncio.wait_for(scenario(), 20))
