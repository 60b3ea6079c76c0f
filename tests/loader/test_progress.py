"""Lines that a person waits with: often enough, and never backwards."""

from __future__ import annotations

import itertools
from collections.abc import MutableMapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.fakes import FakeEnv

from octavo.loader.progress import TELL_S, Progress

Line = MutableMapping[str, Any]


def test_a_line_says_bytes_rate_and_time_left() -> None:
    env = FakeEnv()
    with capture_logs() as lines:
        progress = Progress(env.now)
        progress.stage("loading", total=4_900_000_000)
        env.time += 10
        progress.found(1_000_000_000)
        env.time += 10
        progress.got(1_000_000_000)
    assert [line["text"] for line in lines] == [
        "loading, 0 of 4,900 MB",
        "loading, 1,000 of 4,900 MB",
        "loading, 2,000 of 4,900 MB, 50.0 MB/s, 58 s left",
    ]
    assert (lines[-1]["done_bytes"], lines[-1]["total_bytes"]) == (2_000_000_000, 4_900_000_000)
    assert (lines[-1]["rate_bytes_s"], lines[-1]["eta_s"]) == (50_000_000, 58)


def test_a_long_time_is_told_in_minutes() -> None:
    env = FakeEnv()
    with capture_logs() as lines:
        progress = Progress(env.now)
        progress.stage("loading", total=10**11)
        env.time += 5
        progress.got(10**8)
    assert lines[-1]["text"].endswith("20.0 MB/s, 83 min left")


def test_standing_still_is_told_with_its_reason() -> None:
    env = FakeEnv()
    with capture_logs() as lines:
        progress = Progress(env.now)
        progress.stage("loading", total=100)
        progress.retry("host answers 503")
        for _ in range(9):
            env.time += 1
            progress.look()
        progress.got(1)
        env.time += TELL_S
        progress.look()
    assert [line["retries"] for line in lines] == [0, 1, 1, 1]
    assert "trying again: host answers 503" in lines[2]["text"]
    assert "trying again" not in lines[3]["text"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["got", "found", "lost"]), st.integers(0, 100), st.floats(0, 9))
    )
)
def test_what_was_told_is_never_taken_back(steps: list[tuple[str, int, float]]) -> None:
    env = FakeEnv()
    with capture_logs() as lines:
        progress = Progress(env.now)
        progress.stage("loading", total=1000)
        for step, num_bytes, seconds in steps:
            getattr(progress, step)(num_bytes)
            env.time += seconds
            progress.look()
    told = [line["done_bytes"] for line in lines]
    assert told == sorted(told)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_no_silence_is_longer_than_five_seconds(looks: list[float]) -> None:
    env = FakeEnv()
    times = [env.now()]

    def note(_logger: object, _name: str, event: Line) -> Line:
        times.append(env.now())
        return event

    with capture_logs(processors=[note]):
        progress = Progress(env.now)
        progress.stage("loading")
        for seconds in looks:
            env.time += seconds
            progress.look()
    times.append(env.now())
    assert max(b - a for a, b in itertools.pairwise(times)) < 5
