"""A server that answers in the OpenAI way from a script; runs in a thread of its own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

DONE = b"data: [DONE]\n\n"


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def text_event(text: str) -> bytes:
    return event({"choices": [{"index": 0, "text": text}]})


def usage_event(prompt: int, completion: int, cached: int) -> bytes:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return event({"choices": [], "usage": counts | {"prompt_tokens_details": details}})


@dataclass
class StandIn:
    pieces: Sequence[bytes]
    """Body of every answer, each written on its own after `pause_s`."""
    pause_s: float = 0.0
    status: int = 200
    hold_until: int = 1
    """Answers begin once so many requests have been under way together."""
    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.path, await request.json()))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        while self.most_under_way < self.hold_until:
            await asyncio.sleep(0.001)
        response = web.StreamResponse(status=self.status)
        await response.prepare(request)
        for piece in self.pieces:
            await asyncio.sleep(self.pause_s)
            await response.write(piece)
        self.under_way -= 1
        return response

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "stand-in"}]})


@contextmanager
def served(server: StandIn) -> Iterator[StandIn]:
    """Serves on a free port of loopback, which `server.url` then names."""
    ready, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", server.models)
        app.router.add_post("/v1/completions", server.generate)
        app.router.add_post("/v1/chat/completions", server.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
