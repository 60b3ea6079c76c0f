from __future__ import annotations

from typing import Any

import pytest

from octavo.engine.stall import StallWatch

STILL: dict[str, Any] = {"waiting": 2, "running": 0, "planned": False, "loading": False}


def test_turns_without_anything_are_counted_and_then_counted_anew() -> None:
    watch = StallWatch(limit=3)
    assert [watch.is_over(**STILL) for _ in range(7)] == [False, False, True] * 2 + [False]


@pytest.mark.parametrize(
    "change", [{"waiting": 0}, {"running": 1}, {"planned": True}, {"loading": True}], ids=str
)
def test_whatever_moves_begins_the_count_again(change: dict[str, int]) -> None:
    watch = StallWatch(limit=2)
    assert not watch.is_over(**STILL)
    assert not watch.is_over(**{**STILL, **change})
    assert not watch.is_over(**STILL)
    assert watch.is_over(**STILL)
