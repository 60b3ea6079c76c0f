"""Whether the engine makes progress, and what follows when it does not.

Health   a turn that does not end makes the engine unwell, however well its loop answers
└ watch  the health service, and the end of a stuck process

Knows no model and no gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

TICK_S: Final = 0.25
"""Between two looks at the present turn."""

STALE_S: Final = 30.0
"""Age of a turn that is unwell when there is no watchdog to derive it from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the engine is."""

    stage: str
    """loading, warming, ready, draining or failed."""
    step: int
    """Steps computed so far."""
    step_age_s: float
    """How long the present turn has lasted; zero between turns."""
    stale_s: float
    """Age from which on a turn is not believed to end."""

    @property
    def alive(self) -> bool:
        """Whether there is progress, or nothing to be done."""
        return self.stage != "failed" and self.step_age_s < self.stale_s

    @property
    def ready(self) -> bool:
        """Whether requests are served."""
        return self.alive and self.stage == "ready"

    def shown(self) -> dict[str, object]:
        """Returns what probes are told."""
        return {
            "stage": self.stage,
            "step": self.step,
            "step_age_s": round(self.step_age_s, 3),
        }


def stale_after_s(watchdog_s: float) -> float:
    """Returns the age of a stale turn: early enough that probes see it before the watchdog acts."""
    return watchdog_s / 2 or STALE_S


async def watch(
    health: Callable[[], Health], *, limit_s: float, tell: Callable[[bool], Awaitable[None]]
) -> None:
    """Returns once a turn has lasted longer than `limit_s`: the engine is stuck.

    Args:
        health: how it is now.
        limit_s: zero never returns.
        tell: gets whether requests are served, whenever that changes.
    """
    told = False
    while True:
        await asyncio.sleep(TICK_S)
        now = health()
        if now.ready != told:
            told = now.ready
            await tell(told)
        if limit_s and now.step_age_s > limit_s:
            return
