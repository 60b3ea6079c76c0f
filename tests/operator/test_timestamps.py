from __future__ import annotations

import pytest

from octavo.operator import timestamps


def test_a_time_stamp_comes_back_in_whole_seconds() -> None:
    text = timestamps.to_text(1_780_000_000.9)
    assert text == "2026-05-28T20:26:40Z"
    assert timestamps.from_text(text) == 1_780_000_000.0


def test_parts_of_seconds_and_offsets_are_read() -> None:
    assert timestamps.from_text("2026-05-28T22:26:40.250000+02:00") == 1_780_000_000.25


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-05-28T20:26:40", 7])
def test_what_is_no_time_stamp_is_none_and_has_no_age(text: object) -> None:
    assert timestamps.from_text(text) is None
    assert timestamps.age_s(text, 1_780_000_000.0) == 0.0


def test_an_age_is_never_negative() -> None:
    assert timestamps.age_s("2026-05-28T20:26:40Z", 1_780_000_010.0) == 10.0
    assert timestamps.age_s("2026-05-28T20:26:40Z", 1_700_000_000.0) == 0.0
