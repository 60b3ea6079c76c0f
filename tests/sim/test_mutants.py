"""Every planted bug is found: first by the seed that is known to find it, else by searching."""

from __future__ import annotations

import pytest
from tests.sim.kube.mutants import OPERATORS
from tests.sim.mutants.platform_bugs import PLATFORM
from tests.sim.mutants.registry import LIMIT, Registry

BUGS = [(bugs, name) for bugs in (PLATFORM, OPERATORS) for name in sorted(bugs.bugs)]


def test_there_are_enough() -> None:
    assert len(PLATFORM.bugs) >= 25
    for bugs in (PLATFORM, OPERATORS):
        assert bugs.bugs.keys() == bugs.found().keys(), "run `make sim-mutants`"


@pytest.mark.parametrize(("bugs", "name"), BUGS, ids=[name for _, name in BUGS])
def test_planted_bug_is_found(bugs: Registry, name: str) -> None:
    if bugs.find(name, [bugs.found().get(name, 0)]) is None:
        assert bugs.find(name) is not None, f"not found within {LIMIT} seeds"
