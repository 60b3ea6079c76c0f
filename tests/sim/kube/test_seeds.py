"""Sixty seeds hold every invariant, and between them reach every kind of fault."""

from __future__ import annotations

from inspect import signature

import pytest
from tests.sim.kube import operators
from tests.sim.kube.script import FAULTS
from tests.sim.printed import counts

from octavo.operator import watches

pytestmark = pytest.mark.timeout(900)  # 20 s on two quiet cores


def test_seeds_hold_and_reach_what_there_is() -> None:
    reached = counts("tests.sim.kube", "--seeds", "0-59", "--jobs", "2")
    wanted = {f"fault.{kind}" for kind in FAULTS} | {"fault.killed_after_write"}
    wanted |= {"end.killed", "end.stopped"}
    assert not sorted(wanted - reached.keys())


def test_simulated_operators_watch_by_the_signature_of_real_ones() -> None:
    """Else they would begin again and again, and find by listing what watches should tell."""
    assert list(signature(operators.watch).parameters) == list(signature(watches.watch).parameters)
