"""What the reader of a generation has got so far: all that another engine needs to go on.

Everything is a function of ids and text delivered, so the state of the engine that was lost is not
missed: penalties, seeds, stop strings and half characters are replayed from the ids (see Resume in
octavo.v1). Does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BLOCK_TOKENS


@dataclass(slots=True)
class _Choice:
    """One choice as its reader knows it."""

    token_ids: list[int] = field(default_factory=list)
    num_chars: int = 0
    """Characters (code points) of text."""
    finish_reason: int = 0
    """Zero: it goes on."""


class Delivered:
    """The delivered part of an answer with n choices."""

    def __init__(self, num_choices: int) -> None:
        self._choices = [_Choice() for _ in range(num_choices)]
        self._num_prompt_logprobs = 0
        self._to_skip = 0
        self._cached_tokens: int | None = None
        self.inexact = False
        """Whether engines with different numerics had a part in it."""

    @property
    def num_tokens(self) -> int:
        """Output tokens of all choices."""
        return sum(len(c.token_ids) for c in self._choices)

    @property
    def begun(self) -> bool:
        """Whether the reader has anything that the rest must fit to."""
        return self.num_tokens > 0 or self._num_prompt_logprobs > 0

    @property
    def longest(self) -> Sequence[int]:
        """The output of the choice that has most of it."""
        return max((c.token_ids for c in self._choices), key=len)

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return all(c.finish_reason for c in self._choices)

    @property
    def unfinished(self) -> set[int]:
        """The choices that go on."""
        return {i for i, c in enumerate(self._choices) if not c.finish_reason}

    @property
    def finish_reasons(self) -> list[int]:
        """Why each choice ended."""
        return [c.finish_reason for c in self._choices]

    def take(self, delta: engine_pb2.Delta) -> engine_pb2.Delta:
        """Notes a delta that continues its choice, and corrects what only the whole can know.

        Returns:
            The delta for the reader: prompt logprobs that another attempt has delivered are
            cut off, and usage counts the answer, not the attempt.
        """
        choice = self._choices[delta.choice]
        choice.token_ids.extend(delta.token_ids)
        choice.num_chars += len(delta.text)
        choice.finish_reason = delta.finish_reason
        if delta.prompt_logprobs:
            self._take_prompt_logprobs(delta)
        if delta.HasField("cached_tokens"):
            if self._cached_tokens is None:
                self._cached_tokens = delta.cached_tokens
            delta.cached_tokens = self._cached_tokens
        if delta.HasField("usage"):
            delta.usage.output_tokens = self.num_tokens
            delta.usage.inexact = self.inexact
            if self._cached_tokens is not None:
                # Found or written, the prompt's full blocks are the same on every engine.
                full = delta.usage.cached_tokens + delta.usage.cache_write_tokens
                full -= full % BLOCK_TOKENS
                delta.usage.cache_write_tokens = max(full - self._cached_tokens, 0)
                delta.usage.cached_tokens = self._cached_tokens
        return delta

    def continued(self, request: engine_pb2.GenerateRequest) -> None:
        """Turns a copy of the request into one that goes on where the reader is."""
        if self.num_tokens == 0:
            self._to_skip = self._num_prompt_logprobs
            return
        # Every position of the prompt was told before the first token.
        request.ClearField("prompt_logprobs")
        request.ClearField("max_queue_ms")
        for index in sorted(self.unfinished):
            choice = self._choices[index]
            request.resumes.add(
                choice=index, output_ids=choice.token_ids, chars_sent=choice.num_chars
            )

    def _take_prompt_logprobs(self, delta: engine_pb2.Delta) -> None:
        skipped = min(self._to_skip, len(delta.prompt_logprobs))
        self._to_skip -= skipped
        del delta.prompt_logprobs[:skipped]
        self._num_prompt_logprobs += len(delta.prompt_logprobs)
