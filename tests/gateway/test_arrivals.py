import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.arrivals import WINDOW_S, Arrivals


def test_nothing_has_arrived() -> None:
    arrivals = Arrivals()
    assert arrivals.per_s(5.0) == 0.0
    assert arrivals.age_s(5.0) is None


def test_the_last_one_is_remembered_when_the_rate_is_zero_again() -> None:
    arrivals = Arrivals()
    arrivals.note(100.0)
    assert arrivals.per_s(100.0) == pytest.approx(1 / WINDOW_S)
    assert arrivals.per_s(100.0 + WINDOW_S) == 0.0
    assert arrivals.age_s(400.5) == 300.5


@given(st.lists(st.floats(0, 300), max_size=200), st.floats(0, 100))
def test_the_rate_is_that_of_the_window(times: list[float], later: float) -> None:
    arrivals = Arrivals()
    for time in sorted(times):
        arrivals.note(time)
    now = max(times, default=0.0) + later
    counted = sum(int(time) > int(now) - WINDOW_S for time in times)
    assert arrivals.per_s(now) == pytest.approx(counted / WINDOW_S)
    assert len(arrivals._seconds) <= WINDOW_S
