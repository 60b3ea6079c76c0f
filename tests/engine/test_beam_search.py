"""The decisions of a beam search against a naive one over whole distributions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine import beam_reference

from octavo.engine.beam_search import (
    BeamParams,
    BeamSearch,
    Candidates,
    EarlyStopping,
    Hypothesis,
    Turn,
)


def params(**values: object) -> BeamParams:
    defaults: dict[str, object] = {"width": 2, "max_tokens": 8, "end_token_ids": frozenset({0})}
    return BeamParams(**(defaults | values))  # type: ignore[arg-type]


def candidates(*pairs: tuple[int, float]) -> Candidates:
    tokens, logprobs = zip(*pairs, strict=True) if pairs else ((), ())
    return Candidates(token_ids=tokens, logprobs=logprobs)


class Distribution:
    """A model of few tokens whose log-probabilities are multiples of 1/4, so that many are equal.

    Sums of those are exact, whatever their order.
    """

    def __init__(self, seed: int, vocab: int, impossible: int) -> None:
        self._seed, self._vocab, self._impossible = seed, vocab, impossible

    def __call__(self, ids: Sequence[int]) -> np.ndarray:
        key = f"{self._seed}:{list(ids)}".encode()
        raw = hashlib.blake2b(key, digest_size=self._vocab).digest()
        values = np.array([-(byte % 24) / 4 for byte in raw], dtype=np.float32)
        values[[byte % 10 < self._impossible for byte in raw]] = -np.inf
        return values

    def best(self, ids: Sequence[int], count: int) -> Candidates:
        """What the sampler makes of it."""
        values = self(ids)
        order = [i for i in np.argsort(-values, kind="stable") if values[i] > -np.inf][:count]
        return candidates(*((int(i), float(values[i])) for i in order))


def run(model: Distribution, how: BeamParams) -> list[Hypothesis]:
    search = BeamSearch(how)
    outputs: list[list[int]] = [[]]
    for length in range(how.max_tokens):
        assert search.num_tokens == length
        assert all(len(ids) == length for ids in outputs)
        best = [model.best(ids, how.num_candidates) for ids in outputs]
        turn = search.advance(best, outputs)
        if not turn.tokens:
            return search.finished
        assert len(turn.tokens) <= how.width
        outputs = [
            [*outputs[parent], token]
            for parent, token in zip(turn.parents, turn.tokens, strict=True)
        ]
        assert len({tuple(ids) for ids in outputs}) == len(outputs)
    raise AssertionError("no end")


@settings(max_examples=400)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(2, 14),
    impossible=st.sampled_from([0, 0, 0, 3, 8]),
    how=st.builds(
        BeamParams,
        width=st.integers(2, 6),
        max_tokens=st.integers(1, 14),
        end_token_ids=st.frozensets(st.integers(0, 8), max_size=5),
        length_penalty=st.sampled_from([1.0, 0.0, 2.0, -1.0, 0.5, 5.0]),
        early_stopping=st.sampled_from(EarlyStopping),
    ),
)
def test_24_search_finds_what_a_naive_one_finds(
    seed: int, vocab: int, impossible: int, how: BeamParams
) -> None:
    """Semantics 24."""
    model = Distribution(seed, vocab, impossible)
    found = [(one.score, list(one.token_ids)) for one in run(model, how)]
    assert found == beam_reference.search(model, how)


def test_one_beam_begins_and_its_best_continuations_are_the_next_beams() -> None:
    search = BeamSearch(params())
    turn = search.advance([candidates((5, -0.5), (3, -1.0), (4, -2.0))], [[]])
    assert turn == Turn(parents=(0, 0), tokens=(5, 3))
    turn = search.advance([candidates((1, -2.0)), candidates((2, -0.5), (1, -1.0))], [[5], [3]])
    assert turn == Turn(parents=(1, 1), tokens=(2, 1))


def test_a_sequence_counts_as_finished_only_among_the_best_width() -> None:
    search = BeamSearch(params())
    search.advance([candidates((5, -0.5), (3, -1.0), (0, -1.5), (4, -2.0))], [[]])
    assert search.finished == []
    search.advance([candidates((0, -0.5), (1, -2.0)), candidates((1, -3.0), (0, -4.0))], [[5], [3]])
    assert search.finished == [Hypothesis(score=-0.5, token_ids=(5, 0))]


def test_the_last_token_finishes_the_best_whether_it_ends_them_or_not() -> None:
    search = BeamSearch(params(max_tokens=1))
    assert search.advance([candidates((5, -0.5), (0, -1.0), (4, -2.0))], [[]]) == Turn()
    assert [one.token_ids for one in search.finished] == [(5,), (0,)]


@pytest.mark.parametrize(
    ("early_stopping", "goes_on"),
    [
        (EarlyStopping.WHEN_FULL, False),
        (EarlyStopping.HEURISTIC, False),
        (EarlyStopping.NEVER, True),
    ],
)
def test_early_stopping_judges_the_best_beam_by_its_length_or_the_longest(
    early_stopping: EarlyStopping, goes_on: bool
) -> None:
    """The beam has -2 at one token, and could have -2 / 8 at eight; both finished have -1."""
    search = BeamSearch(
        params(end_token_ids=frozenset({0, 1}), early_stopping=early_stopping, max_tokens=8)
    )
    turn = search.advance([candidates((0, -1.0), (1, -1.0), (5, -2.0), (6, -3.0))], [[]])
    assert bool(turn.tokens) is goes_on


def test_a_search_without_continuations_ends_with_what_it_has() -> None:
    search = BeamSearch(params())
    assert search.advance([candidates((0, -0.1))], [[]]) == Turn()
    assert [one.token_ids for one in search.finished] == [(0,)]
    nothing = BeamSearch(params())
    assert nothing.advance([candidates()], [[]]) == Turn()
    assert nothing.finished == []
