"""One seed is one run, whatever the process, its hash seed, and what it ran before."""

from __future__ import annotations

import pytest
from tests.sim.printed import digests


@pytest.mark.parametrize(
    ("module", "seeds"),
    [("tests.sim", list(range(200, 210))), ("tests.sim.kube", list(range(60, 65)))],
)
def test_two_processes_have_the_same_trace(module: str, seeds: list[int]) -> None:
    one = digests(module, seeds, "0")
    two = digests(module, seeds[::-1], "4242")
    assert len(one) == len(seeds)
    assert one == two
