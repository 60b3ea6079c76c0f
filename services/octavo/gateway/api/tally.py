"""What is known of a request's choices while its deltas arrive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from octavo.gateway.api.logprobs import Position
from octavo.gateway.api.plan import Plan
from octavo.v1 import common_pb2, engine_pb2

FINISH_WORDS: Final = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
}
"""The dispatcher raises for all other ends."""


@dataclass(slots=True, kw_only=True)
class Choice:
    """One choice of the answer."""

    index: int
    """Its place in the answer."""
    prompt: int
    """The prompt that it continues."""
    shown: bool = False
    """Whether a stream has sent anything of it."""
    offset: int = 0
    """Characters so far, for `text_offset`."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    positions: list[Position] = field(default_factory=list)


class Tally:
    """The choices and the usage of one request."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.choices = [Choice(index=i, prompt=i // plan.n) for i in range(plan.num_choices)]
        self.prompt_positions: list[list[Position]] = [[] for _ in plan.calls]
        self._usages: list[engine_pb2.Usage | None] = [None] * len(plan.calls)
        self._cached: list[int | None] = [None] * len(plan.calls)
        self._num_output = 0

    def take(self, prompt: int, delta: engine_pb2.Delta) -> Choice:
        """Notes a delta and returns its choice; keeps texts only if they are not streamed."""
        choice = self.choices[prompt * self._plan.n + delta.choice]
        self._num_output += len(delta.token_ids)
        if not self._plan.stream:
            choice.text.append(delta.text)
            choice.token_ids.extend(delta.token_ids)
            choice.positions.extend(delta.logprobs)
        if delta.prompt_logprobs:
            self.prompt_positions[prompt].extend(delta.prompt_logprobs)
        if delta.finish_reason:
            choice.finish_reason = FINISH_WORDS.get(delta.finish_reason, "stop")
            choice.stop_reason = _stop_reason(delta)
        if delta.HasField("cached_tokens"):
            self._cached[prompt] = delta.cached_tokens
        if delta.HasField("usage"):
            self._usages[prompt] = delta.usage
            self._cached[prompt] = delta.usage.cached_tokens
        return choice

    @property
    def complete(self) -> bool:
        """Whether every choice has come to its end."""
        return all(choice.finish_reason for choice in self.choices)

    @property
    def knows_cached(self) -> bool:
        """Whether `cached_tokens` covers every prompt."""
        return None not in self._cached

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that did not have to be computed, as far as it is known."""
        return sum(c for c in self._cached if c is not None)

    def usage(self) -> dict[str, object]:
        """Returns the `usage` object as it stands."""
        prompt = sum(len(call.request.token_ids.ids) for call in self._plan.calls)
        known = [u for u in self._usages if u is not None]
        # The engine's count is the truth; until it is there, what was delivered.
        output = sum(u.output_tokens for u in known)
        if len(known) < len(self._usages):
            output = self._num_output
        usage: dict[str, object] = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {
                "cached_tokens": self.cached_tokens,
                "cache_write_tokens": sum(u.cache_write_tokens for u in known),
            },
        }
        if any(u.inexact for u in known):
            usage["resumed"] = "inexact"
        return usage

    def metrics(self) -> dict[str, float]:
        """Returns the `metrics` object: of several prompts, the slowest of each."""
        known = [u for u in self._usages if u is not None]
        return {
            "queue_ms": round(max((u.queue_ms for u in known), default=0.0), 3),
            "prefill_ms": round(max((u.prefill_ms for u in known), default=0.0), 3),
            "decode_ms": round(max((u.decode_ms for u in known), default=0.0), 3),
            "preemptions": sum(u.preemptions for u in known),
        }


def _stop_reason(delta: engine_pb2.Delta) -> str | int | None:
    kind = delta.WhichOneof("stop_reason")
    return getattr(delta, kind) if kind is not None else None
