from __future__ import annotations

from typing import Any

from tests.operator.building import from_hub, resource, service
from tests.operator.world import World

from octavo.operator.kinds import Manifest
from octavo.operator.plan import Apply
from octavo.operator.replicas import DEFAULT_PLACES, Replicas, decide


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


def test_one_is_scaled_while_its_new_model_is_loaded() -> None:
    spec: dict[str, Any] = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    world = World(resource(**spec, **from_hub()))
    world.settle()
    assert decided(world, **spec, **from_hub()).number == 1


def test_the_number_of_places_is_that_of_the_engine() -> None:
    assert DEFAULT_PLACES == 64  # the contract test compares it with the engine's own default
