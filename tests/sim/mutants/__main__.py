"""Searches for each planted bug and writes down the seed that finds it: `make sim-mutants`."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import json
import sys
import time

from tests.sim.mutants.registry import FOUND, LIMIT, MUTANTS, find


def main() -> int:
    """Returns 1 if a bug is not found within LIMIT seeds."""
    names = sys.argv[1:] or list(MUTANTS)
    found = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    missing = []
    for name in names:
        began = time.monotonic()
        seed = find(name, range(LIMIT))
        print(f"{name:40} {seed if seed is not None else 'NOT FOUND':>9}", end="")
        print(f"  {time.monotonic() - began:6.1f} s", flush=True)
        if seed is None:
            missing.append(name)
        else:
            found[name] = seed
    kept = {name: found[name] for name in sorted(found) if name in MUTANTS}
    FOUND.write_text(json.dumps(kept, indent=1) + "\n")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
