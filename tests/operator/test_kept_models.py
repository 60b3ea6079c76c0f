from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import defaulted, from_hub, resource
from tests.operator.engine_pods import ended, pod
from tests.operator.world import World

from octavo.operator import desired_engine, failures, kept_models, model_state, names, pods, schema
from octavo.operator.kinds import JOB, Manifest
from octavo.operator.model_state import is_finished
from octavo.operator.spec import InferenceService, parse
from octavo.v1 import errors


def full(revision: str, **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = from_hub(revision=revision) | {"replicas": 2} | more
    found: dict[str, Any] = defaulted(copy.deepcopy(spec), schema.spec())
    return found


def parsed(world: World) -> InferenceService:
    found = parse(world.resource)
    assert isinstance(found, InferenceService)
    return found


def kept(world: World) -> tuple[str, ...]:
    service, observed = parsed(world), world.observed()
    model = model_state.judge(service, observed, world.now)
    return kept_models.kept(service, observed, model)


def key(revision: str) -> str:
    return parsed(World(resource(**full(revision)))).spec.model.key


def settled(revision: str) -> World:
    world = World(resource(**full(revision)))
    world.settle()
    return world


def at_work(world: World) -> Manifest:
    """Returns the one Job that has not ended."""
    (job,) = [c for c in world.children.values() if c["kind"] == JOB.name and not is_finished(c)]
    return job


def loading(world: World, spec: dict[str, Any]) -> Manifest:
    """Wants another model, whose loader does not end; returns its Job."""
    world.is_loading = True
    world.edit(spec)
    world.execute(world.plan())
    return at_work(world)


def arguments(job: Manifest) -> list[str]:
    found: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return found


def told(job: Manifest) -> set[str]:
    """Returns what a Job lets its loader not remove; everything when it says nothing."""
    if "--keep" not in arguments(job):
        return {key(revision) for revision in ("v1", "v2", "v3")}
    return set(arguments(job)[arguments(job).index("--keep") + 1].split(","))


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
    assert told(at_work(world)) == {key("v2"), key("v3")}


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


def test_a_loader_at_work_goes_on_while_engines_are_replaced() -> None:
    world = settled("v1")
    other = {"options": {"threads": 2}}
    world.edit(full("v1", engine=other))
    for _ in range(2):
        world.execute(world.plan())
        world.step()
    job = loading(world, full("v2", engine=other))
    assert "--keep" not in arguments(job), "engines are being replaced"
    world.settle()
    assert {pods.template_of(pod) for pod in world.engines()} == {
        pods.template_of(world.deployment["spec"]["template"])
    }
    assert at_work(world)["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_loader_at_work_goes_on_while_engines_are_scaled() -> None:
    world = settled("v1")
    job = loading(world, full("v2"))
    assert told(job) == {key("v1"), key("v2")}
    for number in (3, 1):
        world.edit(full("v2") | {"replicas": number})
        world.execute(world.plan())
        taken_up = world.deployment["status"]["observedGeneration"]
        assert world.deployment["metadata"]["generation"] > taken_up
        world.settle()
        assert at_work(world)["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_loader_at_work_goes_on_while_the_rollout_is_paused_and_goes_on() -> None:
    world = settled("v1")
    job = loading(world, full("v2"))
    for paused in (True, False):
        world.edit(full("v2", rollout={"paused": paused}))
        world.deployment["spec"]["paused"] = paused
        world.settle()
        assert at_work(world)["metadata"]["uid"] == job["metadata"]["uid"]


def test_a_loader_that_could_remove_what_is_used_by_now_is_ended() -> None:
    world = settled("v1")
    job = loading(world, full("v2"))
    other = copy.deepcopy(world.engines()[0])
    other["metadata"] |= {"name": "other", "uid": "other"}
    container = other["spec"]["containers"][0]
    container["args"] = ["--model", f"/models/{key('v3')}", *container["args"][2:]]
    world.pods["other"] = other
    for _ in range(2):
        world.execute(world.plan())
    assert told(at_work(world)) == {key("v1"), key("v2"), key("v3")}
    assert at_work(world)["metadata"]["uid"] != job["metadata"]["uid"]


def test_a_loader_that_found_the_volume_full_may_remove_what_is_unused_by_now() -> None:
    world = settled("v1")
    world.deployment["spec"]["paused"] = True
    job = loading(world, full("v2"))
    assert "--keep" not in arguments(job)
    words = json.dumps({"code": errors.VOLUME_FULL.code, "text": "too small"})
    loader = pod("loader", component=names.LOADER, containers=[ended(4, words)])
    loader["metadata"]["labels"]["batch.kubernetes.io/job-name"] = job["metadata"]["name"]
    loader["metadata"]["ownerReferences"] = [{"uid": job["metadata"]["uid"]}]
    world.pods["loader"] = loader
    world.execute(world.plan())
    assert world.condition("ModelCached")["reason"] == failures.VOLUME_FULL
    assert at_work(world) == job, "nobody knows yet what may go"
    del world.deployment["spec"]["paused"]
    for _ in range(2):
        world.execute(world.plan())
    assert told(at_work(world)) == {key("v1"), key("v2")}


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["v1", "v2", "v3"]), st.integers(0, 8), st.booleans()), max_size=6
    )
)
def test_no_loader_is_ever_free_to_remove_what_an_engine_has(
    edits: list[tuple[str, int, bool]],
) -> None:
    world = World(resource(**full("v1")))
    for revision, steps, is_loading in [("v1", 4, False), *edits]:
        world.is_loading = is_loading
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
