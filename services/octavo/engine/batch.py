"""All that scheduler and runner say to each other in one step. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Protocol

from octavo.engine.beam_search import Candidates
from octavo.engine.request import Request, RequestId


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """One token to draw from a row's last logits: choice and the output ids that penalties see."""

    request: Request
    """The choice that receives the token; its sampling, prompt_ids and output_ids are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The tokens of one request in this step."""

    request: Request
    start: int
    """Position of the first token; everything before it is in the cache."""
    token_ids: tuple[int, ...]
    """The chunk; positions [start, start + len)."""
    block_table: tuple[int, ...]
    """Pool blocks in order; block i holds positions [i * block_tokens, (i + 1) * block_tokens)."""
    samples: tuple[SampleSpec, ...] = ()
    """Empty unless the chunk ends at the request's last token. Several: the choices to fork."""
    prompt_logprobs: int | None = None
    """When set, logprobs of the prompt tokens at positions [start + 1, start + len] are wanted,
    as far as they are within the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """One step: offloads, restores, copies, then all rows in one forward pass."""

    rows: tuple[Row, ...]
    offloads: tuple[tuple[int, int], ...] = ()
    """(from block, to host slot), done before all else: other parts of the step overwrite the
    blocks. No slot twice."""
    restores: tuple[tuple[int, int], ...] = ()
    """(from host slot, to block), done after the offloads, which may bring the slot's content.
    No block twice."""
    copies: tuple[tuple[int, int], ...] = ()
    """(from block, to block): copy-on-write, all layers, done after the restores and before the
    rows."""

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the step."""
        return sum(len(r.token_ids) for r in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Candidates of one position: the chosen token first, then the top ones in order."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log of the raw distribution, floored at limits.LOGPROB_FLOOR."""
    ranks: tuple[int, ...]
    """Rank by probability, from 1."""


NO_CANDIDATES: Final = Candidates(token_ids=(), logprobs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What one SampleSpec got."""

    token_ids: tuple[int, ...]
    """One id today; several with speculation. Empty: nothing could be drawn, or was to be."""
    logprobs: tuple[Logprobs, ...] = ()
    candidates: Candidates = NO_CANDIDATES
    """What a beam search asked for, instead of a token."""
    finite: bool = True
    """False: the logits were not finite, so nothing that led to them may be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The runner's answer, keyed by the choice's id."""

    sampled: dict[RequestId, Sampled] = field(default_factory=dict)
    prompt_logprobs: dict[RequestId, tuple[Logprobs, ...]] = field(default_factory=dict)
    """For each row that asked: entries for the positions [start + 1, …] of this chunk."""


class Runner(Protocol):
    """Turns a step into tokens: torch in production, a pure function in simulation."""

    def run(self, step: StepInput) -> StepOutput:
        """Computes the step. An exception means that nothing of it may be published.

        Raises:
            DeviceError: no step can be computed any more.
        """
        ...
