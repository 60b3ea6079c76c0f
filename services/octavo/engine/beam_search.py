"""Beam search: from the candidates of all beams to the next beams, and when it is over. Pure.

The rules are those of transformers 5.24, `generate(num_beams=width, do_sample=False)`, so that the
outcome is the same token for token. In each turn the continuations of all beams are ranked by the
sum of their log-probabilities. Those among the first `width` that end are finished sequences; the
best `width` that do not end are the next beams. Finished ones are compared by
sum / length ** length_penalty, the prompt not counted, and the best `width` of them are kept.

Sums and scores are float32, as there. Knows no requests, memory and tensors.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


class EarlyStopping(enum.Enum):
    """When a search with `width` finished sequences is over."""

    HEURISTIC = "heuristic"
    """When the best beam, scored at its present length, is no better than the worst of them."""
    WHEN_FULL = "when_full"
    """At once."""
    NEVER = "never"
    """When no beam can become better than the worst of them any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How to search."""

    width: int
    max_tokens: int
    end_token_ids: frozenset[int]
    """Tokens that finish a sequence."""
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC

    @property
    def num_candidates(self) -> int:
        """How many of a beam's best continuations can matter: `width` of them do not end."""
        return self.width + len(self.end_token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The best continuations of one beam, best first, those of probability zero left out."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log, float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A finished sequence."""

    score: float
    token_ids: tuple[int, ...]
    """The output, an end token included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The next beams, best first: beam i continues the present beam parents[i] with tokens[i].

    Empty: the search is over.
    """

    parents: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


class BeamSearch:
    """One search; begins with a single beam that has no output.

    Args:
        params: how to search.
    """

    def __init__(self, params: BeamParams) -> None:
        self.params = params
        self.finished: list[Hypothesis] = []
        """The best so far, best first."""
        self.num_tokens = 0
        """Output tokens of each present beam."""
        self._sums: Sequence[float] = (0.0,)

    def advance(self, candidates: Sequence[Candidates], outputs: Sequence[Sequence[int]]) -> Turn:
        """Makes the next turn.

        Args:
            candidates: of each present beam, at least `num_candidates` unless there are no more.
            outputs: of each present beam, its tokens so far.
        """
        params = self.params
        self.num_tokens += 1
        is_last = self.num_tokens >= params.max_tokens
        going: list[tuple[float, int, int]] = []
        for rank, (total, parent, token) in enumerate(self._ranked(candidates)):
            if not (is_last or token in params.end_token_ids):
                going.append((total, parent, token))
            elif rank < params.width:
                self._finish(total, (*outputs[parent], token))
            if rank + 1 >= params.width and (is_last or len(going) == params.width):
                break
        # Those that have just been added come behind their equals.
        self.finished.sort(key=lambda hypothesis: -hypothesis.score)
        del self.finished[params.width :]
        if not going or self._is_over(best=going[0][0]):
            return Turn()
        self._sums, parents, tokens = zip(*going, strict=True)
        return Turn(parents=parents, tokens=tokens)

    def _ranked(self, candidates: Sequence[Candidates]) -> list[tuple[float, int, int]]:
        """Returns (sum, parent, token) of all candidates, best first, ties by parent."""
        sums = np.concatenate(
            [
                np.asarray(one.logprobs, dtype=np.float32) + np.float32(before)
                for one, before in zip(candidates, self._sums, strict=True)
            ]
        )
        parents = [i for i, one in enumerate(candidates) for _ in one.token_ids]
        tokens = [token for one in candidates for token in one.token_ids]
        values: list[float] = sums.tolist()
        order: list[int] = np.argsort(-sums, kind="stable").tolist()
        return [(values[i], parents[i], tokens[i]) for i in order]

    def _finish(self, total: float, token_ids: tuple[int, ...]) -> None:
        score = self._score(total, self.num_tokens)
        self.finished.append(Hypothesis(score=score, token_ids=token_ids))

    def _score(self, total: float, length: int) -> float:
        return float(np.float32(total) / np.float32(length**self.params.length_penalty))

    def _is_over(self, *, best: float) -> bool:
        """Tells whether beams, the best of which has the sum `best`, are not worth going on."""
        params = self.params
        if len(self.finished) < params.width:
            return False
        if params.early_stopping is EarlyStopping.WHEN_FULL:
            return True
        never = params.early_stopping is EarlyStopping.NEVER
        length = params.max_tokens if never and params.length_penalty > 0.0 else self.num_tokens
        return self._score(best, length) <= self.finished[-1].score
