"""Bugs of gateways and engines."""

from __future__ import annotations

from pathlib import Path

from tests.sim.mutants import engine, gateway, resume, store
from tests.sim.mutants.registry import Registry
from tests.sim.simulate import draw, simulate

PLATFORM = Registry(
    [bug for module in (engine, gateway, resume, store) for bug in module.MUTANTS],
    violations=lambda seed: simulate(draw(seed)).violations,
    file=Path(__file__).with_name("found.json"),
)
