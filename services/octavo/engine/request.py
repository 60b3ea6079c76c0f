"""A request inside the engine, and its states. Knows nothing of memory, tensors or transport.

One `GenerateRequest` with n choices becomes one `Request` per choice. The first computes the
prompt; its siblings are forked from it when that is done, so the prompt is computed once.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from octavo.v1.block_hash import BlockHash

RequestId = NewType("RequestId", int)
"""The engine's own number of a choice; callers' ids are labels and never keys."""


class FinishReason(enum.Enum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Status(enum.Enum):
    """Where a request is; only the scheduler changes it."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one choice is drawn; validated and resolved (seed, temperature raised or greedy)."""

    temperature: float = 1.0
    """Zero is greedy; otherwise at least limits.MIN_TEMPERATURE."""
    top_p: float = 1.0
    top_k: int = 0
    """Zero keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """Resolved: request's seed + choice index."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    masked_before_min: tuple[int, ...] = ()
    """End-of-sequence and stop ids, impossible until min_tokens outputs exist."""
    logprobs: int | None = None
    """Alternatives besides the sampled token; None asks for none."""

    @property
    def is_greedy(self) -> bool:
        """Whether the next token is the argmax."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StopParams:
    """When one choice ends."""

    max_tokens: int
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    """Empty with ignore_eos."""
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    include_in_output: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One choice on its way through the engine. Owned by the scheduler; the core appends tokens."""

    id: RequestId
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopParams
    arrival: float
    """Monotonic seconds at which the request came to the platform: its place in the queue."""
    queued: float = 0.0
    """Monotonic seconds at which it came to this engine: what its times are counted from."""
    hash_root: BlockHash
    index: int = 0
    """Which choice of its request it is."""
    priority: int = 0
    siblings: tuple[Request, ...] = ()
    """The other choices, waiting to be forked from this one when its prompt is computed."""
    prompt_logprobs: int | None = None
    score_only: bool = False
    deadline: float | None = None
    """Monotonic seconds at which the request is aborted."""
    queue_deadline: float | None = None
    """Monotonic seconds by which the first step must have begun."""

    output_ids: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    num_computed: int = 0
    """Tokens whose K and V are in the cache."""
    num_cached: int = 0
    """Prompt tokens skipped at first admission thanks to the prefix cache."""
    num_prompt_logprobs: int = 0
    """Prompt positions, from 1 on, whose logprobs have been delivered; kept over preemption."""
    num_preemptions: int = 0
    num_swaps: int = 0
    """Preemptions that kept what was computed, in the host tier."""
    first_scheduled: float | None = None
    first_token: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    block_hashes: list[BlockHash] = field(default_factory=list)
    """Hashes of the full blocks of prompt + output, grown incrementally."""

    @property
    def num_tokens(self) -> int:
        """Prompt and output together."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the choice has ended for whatever reason."""
        return self.finish_reason is not None

    @property
    def reads_cache(self) -> bool:
        """Prompt logprobs need every position computed, so such a request only writes the cache."""
        return self.prompt_logprobs is None

    def tokens(self, start: int, stop: int) -> list[int]:
        """Returns the ids at positions [start, stop) of prompt + output."""
        split = len(self.prompt_ids)
        if stop <= split:
            return list(self.prompt_ids[start:stop])
        if start >= split:
            return self.output_ids[start - split : stop - split]
        return [*self.prompt_ids[start:], *self.output_ids[: stop - split]]
