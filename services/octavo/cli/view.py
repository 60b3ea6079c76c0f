"""What `octavo serve` shows: stages with times, in place on a terminal, as log lines elsewhere."""

from __future__ import annotations

import json
import os
from typing import TextIO

from octavo.cli.process import Report

REPEAT_S = 5.0
"""Without a terminal a stage that lasts is said again this often, so that no log looks hung."""

_TEXT_COLUMNS = 70


class View:
    """Prints the course of a start, and what happens later. Knows no process.

    Serving goes on without a reader: when the terminal or the pipe is gone, nothing is shown.
    """

    def __init__(self, stream: TextIO | None, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._is_terminal = stream is not None and stream.isatty()
        self._current: dict[str, tuple[Report, float, float]] = {}
        """Report, begin and last time said, of the stage that each engine is in."""

    def stage(self, engine: str, report: Report, now: float) -> None:
        """Takes one line of an engine's report."""
        previous = self._current.pop(engine, None)
        if report.stage == "failed":
            return  # the error itself is the last thing said
        if report.done:
            self._say_stage(engine, report, report.seconds)
            return
        same = previous is not None and previous[0].stage == report.stage
        begin = previous[1] if previous is not None and same else now
        self._current[engine] = (report, begin, now)
        if not same and not self._is_terminal:
            self._say_stage(engine, report, now - begin)

    def tick(self, now: float) -> None:
        """Shows that time passes."""
        if self._is_terminal and not self._quiet:
            self._draw_current(now)
            return
        for engine, (report, begin, said) in self._current.items():
            if now - said >= REPEAT_S:
                self._current[engine] = (report, begin, now)
                self._say_stage(engine, report, now - begin)

    def line(self, text: str = "") -> None:
        """Prints a line above whatever is drawn."""
        erase = "\r\x1b[K" if self._is_terminal else ""
        self._write(f"{erase}{text}\n")

    def note(self, text: str) -> None:
        """Prints a line that `--quiet` leaves out."""
        if not self._quiet:
            self.line(text)

    def _say_stage(self, engine: str, report: Report, seconds: float) -> None:
        if self._is_terminal:
            self.note(_row(engine, report, seconds))
            return
        done = " done" if report.done else ""
        text = f" text={json.dumps(report.text, ensure_ascii=False)}" if report.text else ""
        self.note(f"stage={report.stage} engine={engine} seconds={seconds:.1f}{done}{text}")

    def _draw_current(self, now: float) -> None:
        if self._current:
            engine, (report, begin, _) = next(iter(self._current.items()))
            self._write(f"\r\x1b[K{_row(engine, report, now - begin)}")

    def _write(self, text: str) -> None:
        if self._stream is None:  # the interpreter's stdout where that is closed from the start
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            # What is buffered would fail once more at the interpreter's end: let it go nowhere.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _row(engine: str, report: Report, seconds: float) -> str:
    """Returns the line of a stage, within 80 columns; only further engines are named."""
    label = f"{report.stage:<10}" if engine.endswith("-0") else f"{report.stage:<10} {engine}"
    text = f"  {label} {report.text}"
    if len(text) > _TEXT_COLUMNS:
        text = text[: _TEXT_COLUMNS - 1] + "…"
    return f"{text:<{_TEXT_COLUMNS}} {seconds:6.1f} s"
