"""Every bug planted in the operator is found, first by the seed that is known to find it."""

from __future__ import annotations

import pytest
from tests.sim.kube.mutants import FOUND, MUTANTS, find


def test_each_has_a_seed() -> None:
    assert MUTANTS.keys() == FOUND.keys()


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_is_found(name: str) -> None:
    if find(name, [FOUND[name]]) is None:
        assert find(name) is not None
