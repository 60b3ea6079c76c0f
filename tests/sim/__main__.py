"""Runs seeds: `python -m tests.sim --seeds 0-999`, or one with its trace: `--seed 17 --trace`."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import time
from collections import Counter

from tests.sim.mutants.registry import MUTANTS, planted
from tests.sim.shrink import shrink
from tests.sim.simulate import Verdict, draw, simulate
from tests.sim.world import Scenario

SHRINK_RUNS = 150


def main() -> int:
    """Returns 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", default="0-99", help="A-B or A,B,C (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print what happens, logs included")
    parser.add_argument("--digests", action="store_true", help="print the trace hash of each seed")
    parser.add_argument("--counts", action="store_true", help="print how often things were reached")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a smaller script")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant a bug first")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else _seeds(args.seeds)
    if args.jobs > 1:
        return _in_processes(seeds, args.jobs)
    gc.freeze()  # else each run looks through all that is loaded, twice
    began, counts, bad = time.monotonic(), Counter[str](), 0
    with planted(args.mutant):
        for seed in seeds:
            verdict = simulate(draw(seed), trace=args.trace)
            counts += verdict.counts
            if args.trace:
                print("\n".join(verdict.lines or ()))
            if args.digests:
                print(seed, verdict.digest)
            if verdict.violations:
                bad += 1
                report(verdict, smaller=not args.no_shrink)
    seconds = time.monotonic() - began
    print(f"{len(seeds)} seeds, {bad} with violations, {seconds / len(seeds):.2f} s each")
    if args.counts:
        print("\n".join(f"{count:8} {name}" for name, count in sorted(counts.items())))
    return int(bad > 0)


def report(verdict: Verdict, *, smaller: bool) -> None:
    """Prints what was violated, and the smallest script that does it."""
    scenario = verdict.scenario
    print(f"seed {scenario.seed}: {verdict.violations[0]}\n  {scenario.options}")
    if smaller:
        scenario = smallest(scenario, verdict.violations[0].name)
        print(f"  shrunk to {len(scenario.faults)} faults, {len(scenario.requests)} requests:")
    for entry in (*scenario.faults, *scenario.requests):
        print(f"    {entry}")
    sys.stdout.flush()


def smallest(scenario: Scenario, name: str) -> Scenario:
    """Returns a smaller scenario that violates the same invariant."""
    runs = 0

    def fails(candidate: Scenario) -> bool:
        nonlocal runs
        runs += 1
        if runs > SHRINK_RUNS:
            return False
        return any(v.name == name for v in simulate(candidate).violations)

    return shrink(scenario, fails)


def _seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(s) for s in text.split(",")]


def _in_processes(seeds: list[int], jobs: int) -> int:
    """Deals the seeds to processes of their own, with the other arguments as they are."""
    kept = [a for a in sys.argv[1:] if not a.startswith(("--jobs", "--seeds"))]
    for name in ("--jobs", "--seeds"):
        if name in sys.argv:
            kept.remove(sys.argv[sys.argv.index(name) + 1])
    command = [sys.executable, "-m", "tests.sim", *kept]
    running = [
        subprocess.Popen([*command, "--seeds", ",".join(map(str, seeds[i::jobs]))])
        for i in range(min(jobs, len(seeds)))
    ]
    return max(process.wait() for process in running)


if __name__ == "__main__":
    sys.exit(main())
