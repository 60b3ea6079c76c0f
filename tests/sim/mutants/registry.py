"""Bugs to plant: proof that the simulation can fail. Each names invariants that must find it."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Generator, Iterable
from pathlib import Path
from unittest import mock

from tests.sim.mutants import engine, gateway, resume, store
from tests.sim.mutants.mutant import Mutant
from tests.sim.simulate import draw, simulate

LIMIT = 200
"""Seeds within which each must be found."""

FOUND = Path(__file__).with_name("found.json")
"""For each, the first seed that finds it; written by `make sim-mutants`."""

MUTANTS: dict[str, Mutant] = {
    m.name: m for module in (engine, gateway, resume, store) for m in module.MUTANTS
}


@contextlib.contextmanager
def planted(name: str | None) -> Generator[None, None, None]:
    """A context in which production has the bug; without a name it is as it is."""
    if name is None:
        yield
        return
    mutant = MUTANTS[name]
    original = getattr(mutant.owner, mutant.attribute)
    with mock.patch.object(mutant.owner, mutant.attribute, mutant.make(original)):
        yield


def find(name: str, seeds: Iterable[int]) -> int | None:
    """Returns the first seed that finds a bug by an invariant that it names."""
    with planted(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        for seed in seeds:
            violations = simulate(draw(seed)).violations
            gc.collect()  # of connections that a run cut short has left open
            if violations and violations[0].name in MUTANTS[name].finds:
                return seed
    return None
