"""Reads the event streams of a run: when text came, how many tokens, and what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from bench.client import Exchange
from bench.workloads import WorkItem

_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one request got. Times are seconds of the exchange's clock."""

    begin: float
    end: float
    text_times: tuple[float, ...] = ()
    """When each event with text arrived."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server counts them; without its count, what was asked for."""
    cached_tokens: int = 0
    is_short: bool = False
    """The server counts fewer tokens than were asked for."""
    error: str = ""
    """Why this is not a whole answer; empty when it is."""


def read_answer(exchange: Exchange, item: WorkItem) -> Answer:
    """Parses one exchange. Never raises: what cannot be read is the answer's error."""
    text_times: list[float] = []
    usage: RawUsage | None = None
    error = exchange.failure or _refusal(exchange)
    is_done = False
    for time_s, data in [] if error else events(exchange.reads):
        if is_done := data == b"[DONE]":
            break
        try:
            chunk = msgspec.json.decode(data, type=RawChunk)
        except msgspec.MsgspecError as unreadable:
            error = f"unreadable event: {unreadable}"
            break
        if bytes(chunk.error) not in (b"", b"null"):
            error = _shown(bytes(chunk.error))
            break
        usage = chunk.usage or usage
        if any(choice.has_text() for choice in chunk.choices):
            text_times.append(time_s)
    if not error and not is_done:
        error = "the stream ended without [DONE]"
    if not error and not text_times:
        error = "no text came"
    return Answer(
        begin=exchange.begin,
        end=exchange.end,
        text_times=tuple(text_times),
        prompt_tokens=usage.prompt_tokens if usage else len(item.prompt.ids),
        output_tokens=usage.completion_tokens if usage else item.max_tokens,
        cached_tokens=usage.cached_tokens if usage else 0,
        is_short=usage is not None and usage.completion_tokens < item.max_tokens,
        error=error,
    )


def events(reads: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yields the data of each event with the time of the read that completed its line."""
    rest = b""
    for time_s, data in reads:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield time_s, line.removeprefix(b"data:").strip()


def _refusal(exchange: Exchange) -> str:
    if exchange.status == 200:
        return ""
    text = b"".join(data for _, data in exchange.reads)
    return f"HTTP {exchange.status}: {_shown(text)}"


def _shown(data: bytes) -> str:
    return data.decode(errors="replace")[:_SHOWN]


class RawDelta(msgspec.Struct):
    """`delta` of a chat chunk."""

    content: str | None = None
    reasoning_content: str | None = None


class RawChoice(msgspec.Struct):
    """One choice of a chunk, of either endpoint."""

    text: str | None = None
    delta: RawDelta | None = None

    def has_text(self) -> bool:
        """Says whether a reader would see something new."""
        delta = self.delta or RawDelta()
        return bool(self.text or delta.content or delta.reasoning_content)


class RawPromptDetails(msgspec.Struct):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class RawUsage(msgspec.Struct):
    """`usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: RawPromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the prefix cache, where the server tells."""
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0


class RawChunk(msgspec.Struct):
    """One event of a stream."""

    choices: list[RawChoice] = []
    usage: RawUsage | None = None
    error: msgspec.Raw = msgspec.Raw()
