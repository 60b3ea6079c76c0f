"""A naive beam search over whole distributions, written after transformers' `_beam_search`.

Keeps all sequences as lists, ranks every continuation of every beam, and looks at as many of them
as transformers does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from octavo.engine.beam_search import BeamParams, EarlyStopping

Model = Callable[[Sequence[int]], np.ndarray]
"""Output tokens so far to the log-probabilities (float32) of all next ones."""

Scored = tuple[float, list[int]]


def search(model: Model, params: BeamParams) -> list[Scored]:
    """Returns the finished sequences with their scores, best first."""
    width, ends = params.width, params.end_token_ids
    running: list[Scored] = [(0.0, [])]
    finished: list[Scored] = []
    while True:
        sums = np.stack([np.float32(total) + model(ids) for total, ids in running])
        # Stable: equals stay in the order of beams and tokens.
        order = np.argsort(-sums, axis=None, kind="stable")[: max(2, 1 + len(ends)) * width]
        ranked = [
            (float(sums[beam, token]), [*running[beam][1], int(token)])
            for beam, token in zip(*np.unravel_index(order, sums.shape), strict=True)
            if sums[beam, token] > -np.inf
        ]
        length = len(ranked[0][1]) if ranked else 0
        full = length == params.max_tokens
        hits = [full or ids[-1] in ends for _, ids in ranked]
        news = [
            (_score(total, length, params.length_penalty), ids)
            for (total, ids), hit in list(zip(ranked, hits, strict=True))[:width]
            if hit
        ]
        finished = sorted([*finished, *news], key=lambda one: -one[0])[:width]
        running = [one for one, hit in zip(ranked, hits, strict=True) if not hit][:width]
        if not running or _is_over(running, finished, length, params):
            return finished


def _is_over(
    running: list[Scored], finished: list[Scored], length: int, params: BeamParams
) -> bool:
    if len(finished) < params.width:
        return False
    if params.early_stopping is EarlyStopping.WHEN_FULL:
        return True
    if params.early_stopping is EarlyStopping.NEVER and params.length_penalty > 0:
        length = params.max_tokens
    best = _score(running[0][0], length, params.length_penalty)
    return not best > min(score for score, _ in finished)


def _score(total: float, length: int, penalty: float) -> float:
    return float(np.float32(total) / np.float32(length**penalty))
