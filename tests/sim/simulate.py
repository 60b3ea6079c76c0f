"""One seed, from its number to a verdict."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from unittest import mock

from tests.sim.faults import draw_faults
from tests.sim.history import History, Violation
from tests.sim.loop import SimLoop
from tests.sim.options import Options, draw_options
from tests.sim.requests import draw_requests
from tests.sim.virtual_run import virtual_run
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
    """Runs a scenario."""

    async def main(loop: SimLoop, history: History) -> None:
        world = World(scenario, loop, history)
        passes = {n: functools.partial(world.passed, n) for n in failpoint.NAMES}
        with failpoint.armed(passes), _bounds(scenario.options):
            await world.run()

    loop, history = virtual_run(
        main, seed=scenario.seed, trace=trace, limit_s=LIMIT_S, max_steps=MAX_STEPS
    )
    return Verdict(
        scenario=scenario,
        violations=history.violations,
        digest=history.digest,
        counts=history.counts,
        lines=history.lines,
        virtual_s=loop.time() - 1000.0,
    )
