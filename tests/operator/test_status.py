from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.building import resource
from tests.operator.world import World

from octavo.operator import schema_status, status
from octavo.operator.conditions import Condition
from octavo.operator.kinds import Manifest
from octavo.operator.observed import ServiceLoad


def settled(**spec: Any) -> World:
    world = World(resource(**spec))
    world.settle()
    return world


def test_the_status_has_what_the_columns_and_the_scale_show() -> None:
    found = settled(replicas=2).resource["status"]
    assert (found["model"], found["reason"], found["counts"]) == ("llama", "Serving", "2/2")
    assert (found["replicas"], found["desired"], found["routable"]) == (2, 2, 2)
    assert found["url"] == "http://octavo-gateway.octavo.svc/v1"
    assert found["selector"].startswith("app.kubernetes.io/component=engine,")
    assert found["numericsIDs"] == ["cpu-1"]


def test_every_field_of_the_status_is_in_the_schema() -> None:
    world = settled(autoscaling={"maxReplicas": 2})
    world.resource["metadata"]["annotations"] = {"serving.octavo.dev/dry-run": "true"}
    world.execute(world.plan())
    properties = schema_status.status()["properties"]
    found = world.resource["status"]
    assert found.keys() <= properties.keys()
    for part in ("autoscaling", "plan"):
        assert found[part].keys() <= properties[part]["properties"].keys()


def test_the_hit_rate_moves_in_steps_and_stays_while_nothing_is_asked() -> None:
    world = settled(replicas=1)

    def shown(cached: int, prompt: int = 1000) -> object:
        world.load = ServiceLoad(service="team/llama", prompt_tokens=prompt, cached_tokens=cached)
        world.execute(world.plan())
        return world.resource["status"].get("hitRate")

    assert shown(0, 0) is None
    assert shown(702) == "70%"
    assert shown(740) == "70%"
    assert shown(760) == "76%"
    assert shown(0, 0) == "76%"
    assert shown(0) == "0%"


def test_kinds_of_arithmetic_stay_while_gateways_are_silent_and_go_with_the_engines() -> None:
    world = settled(replicas=1)
    before = copy.deepcopy(world.resource["status"])
    world.is_silent = True
    assert world.plan().is_empty
    world.edit(resource(replicas=0)["spec"])
    world.settle()
    assert "numericsIDs" in before
    assert "numericsIDs" not in world.resource["status"]


def test_fields_of_somebody_else_cost_no_write_and_ours_come_back() -> None:
    world = settled(replicas=1)
    theirs = {"type": "Other", "status": "True"}
    world.resource["status"]["conditions"].append(theirs)
    world.resource["status"]["foreign"] = 1
    assert world.plan().status is None
    world.resource["status"]["routable"] = 9
    assert world.plan().status is not None


@pytest.mark.parametrize("field", ["model", "selector", "desired", "autoscaling"])
def test_a_field_that_differs_has_to_be_written(field: str) -> None:
    present = settled(autoscaling={"maxReplicas": 2}).resource["status"]
    other = copy.deepcopy(present)
    del other[field]
    assert not status.is_same(other, present)
    assert not status.is_same(present, other)
    assert status.is_same(present, present)


def test_events_tell_changes_only() -> None:
    judged = [
        Condition(type="Ready", status="False", reason="Loading", message="m"),
        Condition(type="ModelCached", status="False", reason="Loading", message="m"),
        Condition(
            type="Rollout", status="False", reason="Stuck", message="no progress", is_failure=True
        ),
        Condition(type="Scheduled", status="True", reason="Placed", message="p"),
    ]
    conditions = [
        {"type": c.type, "status": c.status, "reason": c.reason, "message": c.message}
        for c in judged
    ]
    wanted = {"conditions": conditions}
    told = status.events({}, wanted, judged)
    assert [(event.type, event.reason) for event in told] == [
        ("Normal", "Loading"), ("Warning", "Stuck"),
    ]  # fmt: skip
    assert status.events(wanted, wanted, judged) == []
    changed = {"conditions": [conditions[0] | {"message": "other"}, *conditions[1:]]}
    assert status.events(changed, wanted, judged) == []


def test_a_change_of_the_number_of_engines_is_an_event() -> None:
    wanted = {"conditions": [], "autoscaling": {"reason": "1 → 2: why"}}
    (event,) = status.events({}, wanted, [])
    assert (event.reason, event.message) == ("Scaled", "1 → 2: why")
    undecided: Manifest = {"conditions": [], "autoscaling": {"reason": ""}}
    removed: Manifest = {"conditions": []}
    for without in (undecided, removed):
        assert status.events({}, without, []) == status.events(wanted, without, []) == []


def test_a_bad_resource_keeps_what_was_known() -> None:
    world = settled(replicas=2)
    world.edit({"model": {"uri": "nothing"}})
    world.execute(world.plan())
    found = world.resource["status"]
    assert (found["reason"], found["routable"], found["observedGeneration"]) == (
        "InvalidSpec", 2, 2,
    )  # fmt: skip
    rollout = next(c for c in found["conditions"] if c["type"] == "Rollout")
    assert rollout["observedGeneration"] == 1
