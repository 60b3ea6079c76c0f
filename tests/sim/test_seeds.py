"""Two hundred seeds hold every invariant, and between them reach every failpoint and error."""

from __future__ import annotations

import pytest
from tests.sim.printed import counts

from octavo.runtime import failpoint

pytestmark = pytest.mark.timeout(900)  # 20 s on two quiet cores

ERRORS = ("OCT-2001", "OCT-2002", "OCT-2003", "OCT-2004", "OCT-2005", "OCT-2006", "OCT-5001")
"""What can become of a sound request; each has a cause in some of the seeds."""


def test_seeds_hold_and_reach_what_there_is() -> None:
    reached = counts("tests.sim", "--seeds", "0-199", "--jobs", "2")
    wanted = {f"failpoint.{name}" for name in failpoint.NAMES - {"engine.load"}}
    wanted |= {f"error.{code}" for code in ERRORS}
    wanted |= {"poison.kill", "poison.raise", "record.read", "key.used"}
    wanted |= {"answer.resumed", "gateway.suspects"}
    wanted |= {"death.drained", "death.killed", "death.watchdog", "client.stalled"}
    assert not sorted(wanted - reached.keys())
