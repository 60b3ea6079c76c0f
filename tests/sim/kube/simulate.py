"""One seed of the operator's world, from its number to a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.sim.history import History, Violation
from tests.sim.kube.operators import patched
from tests.sim.kube.script import Act, Scenario
from tests.sim.kube.world import World
from tests.sim.loop import SimLoop
from tests.sim.virtual_run import virtual_run

LIMIT_S = 1000.0
MAX_STEPS = 5_000_000


def simulate(scenario: Scenario, *, trace: bool = False) -> History:
    """Runs a scenario, and the quiet one with the same end, which must be like it."""
    history, end = _run(scenario, trace=trace)
    if not history.violations:
        quiet, quiet_end = _run(_quiet(scenario), trace=False)
        history.violations += quiet.violations
        for name in end.keys() | quiet_end.keys() if not quiet.violations else ():
            one, other = end.get(name), quiet_end.get(name)
            if one != other:
                detail = f"{name}: {_difference(one, other)}"
                history.violations.append(Violation("O4", detail, 0.0))
    return history


def _run(scenario: Scenario, *, trace: bool) -> tuple[History, dict[str, object]]:
    end: dict[str, object] = {}

    async def main(loop: SimLoop, history: History) -> None:
        with patched():
            world = World(scenario, loop, history)
            await world.run()
        end.update(world.essence())

    _, history = virtual_run(
        main, seed=scenario.seed, trace=trace, limit_s=LIMIT_S, max_steps=MAX_STEPS
    )
    return history, end


def _quiet(scenario: Scenario) -> Scenario:
    """Returns a scenario in which what users want in the end is all that they ever wanted."""
    wanted: dict[str, Act] = {}
    others: dict[str, Act] = {}
    for act in scenario.users:
        if act.at > scenario.options.fault_s:
            break
        if act.kind in ("apply", "bad"):
            wanted[act.target] = replace(act, at=1.0)
        elif act.kind == "delete":
            wanted.pop(act.target, None)
        elif act.kind in ("secret", "demand"):
            key = act.target if act.kind == "demand" else ""
            others[act.kind + key] = replace(act, at=0.5)
    options = replace(scenario.options, fault_s=5.0, operators=1, core=0)
    users = (*others.values(), *wanted.values())
    return replace(scenario, options=options, users=users, faults=())


def _difference(one: Any, other: Any, path: str = "") -> str:
    """Returns where two ends differ first: what it came to, and what without a history."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if one.get(key) != other.get(key):
                return _difference(one.get(key), other.get(key), f"{path}/{key}")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        for at, (a, b) in enumerate(zip(one, other, strict=False)):
            if a != b:
                return _difference(a, b, f"{path}/{at}")
    return f"{path} came to {one}, and without a history to {other}"
