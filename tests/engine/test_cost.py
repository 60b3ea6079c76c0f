"""The cost model learns from steps."""

from __future__ import annotations

import pytest

from octavo.engine.cost import CostModel


def test_decode_steps_and_prompt_tokens_are_priced_apart() -> None:
    cost = CostModel()
    for _ in range(50):
        cost.observe(prefill_tokens=0, rows=4, seconds=0.010)
        cost.observe(prefill_tokens=100, rows=5, seconds=0.110)
    assert cost.decode_us_per_step == pytest.approx(10_000, rel=0.01)
    assert cost.prefill_us_per_token == pytest.approx(1_000, rel=0.05)


def test_a_step_with_hardly_any_prompt_teaches_nothing_about_prompts() -> None:
    cost = CostModel()
    cost.observe(prefill_tokens=2, rows=30, seconds=0.1)
    assert cost.prefill_us_per_token == 0.0


def test_a_step_is_bounded_by_the_time_that_tokens_take() -> None:
    cost = CostModel()
    assert 16 <= cost.step_tokens(0.25) <= 256, "nothing is known yet"
    cost.observe(prefill_tokens=100, rows=1, seconds=0.1)
    assert cost.step_tokens(0.25) == pytest.approx(500, rel=0.6)
    slow = CostModel(prefill_us_per_token=1e5)
    assert slow.step_tokens(0.25) == 32
