from __future__ import annotations

import io
import os

from octavo.cli.process import Report
from octavo.cli.view import View


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_terminal_a_lasting_stage_is_repeated_every_five_seconds() -> None:
    stream = io.StringIO()
    view = View(stream)
    view.stage("engine-0", Report(stage="weights"), 0.0)
    for tenth in range(1, 121):
        view.tick(tenth / 10)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "stage=weights engine=engine-0 seconds=0.0",
        "stage=weights engine=engine-0 seconds=5.0",
        "stage=weights engine=engine-0 seconds=10.0",
    ]


def test_updates_within_a_stage_keep_its_begin_and_the_newest_text() -> None:
    stream = io.StringIO()
    view = View(stream)
    view.stage("engine-0", Report(stage="weights", text="1 of 2"), 0.0)
    view.stage("engine-0", Report(stage="weights", text="2 of 2"), 4.0)
    view.tick(9.0)
    assert stream.getvalue().splitlines()[-1] == (
        'stage=weights engine=engine-0 seconds=9.0 text="2 of 2"'
    )


def test_finished_stage_says_the_time_it_took_and_is_not_repeated() -> None:
    stream = io.StringIO()
    view = View(stream)
    view.stage("engine-0", Report(stage="weights"), 0.0)
    view.stage("engine-0", Report(stage="weights", seconds=0.9, done=True), 1.0)
    view.tick(100.0)
    assert stream.getvalue().splitlines()[-1] == "stage=weights engine=engine-0 seconds=0.9 done"


def test_terminal_draws_the_running_stage_in_place() -> None:
    stream = Terminal()
    view = View(stream)
    view.stage("engine-0", Report(stage="weights", text="packed"), 0.0)
    view.tick(1.0)
    view.tick(2.0)
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().count("\r\x1b[K") == 2
    view.stage("engine-0", Report(stage="weights", text="packed", seconds=2.1, done=True), 2.1)
    last = stream.getvalue().split("\x1b[K")[-1]
    assert last.split() == ["weights", "packed", "2.1", "s"]


def test_failure_is_left_to_the_error_that_follows() -> None:
    stream = io.StringIO()
    View(stream).stage("engine-0", Report(stage="failed", text="no"), 0.0)
    assert stream.getvalue() == ""


def test_quiet_leaves_stages_out_but_not_lines() -> None:
    stream = Terminal()
    view = View(stream, quiet=True)
    view.stage("engine-0", Report(stage="weights"), 0.0)
    view.tick(9.0)
    view.line("API")
    assert stream.getvalue() == "\r\x1b[KAPI\n"


def test_only_further_engines_are_named_on_a_terminal() -> None:
    stream = Terminal()
    view = View(stream)
    view.stage("engine-0", Report(stage="ready", done=True), 0.0)
    view.stage("engine-1", Report(stage="ready", done=True), 0.0)
    first, second = stream.getvalue().strip().split("\n")
    assert "engine" not in first
    assert "engine-1" in second


def test_view_outlives_its_reader() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    with os.fdopen(write_fd, "w") as stream:
        view = View(stream)
        view.line("first")
        view.line("second")


def test_without_any_output_nothing_is_shown() -> None:
    view = View(None)
    view.stage("engine-0", Report(stage="weights"), 0.0)
    view.tick(9.0)


def test_line_of_a_stage_fits_eighty_columns() -> None:
    stream = Terminal()
    view = View(stream)
    view.stage("engine-0", Report(stage="warm-up", text="x" * 200, seconds=1.5, done=True), 0.0)
    line = stream.getvalue().split("\x1b[K")[-1].rstrip("\n")
    assert len(line) <= 80
    assert line.endswith("x…    1.5 s")
