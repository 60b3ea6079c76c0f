from __future__ import annotations

import itertools

import pytest
from bench.answer import Answer
from bench.result import Load, Result, Spread, percentile, spread, summarise
from hypothesis import given
from hypothesis import strategies as st

NO_LOAD = Load(client_cpu_s=0.0)


def numbers(*answers: Answer) -> Result:
    return summarise(answers, target="t", workload="W", run=1, load=NO_LOAD)


def test_times_are_told_apart() -> None:
    answer = Answer(begin=1.0, end=4.0, text_times=(1.5, 2.5, 3.5), output_tokens=5)
    result = numbers(answer)
    assert result.ttft_ms.p50 == 500
    assert result.itl_ms.p50 == 1000
    assert result.tpot_ms.p50 == 500  # 2 s for the four tokens after the first
    assert result.e2e_ms.p50 == 3000
    assert result.duration_s == 3
    assert result.output_tokens_per_s == pytest.approx(5 / 3)


def test_failed_answers_are_counted_and_leave_the_times_alone() -> None:
    good = Answer(begin=0.0, end=2.0, text_times=(1.0,), output_tokens=1)
    bad = Answer(begin=0.0, end=9.0, output_tokens=100, error="lost")
    result = numbers(good, bad)
    assert (result.requests, result.errors, result.first_error) == (2, 1, "lost")
    assert result.output_tokens == 1
    assert result.e2e_ms.max == 2000
    assert result.tpot_ms == Spread()


def test_nothing_but_failures_still_gives_a_result() -> None:
    result = numbers(Answer(begin=0.0, end=1.0, error="lost"))
    assert result.output_tokens_per_s == 0
    assert result.ttft_ms == Spread()


def test_short_answers_are_counted() -> None:
    short = Answer(begin=0.0, end=1.0, text_times=(0.5,), output_tokens=1, is_short=True)
    assert numbers(short).short_outputs == 1


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_stay_in_order_and_in_range(times_s: list[float]) -> None:
    measured = spread(times_s)
    ordered = [min(times_s) * 1000, measured.p50, measured.p90, measured.p99, measured.max]
    known = [value for value in ordered if value is not None]
    assert len(known) == 5
    assert all(low <= high * (1 + 1e-9) for low, high in itertools.pairwise(known))


def test_percentile_lies_on_the_line_between_two_numbers() -> None:
    assert percentile([1.0, 2.0, 4.0], 50) == 2
    assert percentile([1.0, 2.0, 4.0], 75) == 3
    assert percentile([5.0], 99) == 5
