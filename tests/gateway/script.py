"""What a fake engine does with one request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from octavo.v1 import common_pb2
from octavo.v1.errors import OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the engine does with one request; the default answers it."""

    refuse: OctavoError | None = None
    answer: bool = True
    """False: not a word, not even Accepted."""
    go: asyncio.Event | None = None
    """Before it is set there is no token."""
    first_delay_s: float = 0.0
    delay_s: float = 0.0
    """Before each further token."""
    tokens: int | None = None
    """Instead of max_tokens."""
    die_after: int | None = None
    """The server breaks off after this many tokens, as after kill -9."""
    stop_after: int | None = None
    """No further token of this request, though the engine lives."""
    skip_at: int | None = None
    """This token gets lost on the way."""
    repeat: bool = False
    """Every delta is sent twice."""
    hand_over_after: int | None = None
    """The engine goes down and ends every choice after so many tokens."""
    fail_after: tuple[int, OctavoError] | None = None
    finish: common_pb2.FinishReason.ValueType = common_pb2.FINISH_REASON_LENGTH
