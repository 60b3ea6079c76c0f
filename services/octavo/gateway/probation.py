"""Keeps requests that saw an engine die apart, until they have shown that they are harmless.

    suspect        its engine died while it ran
    on probation   the only suspect on its engine, until a token has come from there

Whatever made the first engine die does so again at once if it is the request, because a resumed
request is where it was. So a second death names its cause: the one request on probation. The
others, suspects that wait or have passed and requests of that engine itself, go on elsewhere.
The cause is refused for a while when it is sent again. Pure but for the waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from hashlib import blake2b

from octavo.v1 import engine_pb2
from octavo.v1.block_hash import DIGEST_BYTES

LONGEST_S = 1.0
"""A probation that takes longer (a long prompt) lets the next suspect in, and proves nothing."""

QUARANTINE_S = 600.0
MAX_QUARANTINED = 1000

_VARYING = ("request_id", "attempt", "deaths", "age_ms", "remaining_ms", "traceparent", "resumes")


class Probation:
    """Who is on probation where."""

    def __init__(self) -> None:
        self._on: dict[str, dict[str, float]] = {}
        self._changed = asyncio.Event()

    def admits(self, engine: str, now: float) -> bool:
        """Whether a suspect may be sent to the engine."""
        since = self._on.get(engine, {})
        return all(now - began >= LONGEST_S for began in since.values())

    def enter(self, engine: str, request_id: str, now: float) -> None:
        """A suspect is sent to an engine."""
        self._on.setdefault(engine, {})[request_id] = now

    def leave(self, engine: str, request_id: str) -> bool:
        """It has passed, ended or died with the engine; True if it was on probation, alone."""
        there = self._on.get(engine, {})
        alone = request_id in there and len(there) == 1
        if there.pop(request_id, None) is not None:
            self._changed.set()
        if not there:
            self._on.pop(engine, None)
        return alone

    async def changed(self, timeout_s: float) -> None:
        """Waits until somebody leaves, for so long at most."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()


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
        return bool(self._until) and self._until.get(fingerprint(request), now) > now


def fingerprint(request: engine_pb2.GenerateRequest) -> bytes:
    """Returns a digest of all that decides what an engine computes, but for a seed."""
    same = engine_pb2.GenerateRequest()
    same.CopyFrom(request)
    for name in _VARYING:
        same.ClearField(name)  # type: ignore[arg-type]
    same.sampling.ClearField("seed")
    data = same.SerializeToString(deterministic=True)
    return blake2b(data, digest_size=DIGEST_BYTES).digest()
