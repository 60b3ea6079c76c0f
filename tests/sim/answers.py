"""What a client got, taken apart: events or body, by choice."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.sim.history import Try


@dataclass(slots=True)
class SeenChoice:
    """One choice as its client saw it."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    ends: int = 0


@dataclass(slots=True)
class Seen:
    """One answer as its client saw it."""

    choices: dict[int, SeenChoice] = field(default_factory=dict)
    completion_tokens: int | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0
    after_end: int = 0
    """Events after an error or after DONE."""
    prompt_logprobs: int | None = None
    """Positions told."""


def see(attempt: Try) -> Seen:
    """Reads the body of a try; a last event that is not whole was never sent as one."""
    seen = Seen()
    if not attempt.body:
        return seen
    if attempt.headers.get("content-type", "").startswith("text/event-stream"):
        for event in bytes(attempt.body).split(b"\n\n")[:-1]:
            _take_event(seen, event)
    else:
        _take_object(seen, json.loads(bytes(attempt.body)))
    return seen


def _take_event(seen: Seen, event: bytes) -> None:
    if event.startswith(b":"):
        return
    data = event.removeprefix(b"data: ")
    if seen.done or seen.errors:
        seen.after_end += 1
    if data == b"[DONE]":
        seen.done += 1
    else:
        _take_object(seen, json.loads(data))


def _take_object(seen: Seen, value: dict[str, Any]) -> None:
    if "error" in value:
        seen.errors.append(value["error"])
        return
    if value.get("usage"):
        seen.completion_tokens = value["usage"]["completion_tokens"]
    if value.get("prompt_logprobs") is not None:
        seen.prompt_logprobs = len(value["prompt_logprobs"])
    for raw in value["choices"]:
        if raw.get("prompt_logprobs") is not None:
            seen.prompt_logprobs = len(raw["prompt_logprobs"])
        _take_choice(seen.choices.setdefault(raw["index"], SeenChoice()), raw)


def _take_choice(choice: SeenChoice, raw: dict[str, Any]) -> None:
    shown = raw.get("delta") or raw.get("message") or {}
    choice.text += shown.get("content") or raw.get("text") or ""
    choice.ids += raw.get("token_ids") or []
    logprobs = raw.get("logprobs") or {}
    choice.logprobs += [entry["logprob"] for entry in logprobs.get("content") or ()]
    choice.logprobs += logprobs.get("token_logprobs") or []
    if raw.get("finish_reason"):
        choice.finish_reason = raw["finish_reason"]
        choice.ends += 1
