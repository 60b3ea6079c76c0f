"""Searches for each planted bug and writes down the seed that finds it: `make sim-mutants`."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import sys
import time

from tests.sim.kube.mutants import OPERATORS
from tests.sim.mutants.platform_bugs import PLATFORM
from tests.sim.mutants.registry import Registry


def main() -> int:
    """Returns 1 if a bug is not found."""
    wanted = sys.argv[1:] or [*PLATFORM.bugs, *OPERATORS.bugs]
    missing = [name for bugs in (PLATFORM, OPERATORS) for name in _search(bugs, wanted)]
    return int(bool(missing))


def _search(bugs: Registry, wanted: list[str]) -> list[str]:
    """Returns the wanted bugs of a simulation that no seed finds."""
    found, missing = bugs.found(), []
    for name in (name for name in wanted if name in bugs.bugs):
        began = time.monotonic()
        seed = bugs.find(name)
        print(f"{name:50} {seed if seed is not None else 'NOT FOUND':>9}", end="")
        print(f"  {time.monotonic() - began:6.1f} s", flush=True)
        if seed is None:
            missing.append(name)
        else:
            found[name] = seed
    bugs.keep(found)
    return missing


if __name__ == "__main__":
    sys.exit(main())
