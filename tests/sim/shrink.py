"""The smallest part of a failing scenario that fails in the same way (Zeller's ddmin)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.sim.world import Scenario

T = TypeVar("T")


def ddmin(items: Sequence[T], fails: Callable[[list[T]], bool]) -> list[T]:
    """Returns a subsequence that still fails and from which no single item can be left out.

    Args:
        items: a sequence that fails.
        fails: judges a subsequence.
    """
    kept, parts = list(items), 2
    if not kept or fails([]):
        return []
    while len(kept) >= 2:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            rest = kept[:start] + kept[start + size :]
            if fails(rest):
                kept, parts = rest, max(2, parts - 1)
                break
        else:
            if parts >= len(kept):
                return kept
            parts = min(len(kept), parts * 2)
    return kept


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """Leaves out faults, then requests, then faults again, as long as the scenario fails."""
    for _ in range(2):
        scenario = _without_requests(_without_faults(scenario, fails), fails)
    return scenario


def _without_faults(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    kept = ddmin(scenario.faults, lambda faults: fails(replace(scenario, faults=faults)))
    return replace(scenario, faults=kept)


def _without_requests(scenario: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    kept = ddmin(scenario.requests, lambda requests: fails(replace(scenario, requests=requests)))
    return replace(scenario, requests=kept)
