"""Sends a workload to an OpenAI-compatible server and keeps what came back, and when.

Bytes are stamped as they arrive and read only after the run (see answer.py): the client shares the
machine with the server, and whatever it computes meanwhile is taken from what it measures.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import aiohttp
import msgspec

from bench.workloads import WorkItem, Workload


class PromptForm(StrEnum):
    """How a prompt is put to the server."""

    IDS = "ids"
    """Token ids to /v1/completions: no tokenizer, no template."""
    TEXT = "text"
    """Text to /v1/completions: the same tokens, tokenised by the server."""
    CHAT = "chat"
    """Messages to /v1/chat/completions: the template adds a few tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server and how it is spoken to."""

    url: str
    model: str
    form: PromptForm = PromptForm.IDS
    timeout_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and the raw bytes of its answer. Times are seconds of one clock."""

    begin: float
    """When it was sent, in an open loop when it was due."""
    end: float
    status: int
    """HTTP status; 0 when there was no answer."""
    reads: tuple[tuple[float, bytes], ...]
    """Pieces of the body with the time each arrived."""
    failure: str
    """What the transport said; empty when it was sound."""


async def drive(endpoint: Endpoint, workload: Workload) -> list[Exchange]:
    """Sends all requests and returns their exchanges in the workload's order."""
    bodies = [body(endpoint, item) for item in workload.items]
    slots = asyncio.Semaphore(workload.concurrency or len(bodies))
    # Some servers drop idle connections, so each request has its own.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=endpoint.timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        start = time.perf_counter()

        async def send_in_turn(item: WorkItem, content: bytes) -> Exchange:
            if workload.concurrency is not None:
                async with slots:
                    return await _send(session, endpoint, content, begin=time.perf_counter())
            due = start + item.arrival_s
            await asyncio.sleep(due - time.perf_counter())
            return await _send(session, endpoint, content, begin=due)

        work = zip(workload.items, bodies, strict=True)
        return await asyncio.gather(*(send_in_turn(item, content) for item, content in work))


async def first_model(url: str) -> str:
    """Returns the first model that the server lists.

    Raises:
        aiohttp.ClientError: no server, or not one of this kind.
        msgspec.MsgspecError: it lists none.
    """
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(f"{url}/v1/models") as response,
    ):
        return msgspec.json.decode(await response.read(), type=_ModelList).data[0].id


def body(endpoint: Endpoint, item: WorkItem) -> bytes:
    """Returns the JSON of one request."""
    asked: dict[str, object] = {
        "model": endpoint.model,
        "max_tokens": item.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    match endpoint.form:
        case PromptForm.IDS:
            asked["prompt"] = item.prompt.ids
        case PromptForm.TEXT:
            asked["prompt"] = item.prompt.text
        case PromptForm.CHAT:
            system = [{"role": "system", "content": item.shared.text}] if item.shared.ids else []
            asked["messages"] = [*system, {"role": "user", "content": item.own.text}]
    return msgspec.json.encode(asked)


async def _send(
    session: aiohttp.ClientSession, endpoint: Endpoint, content: bytes, *, begin: float
) -> Exchange:
    path = "chat/completions" if endpoint.form is PromptForm.CHAT else "completions"
    reads: list[tuple[float, bytes]] = []
    status, failure = 0, ""
    headers = {"Content-Type": "application/json"}
    try:
        async with session.post(
            f"{endpoint.url}/v1/{path}", data=content, headers=headers
        ) as response:
            status = response.status
            async for data in response.content.iter_any():
                reads.append((time.perf_counter(), data))  # noqa: PERF401 (the stamp is per read)
    except (aiohttp.ClientError, TimeoutError) as error:
        failure = repr(error)
    end = time.perf_counter()
    return Exchange(begin=begin, end=end, status=status, reads=tuple(reads), failure=failure)


class _Model(msgspec.Struct):
    id: str


class _ModelList(msgspec.Struct):
    data: Annotated[list[_Model], msgspec.Meta(min_length=1)]
