"""Sixty seeds hold every invariant, and between them reach every kind of fault."""

from __future__ import annotations

import pytest
from tests.sim.kube.script import FAULTS
from tests.sim.printed import counts

pytestmark = pytest.mark.timeout(900)  # 20 s on two quiet cores


def test_seeds_hold_and_reach_what_there_is() -> None:
    reached = counts("tests.sim.kube", "--seeds", "0-59", "--jobs", "2")
    wanted = {f"fault.{kind}" for kind in FAULTS} | {"fault.killed_after_write"}
    wanted |= {"end.killed", "end.stopped"}
    assert not sorted(wanted - reached.keys())
