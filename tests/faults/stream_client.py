"""A client that keeps each piece of an answer with its time, and how the answer ended."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
from tests.faults.workload import Body


@dataclass(slots=True)
class Choice:
    """What one choice said, put together."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[object] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: object = None


@dataclass(slots=True)
class Answer:
    """One answer. Two with equal `content` are the same bytes but for ids, times and cuts."""

    status: int = 0
    """Zero: the connection broke before any answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str = ""
    """Code of the error, in a body or in an event."""
    done: bool = False
    """Whether [DONE] came."""
    num_comments: int = 0
    """Comments that kept a silent stream alive."""
    whole: bool = False
    """Whether the body ended as HTTP wants it."""
    broken: str = ""
    """How the connection broke, in the client's words."""
    usage: Mapping[str, object] = field(default_factory=dict)
    begin: float = 0.0
    token_times: list[float] = field(default_factory=list)
    """When each event with tokens arrived."""

    @property
    def ok(self) -> bool:
        """Whether it is complete and without an error."""
        return self.status == 200 and self.done and self.whole and not self.error

    @property
    def content(self) -> object:
        """All that must not depend on faults."""
        choices = [
            (i, c.text, c.ids, c.logprobs, c.finish_reason, c.stop_reason)
            for i, c in sorted(self.choices.items())
        ]
        return choices, self.prompt_tokens, self.completion_tokens

    @property
    def route(self) -> tuple[str, int]:
        """The engine that was chosen first, and the prompt tokens it was said to hold."""
        engine, hit = self.headers["X-Octavo-Route"].split("; ")[:2]
        return engine, int(hit.removeprefix("hit=").partition("/")[0])

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the engine really had."""
        details = msgspec.convert(self.usage["prompt_tokens_details"], dict[str, int])
        return details["cached_tokens"]

    @property
    def ttft_s(self) -> float:
        """Until the first token."""
        return self.token_times[0] - self.begin if self.token_times else float("inf")

    @property
    def gaps_s(self) -> list[float]:
        """Between events with tokens."""
        return [b - a for a, b in itertools.pairwise(self.token_times)]


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    body: Body,
    headers: Mapping[str, str] | None = None,
    *,
    on_first: Callable[[Answer], None] = lambda _: None,
) -> Answer:
    """Sends a completion request and reads the answer to its end, however it ends.

    Args:
        session: keeps connections.
        url: of the gateway.
        body: the request.
        headers: more headers.
        on_first: called once, with the first piece of the body or at the end without one.
    """
    answer = Answer(begin=time.perf_counter())
    reads: list[tuple[float, bytes]] = []
    try:
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
            answer.status, answer.headers = response.status, response.headers
            async for piece in response.content.iter_any():
                reads.append((time.perf_counter(), piece))
                if len(reads) == 1:
                    on_first(answer)
        answer.whole = True
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        answer.broken = repr(error)
    if not reads:
        on_first(answer)
    kind = answer.headers.get("Content-Type", "").partition(";")[0]
    if kind == "text/event-stream":
        _read_events(answer, reads)
    elif kind == "application/json" and answer.whole:
        _take(answer, msgspec.json.decode(b"".join(data for _, data in reads)), 0.0)
        answer.done = not answer.error
    return answer


def _read_events(answer: Answer, reads: Sequence[tuple[float, bytes]]) -> None:
    rest = b""
    for when, data in reads:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                answer.done = True
            elif event.startswith(b"data: "):
                _take(answer, msgspec.json.decode(event[6:]), when)
            elif event.startswith(b":"):
                answer.num_comments += 1
            elif event:
                raise AssertionError(f"not an event: {event!r}")


class _Choice(msgspec.Struct):
    index: int
    text: str = ""
    logprobs: dict[str, list[object]] | None = None
    finish_reason: str | None = None
    stop_reason: object = None
    token_ids: list[int] = []


class _Error(msgspec.Struct):
    code: str


class _Piece(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, object] | None = None
    error: _Error | None = None


def _take(answer: Answer, plain: object, when: float) -> None:
    piece = msgspec.convert(plain, _Piece)
    if piece.error is not None:
        answer.error = piece.error.code
    if piece.usage is not None:
        answer.usage = piece.usage
        counts = msgspec.convert(piece.usage, dict[str, object])
        answer.prompt_tokens = int(str(counts["prompt_tokens"]))
        answer.completion_tokens = int(str(counts["completion_tokens"]))
    for part in piece.choices:
        choice = answer.choices.setdefault(part.index, Choice())
        assert choice.finish_reason is None, "nothing follows a finish reason"
        choice.text += part.text
        choice.ids += part.token_ids
        choice.logprobs += [
            (name, *row)
            for names in [sorted(part.logprobs or {})]
            for row in zip(*((part.logprobs or {})[n] for n in names), strict=True)
            for name in [tuple(names)]
        ]
        choice.finish_reason, choice.stop_reason = part.finish_reason, part.stop_reason
        if part.token_ids and when:
            answer.token_times.append(when)
