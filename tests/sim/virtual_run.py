"""One run in virtual time, with a history of its own."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Callable, Coroutine, Generator

import structlog
from tests.sim.env import stream
from tests.sim.history import History, Violation
from tests.sim.loop import SimError, SimLoop, run


def virtual_run(
    story: Callable[[SimLoop, History], Coroutine[None, None, None]],
    *,
    seed: int,
    trace: bool,
    limit_s: float,
    max_steps: int,
) -> tuple[SimLoop, History]:
    """Runs a story; what nobody caught, a run that hangs, and left tasks are violations as well.

    Args:
        story: makes the coroutine of it.
        seed: decides the order of tasks.
        trace: whether its lines are wanted, logs among them.
        limit_s: virtual seconds that it may take.
        max_steps: turns of the loop that it may take.
    """
    loop = SimLoop(rng=stream(seed, "schedule"))
    history = History(loop.time)
    history.lines = [] if trace else None
    found: list[Violation] = []
    try:
        with _surroundings(history.lines):
            run(
                lambda: story(loop, history),
                rng=stream(seed, "schedule"),
                limit_s=limit_s,
                max_steps=max_steps,
                loop=loop,
            )
    except SimError as error:
        cause = error.__cause__ or error
        found.append(Violation("LOOP", f"{error}: {cause!r}", loop.time()))
    if loop.leftovers and not history.violations:
        found.append(Violation("TASKS", f"left behind: {loop.leftovers}", loop.time()))
    history.violations += found
    return loop, history


class _LineLogger:
    """Puts the log lines of production among those of the trace."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def msg(self, message: str) -> None:
        self._lines.append(f"        {message}")

    debug = info = warning = error = critical = exception = msg


@contextlib.contextmanager
def _surroundings(lines: list[str] | None) -> Generator[None, None, None]:
    """Logs go to the trace or nowhere; processes that are killed close nothing and say so."""
    level = logging.CRITICAL if lines is None else logging.DEBUG
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineLogger([] if lines is None else lines),
    )
    try:
        with warnings.catch_warnings(), only_new_garbage():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        structlog.configure(**before)


@contextlib.contextmanager
def only_new_garbage() -> Generator[None, None, None]:
    """Within it, what is older is not collected.

    Other tests leave gigabytes to look through, and gRPC servers whose end waits for a loop that is
    no more.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
