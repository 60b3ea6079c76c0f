"""Requests of beam searches, what they find, and what they are to find."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Final

import numpy as np
from tests.engine import beam_reference
from tests.engine.harness import Engine, generate
from tests.fakes import BYTE_VOCAB, EOS, next_logprobs

from octavo.engine.beam_search import BeamParams, EarlyStopping
from octavo.engine.core import Ticket
from octavo.v1 import engine_pb2

EARLY: Final = {
    EarlyStopping.HEURISTIC: engine_pb2.EARLY_STOPPING_UNSPECIFIED,
    EarlyStopping.WHEN_FULL: engine_pb2.EARLY_STOPPING_WHEN_FULL,
    EarlyStopping.NEVER: engine_pb2.EARLY_STOPPING_NEVER,
}


def beam(
    prompt: Sequence[int], width: int = 3, *, penalty: float | None = None, **fields: object
) -> engine_pb2.GenerateRequest:
    """A search; all that it finds is told unless `n` says otherwise."""
    proto = generate(prompt, **({"n": width, "max_tokens": 12} | fields))
    proto.beam.width = width
    if penalty is not None:
        proto.beam.length_penalty = penalty
    return proto


def wanted(
    proto: engine_pb2.GenerateRequest, *ends: int, masked_from: float = inf
) -> list[list[int]]:
    """What the reference finds with the fake model, best first.

    Args:
        proto: the search.
        ends: tokens that end a sequence; none: the end of sequence.
        masked_from: outputs after which no token is left to choose.
    """
    prompt = list(proto.token_ids.ids)
    early = next(k for k, v in EARLY.items() if v == proto.beam.early_stopping)
    how = BeamParams(
        width=proto.beam.width,
        max_tokens=proto.max_tokens,
        end_token_ids=frozenset(ends or {EOS}),
        length_penalty=proto.beam.length_penalty if proto.beam.HasField("length_penalty") else 1.0,
        early_stopping=early,
    )

    def model(ids: Sequence[int]) -> np.ndarray:
        if len(ids) < masked_from:
            return next_logprobs([*prompt, *ids])
        return np.full(BYTE_VOCAB, -np.inf, np.float32)

    found = beam_reference.search(model, how)
    return [ids for _, ids in found][: proto.n or 1]


def found(engine: Engine, ticket: Ticket) -> list[list[int]]:
    """What the choices of a search were told, in their order."""
    return [engine.ids(ticket, choice.index) for choice in ticket.choices]
