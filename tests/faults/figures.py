"""Where scenarios write what they measured: one JSON line each, for docs/reliability.md.

The environment says how much is done and where figures go:
OCTAVO_FAULT_FIGURES   file that gets the lines; they are printed at the end in any case
OCTAVO_FAULT_RUNS      repetitions of a scenario (3)
OCTAVO_FAULT_SOAK_S    length of the soak in seconds (120)
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

RUNS = int(os.environ.get("OCTAVO_FAULT_RUNS", "3"))
SOAK_S = float(os.environ.get("OCTAVO_FAULT_SOAK_S", "120"))


LINES: list[str] = []
"""What this run has recorded."""


def record(scenario: str, **figures: object) -> None:
    """Writes one line."""
    line = json.dumps({"scenario": scenario, **figures})
    LINES.append(line)
    target = os.environ.get("OCTAVO_FAULT_FIGURES")
    if target:
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def milliseconds(values: Sequence[float]) -> dict[str, float]:
    """Returns median, 99th percentile and maximum of seconds."""
    if not values:
        return {}
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * quantile(values, share), 1) for name, share in shares.items()}
