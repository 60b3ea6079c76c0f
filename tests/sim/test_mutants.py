"""Every planted bug is found: first by the seed that is known to find it, else by searching."""

from __future__ import annotations

import json

import pytest
from tests.sim.mutants.registry import FOUND, LIMIT, MUTANTS, find

_found: dict[str, int] = json.loads(FOUND.read_text())


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 25
    assert MUTANTS.keys() == _found.keys(), "run `make sim-mutants`"


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_planted_bug_is_found(name: str) -> None:
    if find(name, [_found.get(name, 0)]) is None:
        assert find(name, range(LIMIT)) is not None, f"not found within {LIMIT} seeds"
