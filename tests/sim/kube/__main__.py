"""Runs seeds of the operator's world: `python -m tests.sim.kube --seeds 0-999`, or `--seed 17`."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections import Counter
from dataclasses import replace

from tests.sim.kube.mutants import MUTANTS, find_all, planted
from tests.sim.kube.script import Scenario, draw
from tests.sim.kube.simulate import simulate
from tests.sim.shrink import ddmin


def main() -> int:
    """Returns 1 if an invariant was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.kube", description=__doc__)
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--seeds", default="0-99", help="A-B (default: %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print what happens, logs included")
    parser.add_argument("--digests", action="store_true", help="print the trace hash of each seed")
    parser.add_argument("--counts", action="store_true", help="print how often things were reached")
    parser.add_argument("--no-shrink", action="store_true", help="do not look for a smaller script")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant a bug first")
    parser.add_argument("--find-mutants", action="store_true", help="find the seeds of all bugs")
    args = parser.parse_args()
    if args.find_mutants:
        missing = find_all()
        print(f"{len(MUTANTS) - len(missing)} of {len(MUTANTS)} bugs found", *missing, sep="\n  ")
        return int(bool(missing))
    first, _, last = args.seeds.partition("-")
    seeds = [args.seed] if args.seed is not None else range(int(first), int(last) + 1)
    gc.freeze()  # else each run looks through all that is loaded, twice
    began, counts, bad = time.monotonic(), Counter[str](), 0
    with planted(args.mutant):
        for seed in seeds:
            history = simulate(draw(seed), trace=args.trace)
            counts += history.counts
            if args.trace:
                print("\n".join(history.lines or ()))
            if args.digests:
                print(seed, history.digest)
            if history.violations:
                bad += 1
                _report(draw(seed), str(history.violations[0]), smaller=not args.no_shrink)
    seconds = time.monotonic() - began
    print(f"{len(seeds)} seeds, {bad} with violations, {seconds / len(seeds):.2f} s each")
    if args.counts:
        print("\n".join(f"{count:8} {name}" for name, count in sorted(counts.items())))
    return int(bad > 0)


def _report(scenario: Scenario, violation: str, *, smaller: bool) -> None:
    """Prints what was violated, and the smallest script that does it."""
    print(f"seed {scenario.seed}: {violation}\n  {scenario.options}")
    if smaller:
        scenario = _smallest(scenario, violation[:2])
    for act in (*scenario.users, *scenario.faults):
        print(f"    {act}")
    sys.stdout.flush()


def _smallest(scenario: Scenario, name: str) -> Scenario:
    def fails(candidate: Scenario) -> bool:
        return any(v.name == name for v in simulate(candidate).violations)

    faults = ddmin(scenario.faults, lambda some: fails(replace(scenario, faults=tuple(some))))
    scenario = replace(scenario, faults=tuple(faults))
    users = ddmin(scenario.users, lambda some: fails(replace(scenario, users=tuple(some))))
    return replace(scenario, users=tuple(users))


if __name__ == "__main__":
    sys.exit(main())
