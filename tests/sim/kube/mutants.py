"""Bugs to plant in the operator: proof that its simulation can fail."""

# ruff: noqa: ARG005 - a bug ignores what it should look at

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sim.kube.script import draw
from tests.sim.kube.simulate import simulate
from tests.sim.mutants.mutant import Mutant, mutant
from tests.sim.mutants.registry import Registry

from octavo.operator import (
    counts,
    model_state,
    names,
    pods,
    reconcile,
    rollout,
    routable,
    status,
    writes,
)
from octavo.operator.controller import Controller
from octavo.operator.execution import Executor
from octavo.operator.lease import LeaseHolder
from octavo.operator.mirror import Mirror
from octavo.operator.observed import annotation

_TABLE: list[Mutant] = []


@mutant(_TABLE, Controller, "_backoff_s", "O0")
def a_third_failure_in_a_row_is_too_much(original: Any) -> Any:
    return lambda self, attempt: original(self, attempt) if attempt < 2 else [][0]


@mutant(_TABLE, Controller, "run_resync", "O1", "O4")
def nothing_finds_what_watches_miss(original: Any) -> Any:
    async def run_resync(self: Controller) -> None:
        await asyncio.Event().wait()

    return run_resync


@mutant(_TABLE, status, "is_same", "O1")
def the_status_is_always_written(original: Any) -> Any:
    return lambda present, wanted: False


@mutant(_TABLE, writes, "_unwanted", "O4")
def what_is_unwanted_stays(original: Any) -> Any:
    return lambda observed, uid, kept: []


@mutant(_TABLE, writes, "_write", "O1", "O4")
def what_somebody_changed_stays(original: Any) -> Any:
    def write(child: Any, found: Any, *, is_guarded: bool) -> Any:
        is_ours = found is not None and annotation(found, names.APPLIED) == annotation(
            child, names.APPLIED
        )
        return (None, []) if is_ours else original(child, found, is_guarded=is_guarded)

    return write


@mutant(_TABLE, model_state, "is_of_lost_volume", "O1", "O4", "O5")
def a_model_is_never_lost_with_its_volume(original: Any) -> Any:
    return lambda job, claim: False


@mutant(_TABLE, Executor, "_delete", "O1", "O4")
def deletions_are_left_out(original: Any) -> Any:
    async def delete(self: Executor, write: Any, key: Any) -> bool:
        return False

    return delete


@mutant(_TABLE, writes, "owns_replicas", "O2")
def whoever_decided_the_number_decides_it_for_ever(original: Any) -> Any:
    return lambda deployment: False


@mutant(_TABLE, LeaseHolder, "is_held", "O2")
def a_lease_is_held_for_ever(original: Any) -> Any:
    return lambda self: self._held_until > float("-inf")


@mutant(_TABLE, Executor, "_write_as_holder", "O2")
def a_plan_outlives_its_lease(original: Any) -> Any:
    async def write_as_holder(self: Executor, kind: Any, verb: str, write: Any) -> Any:
        return await write()

    return write_as_holder


@mutant(_TABLE, rollout, "decide", "O3", "O4")
def engines_are_always_replaced_one_by_one(original: Any) -> Any:
    return lambda *args: replace(original(*args), strategy=rollout.ONE_BY_ONE)


@mutant(_TABLE, counts, "count", "O5")
def engines_that_load_count_as_routable(original: Any) -> Any:
    def count(*args: Any) -> Any:
        made = original(*args)
        return replace(made, routable=made.live)

    return count


@mutant(_TABLE, Executor, "_write_status", "O5")
def a_status_is_written_to_whoever_has_the_name(original: Any) -> Any:
    async def write_status(self: Executor, kind: Any, metadata: Any, status: Any) -> bool:
        named = {key: metadata[key] for key in ("name", "namespace")}
        return bool(await original(self, kind, named, status))

    return write_status


@mutant(_TABLE, Mirror, "replace", "O1", "O4", "O5")
def what_a_listing_lacks_stays(original: Any) -> Any:
    def replace(self: Mirror, kind: Any, namespace: Any, listing: Any) -> Any:
        return {key for m in listing.items if (key := self.see(kind, m)) is not None}

    return replace


@mutant(_TABLE, routable, "_change", "O1", "O4")
def a_gate_that_closed_stays_closed(original: Any) -> Any:
    def change(pod: Any, gateways: Any) -> Any:
        was_closed = pods.condition(pod, names.ROUTABLE_GATE)
        return None if was_closed.get("status") == "False" else original(pod, gateways)

    return change


@mutant(_TABLE, reconcile, "parse", "O6")
def a_bad_resource_is_passed_over(original: Any) -> Any:
    def parse(resource: Any) -> Any:
        parsed = original(resource)
        if isinstance(parsed, list):
            spec = {k: v for k, v in resource["spec"].items() if k != "autoscaling"}
            parsed = original(resource | {"spec": spec})
        return parsed

    return parse


OPERATORS = Registry(
    _TABLE,
    violations=lambda seed: simulate(draw(seed)).violations,
    file=Path(__file__).with_name("found.json"),
)
