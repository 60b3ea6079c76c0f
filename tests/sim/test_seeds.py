"""Two hundred seeds hold every invariant, and between them reach every failpoint and error."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from octavo.runtime import failpoint

ROOT = Path(__file__).parents[2]
ERRORS = ("OCT-2001", "OCT-2002", "OCT-2003", "OCT-2004", "OCT-2005", "OCT-2006", "OCT-5001")
"""What can become of a sound request; each has a cause in some of the seeds."""


def test_seeds_hold_and_reach_what_there_is() -> None:
    command = [sys.executable, "-m", "tests.sim", "--seeds", "0-199", "--jobs", "2"]
    result = subprocess.run(
        [*command, "--counts"], cwd=ROOT, capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stdout[-10_000:] + result.stderr[-2000:]
    counts = Counter[str]()
    for line in result.stdout.splitlines():
        count, _, name = line.strip().partition(" ")
        if count.isdigit() and "." in name:
            counts[name] += int(count)
    wanted = {f"failpoint.{name}" for name in failpoint.NAMES - {"engine.load"}}
    wanted |= {f"error.{code}" for code in ERRORS}
    wanted |= {"poison.kill", "poison.raise", "record.read", "key.used"}
    wanted |= {"answer.resumed", "gateway.suspects"}
    wanted |= {"death.drained", "death.killed", "death.watchdog", "client.stalled"}
    assert not sorted(wanted - counts.keys())
