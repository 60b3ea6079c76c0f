from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import defaulted, from_hub, resource
from tests.operator.specs import DATA, specs
from tests.operator.world import START, World, at

from octavo.operator import names, pods, rollout, schema
from octavo.operator.kinds import JOB, SERVICE, VOLUME_CLAIM, Manifest
from octavo.operator.observed import Refusal
from octavo.operator.plan import Apply, Plan
from octavo.operator.reconcile import reconcile


def full(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = defaulted(copy.deepcopy(spec), schema.spec())
    return found


def world_of(spec: dict[str, Any], **more: Any) -> World:
    return World(resource(**copy.deepcopy(spec)), references=dict(DATA), **more)


def wanted_state(world: World) -> object:
    """What is independent of how it came about: all that the operator wrote, and the counts."""
    children = {
        key: "a Job that has ended stays as it was"
        if key[0] == "Job"
        else {
            "labels": child["metadata"]["labels"],
            "annotations": child["metadata"]["annotations"] | {rollout.REVISION: None},
            "content": _without_size(child),
        }
        for key, child in world.children.items()
    }
    status = {
        key: value
        for key, value in world.resource["status"].items()
        if key not in ("observedGeneration", "conditions")
    }
    words = [(c["type"], c["status"], c["reason"]) for c in world.resource["status"]["conditions"]]
    return copy.deepcopy((children, status, words))


def _without_size(child: Manifest) -> Manifest:
    """Returns what was applied, without what no claim loses: the size that it once had."""
    content: Manifest = child.get("spec") or child["data"]
    has_size = child["kind"] == "PersistentVolumeClaim"
    return content | {"resources": None} if has_size else content


def settled(world: World) -> World:
    world.settle()
    return world


@settings(max_examples=60)
@given(specs())
def test_a_settled_service_gets_no_further_write(spec: dict[str, Any]) -> None:
    world = settled(world_of(spec))
    world.now += 3600
    assert world.plan().is_empty
    assert world.plan().events == ()


@settings(max_examples=60)
@given(specs())
def test_a_plan_carried_out_is_empty_when_made_again(spec: dict[str, Any]) -> None:
    world = world_of(spec)
    for _ in range(12):
        world.execute(world.plan())
        assert not [w for w in world.plan().writes if isinstance(w, Apply)]
        world.step()
        world.now += 5


@settings(max_examples=60)
@given(specs(), specs())
def test_the_path_to_a_spec_does_not_matter(first: dict[str, Any], second: dict[str, Any]) -> None:
    if "replicas" not in second:
        second["replicas"] = 1  # otherwise the number is what somebody else has left
    direct = settled(world_of(second))
    edited = settled(world_of(first))
    edited.edit(full(second))
    settled(edited)
    assert wanted_state(edited) == wanted_state(direct)


@settings(max_examples=25)
@given(specs(), specs(), st.data())
def test_an_operator_that_ends_after_any_write_reaches_the_same_end(
    first: dict[str, Any], second: dict[str, Any], data: st.DataObject
) -> None:
    second.setdefault("replicas", 1)
    straight = settled(world_of(first))
    straight.edit(full(second))
    interrupted = copy.deepcopy(straight)
    settled(straight)
    for _ in range(40):
        plan = interrupted.plan()
        count = len(plan.writes) + (plan.status is not None)
        interrupted.execute(plan, stop_after=data.draw(st.integers(0, count)))
        interrupted.step()
        interrupted.now += 5
    settled(interrupted)
    assert wanted_state(interrupted) == wanted_state(straight)


def test_every_single_write_may_be_the_last_one() -> None:
    spec = {"replicas": 2, **from_hub()}
    changed = full({"replicas": 1, **from_hub(revision="v2")})
    straight = settled(world_of(spec))
    straight.edit(changed)
    settled(straight)
    for stop in range(1, 60):
        world = settled(world_of(spec))
        world.edit(changed)
        before = world.num_writes
        for _ in range(60):
            plan = world.plan()
            world.execute(plan, stop_after=max(0, stop - (world.num_writes - before)))
            if world.num_writes - before >= stop:
                break
            world.step()
            world.now += 5
        else:
            return  # there were no more writes than these
        settled(world)
        assert wanted_state(world) == wanted_state(straight), stop
    raise AssertionError("too many writes")


def test_events_that_are_missed_change_nothing() -> None:
    spec = {"replicas": 2, **from_hub()}
    straight = settled(world_of(spec))
    for missed in range(8):
        world = world_of(spec)
        for turn in range(12):
            if turn != missed:
                world.execute(world.plan())
            world.step()
            world.now += 5
        settled(world)
        assert wanted_state(world) == wanted_state(straight)


def test_what_somebody_deletes_or_changes_comes_back() -> None:
    world = settled(world_of({"replicas": 1}))
    before = wanted_state(world)
    del world.children["Service", "llama-engine"]
    policy = world.children["NetworkPolicy", "llama-engine"]
    policy["spec"]["ingress"] = [{}]
    world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    settled(world)
    assert wanted_state(world) == before


def test_fields_of_other_writers_stay_and_cost_no_write() -> None:
    world = settled(world_of({"replicas": 1}))
    container = world.deployment["spec"]["template"]["spec"]["containers"][0]
    container["env"].append({"name": "INJECTED", "value": "1"})
    world.deployment["metadata"]["labels"]["team"] = "x"
    assert world.plan().is_empty


def test_a_bad_spec_gets_a_condition_and_no_write() -> None:
    world = settled(world_of({"replicas": 1}))
    good = wanted_state(world)
    children = copy.deepcopy(world.children)
    bad = full({"replicas": 1, "engine": {"resources": {"limits": {"memory": "20gi"}}}})
    world.edit(bad | {"model": {"uri": "pvc://weights/llama"}})
    plan = world.plan()
    assert plan.writes == ()
    world.execute(plan)
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "InvalidSpec")
    assert "spec.engine.resources.limits.memory: '20gi' is no quantity" in ready["message"]
    assert ready["observedGeneration"] == world.resource["status"]["observedGeneration"] == 2
    assert world.plan().is_empty
    world.edit(full({"replicas": 1, "model": {"uri": "pvc://weights/llama"}}))
    settled(world)
    assert wanted_state(world) == good
    assert {k: c.get("spec") for k, c in world.children.items()} == {
        k: c.get("spec") for k, c in children.items()
    }


def test_an_engine_that_replaces_a_lost_one_serves_though_the_spec_is_bad_by_now() -> None:
    world = settled(world_of({"replicas": 1}))
    bad = {"replicas": 1, "engine": {"resources": {"limits": {"memory": "20gi"}}}}
    world.edit(full(bad) | {"model": {"uri": "pvc://weights/llama"}})
    world.pods.clear()
    settled(world)
    assert world.condition("Ready")["reason"] == "InvalidSpec"
    assert [pods.is_routable(pod) for pod in world.engines()] == [True]


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["model", "engine", "uri", "replicas", "autoscaling", "rollout", "cache", "volume",
                 "size", "env", "options", "kvBytes", "extraArgs", "resources", "limits"]
            ),
            inner,
            max_size=5,
        ),
        max_leaves=12,
    )
)  # fmt: skip
def test_no_spec_makes_it_raise(spec: Any) -> None:
    world = world_of({})
    world.resource["spec"] = spec
    plan = world.plan()
    assert plan.writes == ()
    assert plan.status is not None
    world.execute(plan)
    assert world.plan().is_empty


def test_a_resource_that_is_being_deleted_is_left_alone() -> None:
    world = settled(world_of({"replicas": 1}))
    world.resource["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.children.clear()
    assert world.plan() == Plan()


def test_objects_of_somebody_else_are_not_taken_over() -> None:
    world = world_of({"replicas": 1})
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "llama-engine", "uid": "x", "labels": {}},
        "spec": {"clusterIP": "10.0.0.1"},
    }
    world.children["Service", "llama-engine"] = foreign
    for _ in range(10):
        world.execute(world.plan())
        world.step()
        world.now += 5
    assert world.children["Service", "llama-engine"] == foreign
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "NameTaken")
    assert "Service llama-engine" in ready["message"]


def test_a_refused_write_is_told_in_the_api_server_s_words() -> None:
    world = settled(world_of({"replicas": 1}))
    refusal = Refusal(kind="Deployment", name="llama-engine", message="exceeded quota: pods")
    observed = world.observed()
    plan = reconcile(replace(observed, refusals=(refusal,)), world.now)
    assert plan.status is not None
    ready = plan.status["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "WriteRefused")
    assert ready["message"] == "Deployment llama-engine was refused: exceeded quota: pods"


def test_children_come_in_a_fixed_order_whatever_the_order_seen() -> None:
    world = world_of({"replicas": 1, **from_hub()})
    kinds = [write.kind.name for write in world.plan().writes if isinstance(write, Apply)]
    assert kinds == [
        "PersistentVolumeClaim", "Job", "NetworkPolicy", "NetworkPolicy", "Service",
        "PodDisruptionBudget",
    ]  # fmt: skip
    settled(world)
    world.edit(full({"replicas": 2, **from_hub()}))
    turned = copy.deepcopy(world)
    turned.children = dict(reversed(turned.children.items()))
    turned.pods = dict(reversed(turned.pods.items()))
    assert turned.plan() == world.plan()


def test_engines_start_when_the_model_is_there_and_not_before() -> None:
    world = world_of({"replicas": 1, **from_hub()})
    world.execute(world.plan())
    assert ("Deployment", "llama-engine") not in world.children
    assert world.condition("Ready")["reason"] == "Loading"
    settled(world)
    assert world.condition("Ready")["status"] == "True"
    assert world.condition("ModelCached")["reason"] == "Loaded"


def test_old_engines_serve_and_scale_while_a_new_model_is_loaded() -> None:
    world = settled(world_of({"replicas": 1, **from_hub()}))
    template = copy.deepcopy(world.deployment["spec"]["template"])
    world.edit(full({"replicas": 3, **from_hub(revision="v2")}))
    for _ in range(3):  # the Job does not end in this while
        world.execute(world.plan())
        world._roll(world.deployment)
        world._schedule()
    assert world.deployment["spec"]["template"] == template
    assert world.deployment["spec"]["replicas"] == 3
    assert world.condition("Rollout")["reason"] == "WaitingForModel"
    assert world.condition("Routable")["status"] == "True"
    settled(world)
    assert world.deployment["spec"]["template"] != template
    jobs = [name for kind, name in world.children if kind == "Job"]
    assert len(jobs) == 1


def test_an_unfinished_job_is_made_anew_when_it_would_be_another() -> None:
    world = world_of({"replicas": 1, **from_hub(secretRef={"name": "hub"})})
    world.execute(world.plan())
    (name,) = [name for kind, name in world.children if kind == "Job"]
    before = world.child(JOB, name)["metadata"]["uid"]
    (reference,) = [ref for ref in DATA if ref.name == "hub"]
    world.references[reference] = "another token"
    world.execute(world.plan())
    world.execute(world.plan())
    assert world.child(JOB, name)["metadata"]["uid"] != before
    settled(world)
    finished = world.child(JOB, name)["metadata"]["uid"]
    world.references[reference] = "a third"
    settled(world)
    assert world.child(JOB, name)["metadata"]["uid"] == finished


def test_a_volume_is_kept_as_long_as_a_pod_uses_it() -> None:
    world = settled(world_of({"replicas": 1, **from_hub()}))
    world.edit(full({"replicas": 1, "model": {"uri": "pvc://weights/llama"}}))
    world.execute(world.plan())
    assert ("PersistentVolumeClaim", "llama-models") in world.children
    settled(world)
    assert ("PersistentVolumeClaim", "llama-models") not in world.children
    assert ("NetworkPolicy", "llama-load") not in world.children


def test_a_dry_run_writes_its_plan_and_nothing_else() -> None:
    world = settled(world_of({"replicas": 2, "engine": {"device": "cuda"}}))
    children = copy.deepcopy(world.children)
    world.resource["metadata"]["annotations"] = {names.DRY_RUN: "true"}
    world.edit(full({"replicas": 2, "engine": {"device": "cuda", "options": {"threads": 4}},
                     "model": {"uri": "pvc://weights/llama"}}))  # fmt: skip
    world.execute(world.plan())
    assert world.children == children
    plan = world.resource["status"]["plan"]
    assert "Deployment llama-engine: spec.template.spec.containers[engine].args" in plan["changes"]
    assert (plan["restarts"], plan["gpus"]) == (2, 3)
    assert world.condition("Rollout")["reason"] == "DryRun"
    assert world.condition("Ready")["status"] == "False"
    assert world.plan().is_empty
    world.resource["metadata"]["annotations"] = {}
    settled(world)
    assert "plan" not in world.resource["status"]
    assert world.condition("Ready")["status"] == "True"


def test_where_monitors_exist_there_is_one() -> None:
    world = settled(world_of({"replicas": 1}, kinds=frozenset({"PodMonitor"})))
    assert ("PodMonitor", "llama-engine") in world.children
    # The kind was uninstalled: nothing of it is seen, and nothing fails.
    del world.children["PodMonitor", "llama-engine"]
    gone = at(world, kinds=frozenset())
    assert gone.plan().is_empty


def test_monitors_that_are_turned_off_go() -> None:
    world = settled(world_of({"replicas": 1}, kinds=frozenset({"PodMonitor"})))
    world.installation = replace(world.installation, pod_monitors=False)
    settled(world)
    assert ("PodMonitor", "llama-engine") not in world.children


def test_transition_times_stay_while_the_status_does() -> None:
    world = settled(world_of({"replicas": 1}))
    before = {c["type"]: c["lastTransitionTime"] for c in world.resource["status"]["conditions"]}
    world.now += 5000
    world.edit(full({"replicas": 2, "model": {"uri": "pvc://weights/llama"}}))
    settled(world)
    after = {c["type"]: c for c in world.resource["status"]["conditions"]}
    assert after["Scheduled"]["lastTransitionTime"] == before["Scheduled"]
    assert after["Ready"]["lastTransitionTime"] != before["Ready"]
    assert {c["observedGeneration"] for c in after.values()} == {2}


def test_ready_is_said_only_when_the_new_revision_takes_requests() -> None:
    world = settled(world_of({"replicas": 2}))
    world.edit(full({"replicas": 2, "engine": {"options": {"threads": 2}},
                     "model": {"uri": "pvc://weights/llama"}}))  # fmt: skip
    template = ""
    while True:
        world.execute(world.plan())
        template = (
            template
            or world.deployment["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE]
        )
        if world.condition("Ready")["status"] == "True":
            break
        world.step()
        world.now += 5
    new = [
        pod
        for pod in world.engines()
        if pod["metadata"]["annotations"][names.TEMPLATE] == template
        and any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"]["conditions"])
    ]
    assert len(new) == 2
    assert world.condition("Ready")["observedGeneration"] == 2


@pytest.mark.parametrize("gateways", [True, False])
def test_it_becomes_ready_with_gateways_and_without(gateways: bool) -> None:
    world = settled(world_of({"replicas": 1}, gateways=gateways))
    assert world.condition("Ready")["status"] == "True"


def test_a_finished_service_tells_its_story_in_events() -> None:
    world = settled(world_of({"replicas": 1, **from_hub()}))
    assert [event.reason for event in world.events] == [
        "Loading", "WaitingForModel", "Loaded", "RollingOut", "Complete", "Loading", "Serving",
    ]  # fmt: skip


def test_a_child_that_is_being_deleted_is_made_anew_afterwards() -> None:
    world = settled(world_of({"replicas": 1}))
    world.children["Service", "llama-engine"]["metadata"]["deletionTimestamp"] = "2026-01-01"
    assert world.plan().writes == ()
    del world.children["Service", "llama-engine"]
    (write,) = world.plan().writes
    assert isinstance(write, Apply)
    assert (write.kind, write.creates) == (SERVICE, True)


@pytest.mark.parametrize("is_noted", [True, False])
def test_a_volume_that_is_lost_is_filled_again(is_noted: bool) -> None:
    world = settled(world_of({"replicas": 0, **from_hub()}))
    jobs = [key for key in world.children if key[0] == JOB.name]
    if is_noted:  # as any Job but the first
        del world.children[jobs[0]]
        settled(world)
    for _ in range(2):
        before = world.children[jobs[0]]
        assert (names.CLAIM in before["metadata"]["annotations"]) == is_noted
        assert world.condition("ModelCached")["reason"] == "Loaded"
        del world.children[VOLUME_CLAIM.name, "llama-models"]
        world.execute(world.plan())
        assert world.condition("ModelCached")["reason"] == "Loading"
        settled(world)
        assert world.children[jobs[0]]["metadata"]["uid"] != before["metadata"]["uid"]
        assert world.condition("ModelCached")["reason"] == "Loaded"
        is_noted = True


def test_a_new_operator_restarts_no_engine() -> None:
    world = settled(world_of({"replicas": 2}))
    pods = copy.deepcopy(world.pods)
    world.installation = replace(
        world.installation,
        engine_images={"cpu": "octavo-engine:next", "cuda": "octavo-engine:next"},
        loader_image="octavo-loader:next",
    )
    settled(world)
    assert world.pods == pods
    world.edit(full({"replicas": 2, "engine": {"options": {"threads": 2}},
                     "model": {"uri": "pvc://weights/llama"}}))  # fmt: skip
    settled(world)
    images = {pod["spec"]["containers"][0]["image"] for pod in world.engines()}
    assert images == {"octavo-engine:next"}


def test_the_time_of_the_first_start_is_not_what_matters() -> None:
    early, late = world_of({"replicas": 1}), world_of({"replicas": 1}, now=START + 10**6)
    assert wanted_state(settled(early)) == wanted_state(settled(late))


@settings(max_examples=100)
@given(specs(), st.data())
def test_parts_that_are_not_there_yet_make_nobody_fail(
    spec: dict[str, Any], data: st.DataObject
) -> None:
    world = world_of(spec)
    for _ in range(data.draw(st.integers(0, 8))):
        world.execute(world.plan())
        world.step()
    for thing in [*world.children.values(), *world.pods.values()]:
        kind = data.draw(st.sampled_from(["whole", "no status", "no conditions"]))
        if kind == "no status":
            thing.pop("status", None)
        elif kind == "no conditions":
            thing["status"] = {}
    world.resource.pop("status", None)
    assert world.plan().status is not None
