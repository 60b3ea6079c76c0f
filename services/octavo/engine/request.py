"""A request inside the engine, and its states. Knows nothing of memory, tensors or transport.

One `GenerateRequest` with n choices becomes one `Request` per choice. The first computes the
prompt; its siblings are forked from it when that is done, so the prompt is computed once. With beam
search the first one carries the beams, and the choices only get what the search has found.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType

from octavo.engine.beam_search import BeamSearch
from octavo.v1.block_hash import BlockHash, hash_block

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
    num_candidates: int = 0
    """How many of the best tokens a beam search wants; zero draws a token."""

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
    fairness_key: str = ""
    """Whose share of the engine it uses; those without one share one."""
    siblings: tuple[Request, ...] = ()
    """The other choices, waiting to be forked from this one when its prompt is computed; those of a
    beam search wait for its end."""
    beams: Beams | None = None
    """Of a beam search: what computes and finds the outputs in this request's turns."""
    carrier: Request | None = None
    """Of a beam: the request that carries it."""
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
    num_written: int = 0
    """Prompt tokens that it computed and left hittable for others; kept over preemption."""
    num_prompt_logprobs: int = 0
    """Prompt positions, from 1 on, whose logprobs have been delivered; kept over preemption."""
    num_charged: int = 0
    """Prompt tokens that its fairness key has paid for; kept over preemption."""
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
    def owner(self) -> Request:
        """The request whose turn it is when this one is computed."""
        return self if self.carrier is None else self.carrier

    @property
    def is_forked(self) -> bool:
        """Whether its beams have the blocks, on the device or swapped out, and no longer itself."""
        return self.beams is not None and self.beams.forked

    @property
    def holders(self) -> Sequence[Request]:
        """The requests with blocks while this one runs: itself, or its beams."""
        return self.beams.live if self.beams is not None and self.beams.forked else (self,)

    @property
    def lost_beams(self) -> bool:
        """Whether there are beams that have lost their blocks and fork when it is computed."""
        return self.beams is not None and bool(self.beams.live) and not self.beams.forked

    @property
    def slots(self) -> int:
        """The choices or beams that run, or will be forked, while this request runs."""
        return 1 + len(self.siblings) if self.beams is None else self.beams.search.params.width

    @property
    def backlog(self) -> int:
        """Tokens that are to be computed while it waits, all beams together."""
        own = self.num_tokens - self.num_computed
        if self.beams is None:
            return own
        if self.beams.forked:
            return sum(beam.num_tokens - beam.num_computed for beam in self.beams.live)
        return own + sum(len(beam.output_ids) for beam in self.beams.live)

    @property
    def is_finished(self) -> bool:
        """Whether the choice has ended for whatever reason."""
        return self.finish_reason is not None

    @property
    def reads_cache(self) -> bool:
        """Prompt logprobs need every position computed, so such a request only writes the cache."""
        return self.prompt_logprobs is None

    def extend_hashes(self, block_tokens: int) -> None:
        """Hashes the full blocks of its tokens that have no hash yet."""
        chain = self.block_hashes
        size = block_tokens
        for start in range(len(chain) * size, self.num_tokens - size + 1, size):
            parent = chain[-1] if chain else self.hash_root
            chain.append(hash_block(parent, self.tokens(start, start + size)))

    def count_written(self, block_tokens: int) -> None:
        """Notes how many of its prompt tokens it has computed and left hittable."""
        done = min(self.num_computed, len(self.prompt_ids))
        full = done - done % block_tokens
        self.num_written = max(self.num_written, full - self.num_cached)

    def tokens(self, start: int, stop: int) -> list[int]:
        """Returns the ids at positions [start, stop) of prompt + output."""
        split = len(self.prompt_ids)
        if stop <= split:
            return list(self.prompt_ids[start:stop])
        if start >= split:
            return self.output_ids[start - split : stop - split]
        return [*self.prompt_ids[start:], *self.output_ids[: stop - split]]


@dataclass(slots=True, kw_only=True, eq=False)
class Beams:
    """The beams of one search: requests that are in no queue and run when their carrier does.

    They survive a preemption with their outputs; only their blocks are lost.
    """

    search: BeamSearch
    idle: list[Request]
    """Beams without a sequence; at first all `width` of them."""
    live: list[Request] = field(default_factory=list)
    """The present beams, best first. All have as many output tokens."""
    forked: bool = False
    """Whether the live beams have the blocks, no longer the carrier."""

    def writes(self, budget: int) -> list[tuple[Request, int]]:
        """Returns which beams are to be computed next, and up to which positions.

        Beams that have lost their blocks catch up first, in chunks; then the last token of all is
        computed in one step, since the next turn needs the candidates of all.
        """
        ends: list[tuple[Request, int]] = []
        for beam in self.live:
            length = min(beam.num_tokens - 1 - beam.num_computed, budget)
            if length > 0:
                ends.append((beam, beam.num_computed + length))
                budget -= length
        return ends or [(beam, beam.num_tokens) for beam in self.live]
