"""The smallest part of a failing scenario that fails in the same way (Zeller's ddmin)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

S = TypeVar("S", bound=Any)
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


def shrink(scenario: S, fails: Callable[[S], bool], script: Sequence[str]) -> S:
    """Leaves out entries as long as the scenario fails: all fields of its script, and all again."""
    for field in (*script, *script):
        scenario = _without(field, scenario, fails)
    return scenario


def _without(field: str, scenario: S, fails: Callable[[S], bool]) -> S:
    def with_only(entries: Sequence[Any]) -> S:
        return replace(scenario, **{field: entries})

    return with_only(ddmin(getattr(scenario, field), lambda some: fails(with_only(some))))
