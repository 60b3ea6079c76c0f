"""The stream as bytes on a real socket, and its timing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
import uvicorn
from tests.gateway.api.scripted import Step, World, says

from octavo.gateway.api import answer as module
from octavo.gateway.dispatch import Call
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    ENGINE_FAILURE,
    QUEUE_FULL,
    SLOW_CLIENT,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)

DONE = b"data: [DONE]\n\n"


@contextlib.asynccontextmanager
async def serving(world: World) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        world.app, http="httptools", loop="none", lifespan="off", log_level="critical"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await task
        listener.close()


async def raw(port: int, body: dict[str, Any], *, path: str = "/v1/chat/completions") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes(port, body, path=path))
    data = await reader.read()
    writer.close()
    await writer.wait_closed()
    return data


def request_bytes(port: int, body: dict[str, Any], *, path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], **more}


def breaks_after(text: str) -> Any:
    def script(call: Call) -> Iterable[Step]:
        for step in says(text)(call):
            assert isinstance(step, engine_pb2.Delta)
            if step.finish_reason:
                yield 0.01
                yield OctavoError(ENGINE_FAILURE)
            yield step

    return script


def test_a_stream_ends_with_one_done_and_a_last_chunk() -> None:
    async def run() -> bytes:
        async with serving(World()) as port:
            return await raw(port, chat(stream=True))

    data = asyncio.run(run())
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"transfer-encoding: chunked" in head
    assert body.count(b"[DONE]") == 1
    assert body.endswith(DONE + b"\r\n0\r\n\r\n")


@pytest.mark.parametrize("text", ["Hello there", "안녕하세요 👋🏽"])
def test_a_lost_stream_has_one_error_event_no_done_and_an_incomplete_body(text: str) -> None:
    async def run() -> bytes:
        async with serving(World(breaks_after(text))) as port:
            return await raw(port, chat(stream=True))

    data = asyncio.run(run())
    assert data.startswith(b"HTTP/1.1 200")
    assert data.count(b'data: {"error":') == 1
    assert b'"code":"engine_failure"' in data
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")
    assert data.endswith(b"}}\n\n\r\n")


def test_a_generation_that_just_ends_is_a_lost_stream_too() -> None:
    def script(call: Call) -> Iterable[Step]:
        yield engine_pb2.Delta(text="a", token_ids=[4])
        yield 0.01

    response = World(script).chat(stream=True)
    assert response.status == 200
    assert response.chunks[-1]["error"]["code"] == "engine_failure"
    assert not response.complete
    assert World(script).chat().status == 502


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_38_an_error_before_the_first_token_is_an_http_error(stream: bool) -> None:
    def script(call: Call) -> Iterable[Step]:
        yield OctavoError(QUEUE_FULL, queued=9, limit=9, unit="requests", retry_after_ms=2100)

    response = World(script).chat(stream=stream)
    assert response.status == 503
    assert response.headers["retry-after"] == "3"
    assert response.error["code"] == "queue_full"
    assert response.error["octavo"]["code"] == "OCT-2002"
    assert response.headers["content-type"] == "application/json"


def test_36_a_priority_that_the_engine_would_ignore_is_a_bad_request() -> None:
    def script(call: Call) -> Iterable[Step]:
        yield OctavoError(UNSUPPORTED_PARAMETER, param="priority", reason="it serves by arrival")

    response = World(script).chat(priority=1)
    assert (response.status, response.error["code"]) == (400, "unsupported_parameter")
    assert response.error["param"] == "priority"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_prompt_too_long_is_the_overflow_error_before_any_200(stream: bool) -> None:
    response = World().chat("word " * 600, stream=stream)
    assert response.status == 400
    error = response.error
    assert (error["type"], error["code"]) == ("invalid_request_error", "context_length_exceeded")
    assert error["param"] == "messages"
    assert "This model's maximum context length is 512 tokens" in error["message"]
    assert "reduce the length of the messages" in error["message"]


def test_silence_is_filled_with_comments_after_the_first_delta() -> None:
    def script(call: Call) -> Iterable[Step]:
        first, *rest = says("Hello there")(call)
        yield from (first, 0.35, *rest)

    response = World(script, heartbeat_s=0.1).chat(stream=True)
    assert 2 <= response.body.count(b": keep-alive\n\n") <= 4
    assert response.body.endswith(DONE)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in response.chunks) == (
        "Hello there"
    )


def test_deltas_without_text_do_not_keep_a_silent_stream_from_its_comments() -> None:
    def script(call: Call) -> Iterable[Step]:
        for _ in range(5):
            yield 0.05
            yield engine_pb2.Delta(token_ids=[5])
        yield from says("Hello")(call)

    response = World(script, heartbeat_s=0.1).chat(stream=True)
    assert response.body.count(b": keep-alive\n\n") >= 1


def test_headers_go_out_after_the_hold_and_then_errors_are_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.2)

    def script(call: Call) -> Iterable[Step]:
        yield 0.5
        yield OctavoError(ENGINE_FAILURE)

    response = World(script, heartbeat_s=0.1).chat(stream=True)
    assert response.status == 200
    assert response.body.startswith(b": keep-alive\n\n")
    assert response.body.count(b": keep-alive") >= 2
    assert response.chunks[-1]["error"]["code"] == "engine_failure"
    assert not response.complete


def test_headers_wait_for_the_first_delta() -> None:
    def script(call: Call) -> Iterable[Step]:
        yield 0.4
        yield OctavoError(ENGINE_FAILURE)

    response = World(script, heartbeat_s=0.1).chat(stream=True)
    assert response.status == 502


def test_headers_of_a_stream() -> None:
    script = says("Hello there", cached=16)
    headers = World(script).chat(stream=True, user="u", max_tokens=10_000).headers
    assert headers["x-octavo-cached-tokens"] == "16"
    assert headers["server-timing"].startswith("first;dur=")
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-octavo-route"] == "engine-a; hit=16/32; seconds=0.5000; runner-up=engine-b"
    assert headers["x-octavo-ignored"] == "user"
    assert headers["x-octavo-clamped"].startswith("max_tokens=")
    assert headers["x-request-id"] == headers["request-id"]
    assert "content-encoding" not in headers


def test_headers_of_an_answer_in_one_piece() -> None:
    world = World(says("Hi", cached=16))
    response = world.chat()
    headers = response.headers
    assert headers["x-octavo-cached-tokens"] == "16"
    assert headers["server-timing"] == "queue;dur=1.5, prefill;dur=20.2, decode;dur=30.0"
    assert headers["x-request-id"] == world.dispatcher.generations[0].id
    assert int(headers["content-length"]) == len(response.body)
    assert "x-octavo-ignored" not in headers
    assert "x-octavo-clamped" not in headers


def test_two_requests_with_one_client_id_are_both_served() -> None:
    world = World()
    ids = [world.chat(headers={"x-request-id": "same"}).headers["x-request-id"] for _ in "ab"]
    assert len({*ids, "same"}) == 3
    assert [c.client_label for c in world.dispatcher.calls] == ["same", "same"]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_a_real_socket_ends_the_generation(stream: bool) -> None:
    def script(call: Call) -> Iterable[Step]:
        yield engine_pb2.Delta(text="a", token_ids=[4])
        yield 30.0

    async def run() -> float:
        world = World(script)
        async with serving(world) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes(port, chat(stream=stream)))
            while not world.dispatcher.generations:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            writer.close()
            start = asyncio.get_running_loop().time()
            while not world.dispatcher.generations[0].closed:
                await asyncio.sleep(0.005)
            return asyncio.get_running_loop().time() - start

    assert asyncio.run(run()) < 10.0


def test_a_slow_reader_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def script(call: Call) -> Iterable[Step]:
        for position in range(100_000):
            yield engine_pb2.Delta(text="x" * 2000, token_ids=[4], position=position)
            yield 0.0

    async def run() -> OctavoError | None:
        world = World(script)
        async with serving(world) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(request_bytes(port, chat(stream=True)))
            while not (world.dispatcher.generations and world.dispatcher.generations[0].closed):
                await asyncio.sleep(0.01)
            writer.transport.abort()
        return world.dispatcher.generations[0].failure

    monkeypatch.setattr("octavo.gateway.api.running.MAX_PENDING_BYTES", 400_000)
    failure = asyncio.run(asyncio.wait_for(run(), 20))
    assert failure is not None
    assert failure.kind is SLOW_CLIENT


def test_an_answer_in_one_piece_may_be_larger_than_what_a_slow_client_may_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.gateway.api.running.MAX_PENDING_BYTES", 10)
    assert World(says("Hello there")).chat().status == 200
