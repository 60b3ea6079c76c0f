"""Runs seeds: `python -m tests.sim --seeds 0-999`, or one with its trace: `--seed 17 --trace`."""

from __future__ import annotations

import sys

from tests.sim.command import Simulation
from tests.sim.mutants.platform_bugs import PLATFORM
from tests.sim.simulate import draw, simulate
from tests.sim.world import Scenario

SIMULATION: Simulation[Scenario] = Simulation(
    module="tests.sim",
    draw=draw,
    simulate=simulate,
    script=("faults", "requests"),
    bugs=PLATFORM,
)

if __name__ == "__main__":
    sys.exit(SIMULATION.main(__doc__))
