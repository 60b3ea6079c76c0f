"""Keeps requests that saw an engine die apart, until they have shown that they are harmless.

    suspect        its engine died while it ran
    on probation   sent to an engine as the only suspect there, until each choice has a token

Whatever made the first engine die does so again at once if it is the request, because a resumed
request is where it was. So a second death names its cause: the one request on probation, if the
engine had let it in. The others, suspects that wait or have passed and requests of that engine
itself, go on elsewhere. The cause is refused for a while when it is sent again. Pure but for the
waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from dataclasses import dataclass
from hashlib import blake2b

from octavo.v1 import engine_pb2
from octavo.v1.block_hash import DIGEST_BYTES

LONGEST_S = 1.0
"""A probation that takes longer (a long prompt) lets the next suspect in, and then proves nothing
against either."""

QUARANTINE_S = 600.0
MAX_QUARANTINED = 1000

_VARYING = (
    "request_id",
    "attempt",
    "deaths",
    "age_ms",
    "admitted",
    "remaining_ms",
    "max_queue_ms",
    "priority",
    "fairness_key",
    "traceparent",
)
"""What does not decide what an engine computes."""


@dataclass(slots=True)
class _Term:
    """One request's probation on one engine."""

    began: float
    contested: bool
    """Another suspect was there at the same time."""


class Probation:
    """Who is on probation where."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, _Term]] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    def admits(self, engine: str, now: float) -> bool:
        """Whether a suspect may be sent to the engine."""
        return all(now - t.began >= LONGEST_S for t in self._on.get(engine, {}).values())

    def enter(self, engine: str, request_id: str, now: float) -> None:
        """A suspect is sent to an engine."""
        there = self._on.setdefault(engine, {})
        for term in there.values():
            term.contested = True
        there[request_id] = _Term(began=now, contested=bool(there))

    def leave(self, engine: str, request_id: str) -> bool:
        """It has passed, ended or died with the engine; True if it was on probation, alone."""
        there = self._on.get(engine, {})
        term = there.pop(request_id, None)
        if not there:
            self._on.pop(engine, None)
        if term is None:
            return False
        self._wake_next()
        return not term.contested

    async def changed(self, timeout_s: float) -> None:
        """Waits for its turn after somebody has left, for so long at most."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await turn
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _wake_next(self) -> None:
        """Lets the one look again that has waited longest: there is one place."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return


class Quarantine:
    """Requests that took engines down, by what they ask for."""

    def __init__(self) -> None:
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def put(self, request: engine_pb2.GenerateRequest, now: float) -> None:
        """Refuses such requests from now on."""
        self._until[fingerprint(request)] = now + QUARANTINE_S
        if len(self._until) > MAX_QUARANTINED:
            self._until.popitem(last=False)

    def holds(self, request: engine_pb2.GenerateRequest, now: float) -> bool:
        """Whether such a request must not run."""
        while self._until and next(iter(self._until.values())) <= now:
            self._until.popitem(last=False)
        return bool(self._until) and fingerprint(request) in self._until


def fingerprint(request: engine_pb2.GenerateRequest) -> bytes:
    """Returns a digest of all that decides what an engine computes, but for a seed."""
    same = engine_pb2.GenerateRequest()
    same.CopyFrom(request)
    for name in _VARYING:
        same.ClearField(name)  # type: ignore[arg-type]
    same.sampling.ClearField("seed")
    data = same.SerializeToString(deterministic=True)
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
