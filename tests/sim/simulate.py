"""One seed, from its number to a verdict."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import warnings
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from unittest import mock

import structlog
from tests.sim.env import stream
from tests.sim.faults import draw_faults
from tests.sim.history import History, Violation
from tests.sim.loop import SimError, SimLoop, run
from tests.sim.options import Options, draw_options
from tests.sim.requests import draw_requests
from tests.sim.world import Scenario, World

from octavo.gateway import attempts, records, retry_budget
from octavo.gateway.api import running
from octavo.runtime import failpoint

LIMIT_S = 400.0
MAX_STEPS = 3_000_000
_SMALL = (
    (attempts, "MAX_WAITING_BYTES", 4000),
    (running, "MAX_PENDING_BYTES", 1000),
    (records, "MAX_WAITING", 5),
    (retry_budget, "MINIMUM", 2.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a run."""

    scenario: Scenario
    violations: list[Violation]
    digest: str
    counts: Counter[str]
    lines: list[str] | None
    virtual_s: float


@contextlib.contextmanager
def _bounds(options: Options) -> Generator[None, None, None]:
    """Bounds of buffers that a short run can reach."""
    with contextlib.ExitStack() as stack:
        for module, name, size in _SMALL if options.small_buffers else ():
            stack.enter_context(mock.patch.object(module, name, size))
        yield


class _LineLogger:
    """Puts the log lines of production among those of the trace."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def msg(self, message: str) -> None:
        self._lines.append(f"        {message}")

    debug = info = warning = error = critical = exception = msg


@contextlib.contextmanager
def surroundings(lines: list[str] | None) -> Generator[None, None, None]:
    """Logs go to the trace or nowhere; processes that are killed close nothing and say so."""
    level = logging.CRITICAL if lines is None else logging.DEBUG
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LineLogger([] if lines is None else lines),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
            gc.collect()
    finally:
        structlog.configure(**before)


def draw(seed: int) -> Scenario:
    """Draws all of a seed."""
    options = draw_options(seed)
    return Scenario(
        seed=seed,
        options=options,
        requests=draw_requests(seed, options),
        faults=draw_faults(seed, options),
    )


def simulate(scenario: Scenario, *, trace: bool = False) -> Verdict:
    """Runs a scenario; what nobody caught, and a run that hangs, are violations as well."""
    loop = SimLoop(rng=stream(scenario.seed, "schedule"))
    history = History(loop.time)
    if trace:
        history.lines = []

    async def main() -> None:
        world = World(scenario, loop, history)
        passes = {n: functools.partial(world.passed, n) for n in failpoint.NAMES}
        with failpoint.armed(passes), _bounds(scenario.options):
            await world.run()

    violations: list[Violation] = []
    rng = stream(scenario.seed, "schedule")
    try:
        with surroundings(history.lines):
            run(main, rng=rng, limit_s=LIMIT_S, max_steps=MAX_STEPS, loop=loop)
    except SimError as error:
        cause = error.__cause__ or error
        violations.append(Violation("LOOP", f"{error}: {cause!r}", loop.time()))
    if loop.leftovers and not history.violations:
        violations.append(Violation("TASKS", f"left behind: {loop.leftovers}", loop.time()))
    return Verdict(
        scenario=scenario,
        violations=[*history.violations, *violations],
        digest=history.digest,
        counts=history.counts,
        lines=history.lines,
        virtual_s=loop.time() - 1000.0,
    )
