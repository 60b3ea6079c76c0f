"""ddmin, and a failing seed made small."""

from __future__ import annotations

import pytest
from tests.sim.__main__ import SIMULATION
from tests.sim.mutants.platform_bugs import PLATFORM
from tests.sim.shrink import ddmin
from tests.sim.simulate import draw, simulate


@pytest.mark.parametrize("needed", [set(), {3}, {0, 9}, {2, 3, 17}])
def test_ddmin_keeps_what_is_needed_alone(needed: set[int]) -> None:
    assert set(ddmin(range(20), lambda items: needed <= set(items))) == needed


def test_seed_is_shrunk_to_the_fault_that_matters() -> None:
    with PLATFORM.planted("hung_engine_is_trusted"):
        seed = next(s for s in range(200) if _violated(s))
        name = _violated(seed)
        scenario = SIMULATION.smallest(draw(seed), name)
        assert simulate(scenario).violations[0].name == name
    assert not simulate(scenario).violations
    assert 1 <= len(scenario.faults) <= 3
    assert len(scenario.requests) <= 3


def _violated(seed: int) -> str:
    violations = simulate(draw(seed)).violations
    return violations[0].name if violations else ""
