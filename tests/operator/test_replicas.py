from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.operator.building import from_hub, resource, service
from tests.operator.world import START, World

from octavo.operator.autoscale import LOADING_S
from octavo.operator.kinds import Manifest
from octavo.operator.names import ROUTABLE_GATE
from octavo.operator.observed import ServiceLoad
from octavo.operator.plan import Apply, Scale
from octavo.operator.replicas import DEFAULT_PLACES, Replicas, decide, is_loading
from octavo.operator.timestamps import to_text

ASLEEP: dict[str, Any] = {"minReplicas": 0, "maxReplicas": 4}
OTHER: dict[str, Any] = {"engine": {"options": {"threads": 2}}}
DRY_RUN = {"serving.octavo.dev/dry-run": "true"}


def conditions(**statuses: str) -> list[Manifest]:
    return [{"type": name, "status": status} for name, status in statuses.items()]


NO_NODE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
CRASHED = {"containerStatuses": [{"lastState": {"terminated": {"exitCode": 3}}}]}
LOADED = {"conditions": conditions(ContainersReady="True", Ready="False")}
SERVES = {"conditions": [*conditions(ContainersReady="True", Ready="True"),
                         {"type": ROUTABLE_GATE, "status": "True"}]}  # fmt: skip


def decided(world: World, **spec: Any) -> Replicas:
    deployment = world.children.get(("Deployment", "llama-engine"))
    return decide(service(**spec), world.observed(), deployment, world.now)


def applied(world: World) -> list[Manifest]:
    return [
        write.manifest
        for write in world.plan().writes
        if isinstance(write, Apply) and write.kind.name == "Deployment"
    ]


def test_the_user_s_number_is_taken() -> None:
    found = decided(World(resource(replicas=3)), replicas=3)
    assert (found.number, found.applied, found.needed, found.memory) == (3, 3, 3, None)
    assert decided(World(resource(replicas=0)), replicas=0).number == 0


def test_without_a_number_one_engine_is_started_and_nobody_of_ours_writes_it() -> None:
    world = World(resource())
    (manifest,) = applied(world)
    assert "replicas" not in manifest["spec"]
    world.settle()
    assert world.deployment["spec"]["replicas"] == 1


def test_a_number_of_somebody_else_is_left_alone() -> None:
    world = World(resource())
    world.settle()
    world.deployment["spec"]["replicas"] = 5
    assert applied(world) == []
    world.settle()
    assert world.resource["status"]["desired"] == 5
    world.edit(resource(engine={"options": {"threads": 2}})["spec"])
    (manifest,) = applied(world)
    assert "replicas" not in manifest["spec"]
    world.settle()
    assert world.deployment["spec"]["replicas"] == 5


def test_a_number_that_the_user_gives_away_stays_and_is_not_reset() -> None:
    world = World(resource(replicas=3))
    world.settle()
    world.edit(resource(engine={"options": {"threads": 2}})["spec"])
    (manifest,) = applied(world)
    assert manifest["spec"]["replicas"] == 3
    # It is written only onto the very state that it was read from.
    version = world.deployment["metadata"]["resourceVersion"]
    assert manifest["metadata"]["resourceVersion"] == version
    world.settle()
    assert world.deployment["spec"]["replicas"] == 3


def test_the_autoscaler_s_number_is_applied() -> None:
    spec: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    found = decided(World(resource(**spec)), **spec)
    assert (found.number, found.applied, found.needed) == (2, 2, 2)
    assert found.memory is not None


def test_an_engine_above_the_fewest_is_not_needed_to_be_ready() -> None:
    spec: dict[str, Any] = {"autoscaling": {"minReplicas": 0, "maxReplicas": 4}}
    world = World(resource(**spec))
    world.settle()
    world.deployment["spec"]["replicas"] = 3
    assert decided(world, **spec).needed == 1


def test_a_dry_run_scales_nothing() -> None:
    spec: dict[str, Any] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    world = World(resource(**spec))
    world.settle()
    world.resource["metadata"]["annotations"] = {"serving.octavo.dev/dry-run": "true"}
    world.edit(resource(autoscaling={"minReplicas": 3, "maxReplicas": 4})["spec"])
    world.execute(world.plan())
    assert world.deployment["spec"]["replicas"] == 2


def test_a_service_that_sleeps_wakes_in_a_dry_run_and_nothing_else_is_written() -> None:
    world = World(resource(autoscaling=ASLEEP))
    world.settle()
    world.now += 400
    world.settle()
    assert world.deployment["spec"]["replicas"] == 0
    present = copy.deepcopy(world.deployment["spec"]["template"])
    world.resource["metadata"]["annotations"] = DRY_RUN
    world.edit(resource(autoscaling=ASLEEP | {"minReplicas": 1}, **OTHER)["spec"])
    world.settle()
    assert world.deployment["spec"]["replicas"] == 0, "nobody asks"
    world.load = ServiceLoad(service="team/llama", held=1, wanted_age_s=1.0)
    plan = world.plan()
    assert [type(write) for write in plan.writes] == [Scale]
    assert plan.status is not None
    assert not any("replicas" in path for path in plan.status["plan"]["changes"])
    world.execute(plan)
    assert world.deployment["spec"]["replicas"] == 1
    assert world.deployment["spec"]["template"] == present
    world.load = ServiceLoad(service="team/llama", in_flight=1, wanted_age_s=2.0, queue_s=99.0)
    world.settle()
    assert world.deployment["spec"]["replicas"] == 1, "it does not go on to scale"
    assert [e.message for e in world.events if e.reason == "Scaled"][-1] == "0 → 1: a request came"
    world.resource["metadata"]["annotations"] = {}
    world.load = None
    world.settle()
    assert world.deployment["spec"]["template"] != present


def test_a_service_that_is_stopped_does_not_wake_while_autoscaling_is_tried_out() -> None:
    world = World(resource(replicas=0))
    world.settle()
    world.resource["metadata"]["annotations"] = DRY_RUN
    world.edit(resource(autoscaling=ASLEEP)["spec"])
    world.load = ServiceLoad(service="team/llama", held=1, wanted_age_s=1.0)
    world.settle()
    assert world.deployment["spec"]["replicas"] == 0


def test_engines_that_have_had_their_time_keep_no_others() -> None:
    """The fourth finds no node; the load ends."""
    world = World(resource(autoscaling=ASLEEP | {"maxReplicas": 4, "maxStepUp": 3}), room=3)
    world.settle()
    world.load = ServiceLoad(service="team/llama", queue_s=99.0, in_flight=99, wanted_age_s=0.0)
    world.settle()
    assert world.deployment["spec"]["replicas"] == 4
    world.load = None
    world.now += 600
    world.settle()
    assert world.deployment["spec"]["replicas"] == 4, "a node may still come"
    numbers = []
    for _ in range(60):
        plan = world.plan()
        world.execute(plan)
        world.step()
        numbers.append(world.deployment["spec"]["replicas"])
        if plan.requeue_s is not None:
            world.now += plan.requeue_s
    assert list(dict.fromkeys(numbers)) == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("age_s", "change", "expected"),
    [
        (30.0, {}, 1),
        (5000.0, {}, 1),
        (LOADING_S - 1, NO_NODE, 1),
        (LOADING_S, NO_NODE, 0),
        (LOADING_S, CRASHED, 0),
        (LOADING_S - 1, LOADED, 1),
        (LOADING_S, LOADED, 0),
        (30.0, SERVES, 0),
    ],
    ids=[
        "young", "loads for long", "a node may come", "no node came", "it crashes",
        "gateways connect", "gateways cannot reach it", "it serves",
    ],
)  # fmt: skip
def test_what_may_soon_serve_loads(age_s: float, change: Manifest, expected: int) -> None:
    pod = {"metadata": {"creationTimestamp": to_text(START - age_s)}, "status": change}
    assert is_loading(pod, START) == expected


def test_one_is_scaled_while_its_new_model_is_loaded() -> None:
    spec: dict[str, Any] = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    world = World(resource(**spec, **from_hub()))
    world.settle()
    assert decided(world, **spec, **from_hub()).number == 1


def test_the_number_of_places_is_that_of_the_engine() -> None:
    assert DEFAULT_PLACES == 64  # the contract test compares it with the engine's own default
