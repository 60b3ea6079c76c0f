from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import defaulted, from_hub, resource
from tests.operator.world import World

from octavo.operator import desired_engine, kept_models, names, pods, schema
from octavo.operator.kinds import JOB, Manifest
from octavo.operator.model_state import is_finished
from octavo.operator.spec import InferenceService, parse


def full(revision: str) -> dict[str, Any]:
    spec: dict[str, Any] = from_hub(revision=revision) | {"replicas": 2}
    found: dict[str, Any] = defaulted(copy.deepcopy(spec), schema.spec())
    return found


def parsed(world: World) -> InferenceService:
    found = parse(world.resource)
    assert isinstance(found, InferenceService)
    return found


def kept(world: World) -> tuple[str, ...]:
    return kept_models.kept(parsed(world), world.observed())


def key(revision: str) -> str:
    return parsed(World(resource(**full(revision)))).spec.model.key


def settled(revision: str) -> World:
    world = World(resource(**full(revision)))
    world.settle()
    return world


def told(job: Manifest) -> set[str]:
    """Returns what a Job lets its loader not remove; everything when it says nothing."""
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    if "--keep" not in arguments:
        return {key(revision) for revision in ("v1", "v2", "v3")}
    return set(arguments[arguments.index("--keep") + 1].split(","))


def test_the_first_model_of_all_is_wanted_and_nothing_else() -> None:
    assert kept(World(resource(**full("v1")))) == (key("v1"),)


def test_what_engines_serve_from_stays_and_what_nobody_uses_may_go() -> None:
    world = settled("v1")
    world.edit(full("v2"))
    assert kept(world) == tuple(sorted([key("v1"), key("v2")]))
    world.settle()
    assert kept(world) == (key("v2"),)
    world.edit(full("v3"))
    world.execute(world.plan())
    (job,) = [c for c in world.children.values() if c["kind"] == JOB.name and not is_finished(c)]
    assert told(job) == {key("v2"), key("v3")}


def test_a_service_without_engines_keeps_what_they_would_start_with() -> None:
    world = settled("v1")
    world.edit(full("v1") | {"replicas": 0})
    world.settle()
    assert world.engines() == []
    world.edit(full("v2") | {"replicas": 0})
    assert key("v1") in kept(world)


def test_an_engine_that_drains_still_has_its_model() -> None:
    world = settled("v1")
    world.edit(full("v2"))
    for _ in range(30):
        world.execute(world.plan())
        live = [p for p in world.engines() if pods.is_live(p)]
        if any(pods.is_going(p) for p in world.engines()):
            break
        world.step()
    assert live
    assert kept(world) == (), "and its pod may be made once more"


def test_an_older_template_that_may_still_make_engines_lets_nothing_be_removed() -> None:
    world = settled("v1")
    world.edit(full("v1") | {"replicas": 0})
    world.settle()
    (deployment,) = [c for c in world.children.values() if c["kind"] == "Deployment"]
    deployment["spec"]["paused"] = True
    assert kept(world) == ()
    del deployment["spec"]["paused"]
    deployment["metadata"]["generation"] = 99
    deployment["status"] = {"observedGeneration": 98}
    assert kept(world) == ()
    deployment["status"] = {"observedGeneration": 99, "replicas": 2, "updatedReplicas": 1}
    assert kept(world) == ()
    deployment["status"]["updatedReplicas"] = 2
    assert kept(world) == (key("v1"),)


def test_where_a_pod_uses_nobody_knows_what_nothing_is_removed() -> None:
    world = settled("v1")
    world.engines()[0]["spec"]["containers"][0]["args"] = ["--strange"]
    assert kept(world) == ()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["v1", "v2", "v3"]), st.integers(0, 8)), max_size=6))
def test_no_loader_is_ever_free_to_remove_what_an_engine_has(
    edits: list[tuple[str, int]],
) -> None:
    world = World(resource(**full("v1")))
    for revision, steps in [("v1", 4), *edits]:
        world.edit(full(revision))
        for _ in range(steps):
            world.execute(world.plan())
            engines = [pod for pod in world.engines() if not pods.is_over(pod)]
            used = {desired_engine.folder_of(pod) for pod in engines}
            for job in [c for c in world.children.values() if c["kind"] == JOB.name]:
                assert is_finished(job) or used <= told(job)
            world.step()
            world.now += 5


def test_another_model_is_loaded_only_when_no_other_loader_is_left() -> None:
    world = World(resource(**full("v1")))
    world.execute(world.plan())
    (old,) = [name for kind, name in world.children if kind == JOB.name]
    labels = names.labels("llama", names.LOADER) | {"batch.kubernetes.io/job-name": old}
    pod: Manifest = {"metadata": {"name": "l", "labels": labels, "uid": "l"}, "spec": {}}
    world.pods["l"] = pod
    world.edit(full("v2"))
    for _ in range(3):
        world.execute(world.plan())
        assert not [name for kind, name in world.children if kind == JOB.name]
    assert world.condition("ModelCached")["reason"] == "WaitingForLoader"
    del world.pods["l"]
    world.execute(world.plan())
    (new,) = [name for kind, name in world.children if kind == JOB.name]
    assert new != old
