from __future__ import annotations

import pytest

from octavo.engine.cost import CostModel
from octavo.engine.preemption import Preemption, PreemptionMode

AUTO, SWAP, RECOMPUTE = PreemptionMode


def prefers(mode: PreemptionMode, copy_us: float, prefill_us: float, num_tokens: int = 32) -> bool:
    cost = CostModel(copy_us_per_block=copy_us, prefill_us_per_token=prefill_us)
    preemption = Preemption(mode=mode, cost=cost)
    return preemption.prefers_swap(num_blocks=-(-num_tokens // 16), num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("copy_us", "prefill_us", "swaps"),
    [
        (50.0, 1000.0, True),
        (8000.0, 1000.0, False),
        (7999.0, 1000.0, True),
        (9000.0, 0.0, True),
        (0.0, 1.0, True),
    ],
)
def test_auto_takes_what_is_cheaper(copy_us: float, prefill_us: float, *, swaps: bool) -> None:
    """32 tokens are two blocks, copied out and back: four copies against 32 tokens."""
    assert prefers(AUTO, copy_us, prefill_us) is swaps


def test_a_mode_overrules_the_prices() -> None:
    assert prefers(SWAP, 1e9, 1.0)
    assert not prefers(RECOMPUTE, 1.0, 1e9)


@pytest.mark.parametrize("mode", list(PreemptionMode))
def test_who_has_computed_nothing_has_nothing_to_swap(mode: PreemptionMode) -> None:
    assert not prefers(mode, 1.0, 1e9, num_tokens=0)


def test_the_prices_are_read_when_they_are_needed() -> None:
    cost = CostModel(copy_us_per_block=100.0)
    preemption = Preemption(cost=cost)
    assert preemption.prefers_swap(num_blocks=1, num_tokens=1)
    cost.observe(prefill_tokens=100, rows=1, seconds=100 * 150e-6)
    assert not preemption.prefers_swap(num_blocks=1, num_tokens=1)
    assert preemption.prefers_swap(num_blocks=1, num_tokens=16)
