from __future__ import annotations

from octavo.cli.keeper import FIRST_DELAY_S, MAX_DELAY_S, as_error, next_delay
from octavo.cli.process import Report


def test_delay_doubles_up_to_its_cap_while_lives_are_short() -> None:
    delays = [FIRST_DELAY_S / 2]
    for _ in range(8):
        delays.append(next_delay(delays[-1], 0.1))
    assert delays[1:] == [1, 2, 4, 8, 16, MAX_DELAY_S, MAX_DELAY_S, MAX_DELAY_S]


def test_long_life_resets_the_delay() -> None:
    assert next_delay(MAX_DELAY_S, 3600.0) == FIRST_DELAY_S


def test_failed_start_keeps_code_words_and_help_of_the_engine() -> None:
    error = as_error(Report(stage="failed", code="OCT-1204", text="16 GB; free 11 GB", help="less"))
    assert str(error) == "error[OCT-1204]: 16 GB; free 11 GB"
    assert (error.help, error.kind.exit_code) == ("less", 4)


def test_code_of_a_newer_engine_is_shown_as_it_is() -> None:
    error = as_error(Report(stage="failed", code="OCT-9999", text="new"))
    assert str(error) == "error[OCT-9999]: new"
    assert error.kind.exit_code == 5
