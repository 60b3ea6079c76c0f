"""Whether the operator still comes round: the ages of its loops, and which of them is too old.

An API server that is away is no illness of the operator, so attempts count, successful or not;
only after SUCCESS_S without any success is it worth a new process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

POLL_S: Final = 60.0
"""Age of the last poll of the gateways that is too old."""

WORK_S: Final = 180.0
"""How long a service may wait while no worker ends its work on another one."""

SUCCESS_S: Final = 900.0
"""Age of the last complete listing that is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How the operator is."""

    ready: bool
    """Whether all that exists is known."""
    ages: Mapping[str, float]
    """Seconds since each loop last came round."""
    stuck: tuple[str, ...]
    """Loops that should have come round long ago."""

    @property
    def alive(self) -> bool:
        """Whether nothing is stuck."""
        return not self.stuck

    def shown(self) -> dict[str, object]:
        """Returns what probes are told."""
        return {
            "ready": self.ready,
            "stuck": self.stuck,
            "ages_s": {name: round(age, 1) for name, age in self.ages.items()},
        }


def judge(
    *,
    beats: Mapping[str, float],
    synced_at: float | None,
    overdue_s: float,
    resync_s: float,
    now: float,
) -> Health:
    """Returns how the operator is.

    Args:
        beats: when each loop last came round: resync, gateways, work.
        synced_at: when all objects were last listed; None before the first time.
        overdue_s: how long a service has been waiting for a worker.
        resync_s: the time between two listings.
        now: the clock of all these.
    """
    ages = {name: now - at for name, at in beats.items()}
    ages["work"] = min(overdue_s, ages.get("work", overdue_s))
    limits = {"resync": 3 * resync_s + POLL_S, "gateways": POLL_S, "work": WORK_S}
    if synced_at is not None:
        ages["listing"] = now - synced_at
        limits["listing"] = max(SUCCESS_S, 3 * resync_s)
    stuck = tuple(name for name, age in ages.items() if age > limits[name])
    return Health(ready=synced_at is not None, ages=ages, stuck=stuck)
