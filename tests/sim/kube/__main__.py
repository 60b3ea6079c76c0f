"""Runs seeds of the operator's world: `python -m tests.sim.kube --seeds 0-999`, or `--seed 17`."""

from __future__ import annotations

import sys

from tests.sim.command import Simulation
from tests.sim.kube.mutants import OPERATORS
from tests.sim.kube.script import Scenario, draw
from tests.sim.kube.simulate import simulate

SIMULATION: Simulation[Scenario] = Simulation(
    module="tests.sim.kube",
    draw=draw,
    simulate=simulate,
    script=("faults", "users"),
    bugs=OPERATORS,
)

if __name__ == "__main__":
    sys.exit(SIMULATION.main(__doc__))
