"""The command line of a simulation: seeds are run, and what they violate is told and made small."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tests.sim.history import Violation
from tests.sim.mutants.registry import Registry
from tests.sim.shrink import shrink

SHRINK_RUNS = 150

S = TypeVar("S", bound=Any)
"""A scenario: a frozen dataclass with the seed and the options of its run, and a script."""


S_contra = TypeVar("S_contra", bound=Any, contravariant=True)


class Outcome(Protocol):
    """What became of a run."""

    @property
    def violations(self) -> Sequence[Violation]: ...
    @property
    def digest(self) -> str: ...
    @property
    def counts(self) -> Counter[str]: ...
    @property
    def lines(self) -> list[str] | None: ...


class Simulate(Protocol[S_contra]):
    """Runs a scenario; with its trace if that is wanted."""

    def __call__(self, scenario: S_contra, *, trace: bool = False) -> Outcome: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation(Generic[S]):
    """A simulation."""

    module: str
    """What `python -m` takes."""
    draw: Callable[[int], S]
    simulate: Simulate[S]
    script: tuple[str, ...]
    """Fields of a scenario that are its script: a smaller one has fewer entries there."""
    bugs: Registry

    def main(self, description: str | None) -> int:
        """Does what the arguments say; returns 1 if an invariant was broken."""
        args = self._arguments(description)
        seeds = [args.seed] if args.seed is not None else _seeds(args.seeds)
        if args.jobs > 1:
            return self._in_processes(seeds, args.jobs)
        gc.freeze()  # else each run looks through all that is loaded, twice
        began, counts, bad = time.monotonic(), Counter[str](), 0
        with self.bugs.planted(args.mutant):
            for seed in seeds:
                outcome = self.simulate(self.draw(seed), trace=args.trace)
                counts += outcome.counts
                if args.trace:
                    print("\n".join(outcome.lines or ()))
                if args.digests:
                    print(seed, outcome.digest)
                if outcome.violations:
                    bad += 1
                    self._report(self.draw(seed), outcome.violations[0], small=not args.no_shrink)
        seconds = time.monotonic() - began
        print(f"{len(seeds)} seeds, {bad} with violations, {seconds / len(seeds):.2f} s each")
        if args.counts:
            print("\n".join(f"{count:8} {name}" for name, count in sorted(counts.items())))
        return int(bad > 0)

    def smallest(self, scenario: S, name: str) -> S:
        """Returns a smaller scenario that violates the same invariant."""
        runs = 0

        def fails(candidate: S) -> bool:
            nonlocal runs
            runs += 1
            if runs > SHRINK_RUNS:
                return False
            return any(v.name == name for v in self.simulate(candidate).violations)

        return shrink(scenario, fails, self.script)

    def _arguments(self, description: str | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m {self.module}", description=description)
        add = parser.add_argument
        add("--seed", type=int, help="run one seed")
        add("--seeds", default="0-99", help="A-B or A,B,C (default: %(default)s)")
        add("--trace", action="store_true", help="print what happens, logs included")
        add("--digests", action="store_true", help="print the trace hash of each seed")
        add("--counts", action="store_true", help="print how often things were reached")
        add("--no-shrink", action="store_true", help="do not look for a smaller script")
        add("--jobs", type=int, default=1, help="processes (default: %(default)s)")
        add("--mutant", choices=sorted(self.bugs.bugs), help="plant a bug first")
        return parser.parse_args()

    def _report(self, scenario: S, violation: Violation, *, small: bool) -> None:
        """Prints what was violated, and the smallest script that does it."""
        print(f"seed {scenario.seed}: {violation}\n  {scenario.options}")
        if small:
            scenario = self.smallest(scenario, violation.name)
            sizes = (f"{len(getattr(scenario, part))} {part}" for part in self.script)
            print(f"  shrunk to {', '.join(sizes)}:")
        for part in self.script:
            for entry in getattr(scenario, part):
                print(f"    {entry}")
        sys.stdout.flush()

    def _in_processes(self, seeds: list[int], jobs: int) -> int:
        """Deals the seeds to processes of their own, with the other arguments as they are."""
        kept = [a for a in sys.argv[1:] if not a.startswith(("--jobs", "--seeds"))]
        for name in ("--jobs", "--seeds"):
            if name in sys.argv:
                kept.remove(sys.argv[sys.argv.index(name) + 1])
        command = [sys.executable, "-m", self.module, *kept]
        running = [
            subprocess.Popen([*command, "--seeds", ",".join(map(str, seeds[i::jobs]))])
            for i in range(min(jobs, len(seeds)))
        ]
        return max(process.wait() for process in running)


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(s) for s in text.split(",")]
