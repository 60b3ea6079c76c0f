"""When silence, or talk without progress, becomes suspicion: pure, told the time by its caller.

An engine speaks at least once a second. Silence is counted in ticks of the gateway's own loop, and
a tick counts at most twice its length: while the gateway itself was blocked it could not have
heard anything, so that time is not held against the engine.
"""

from __future__ import annotations

TICK_S = 0.25
"""How often the caller should tick."""

SUSPECT_AFTER_S = 3.0
"""Three missed heartbeats."""


class Silence:
    """How long an engine has said nothing."""

    def __init__(self, now: float) -> None:
        self._last_tick = now
        self._silent_s = 0.0

    def heard(self) -> None:
        """Notes a message."""
        self._silent_s = 0.0

    def tick(self, now: float) -> bool:
        """Counts the time since the last tick; tells whether the engine is suspect."""
        self._silent_s += min(now - self._last_tick, 2 * TICK_S)
        self._last_tick = now
        return self._silent_s >= SUSPECT_AFTER_S
