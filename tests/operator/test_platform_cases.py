"""Public bug reports about operators of this kind, as far as deciding alone can get them wrong.

The numbers are those of the list of cases; the others are tested on a cluster.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import from_hub, resource
from tests.operator.engine_pods import waiting
from tests.operator.world import World

from octavo.operator import pods
from octavo.operator.observed import Reference, ServiceLoad
from octavo.operator.plan import Apply
from octavo.operator.spec import references
from octavo.operator.timestamps import to_text


def settled(**spec: Any) -> World:
    world = World(resource(**spec))
    world.settle()
    return world


def uids(world: World) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.engines()}


def revisions(world: World) -> set[str]:
    live = [pod for pod in world.engines() if pods.is_live(pod)]
    return {pods.template_of(pod) for pod in live}


def test_case_1_each_edit_rolls_exactly_once() -> None:
    spec: dict[str, Any] = {"replicas": 2, "engine": {}}
    world = settled(**spec)
    edits: list[dict[str, Any]] = [
        {"model": {"uri": "pvc://weights/other"}},
        {"env": [{"name": "A", "value": "1"}]},
        {"extraArgs": ["--watermark=0.1"]},
        {"resources": {"limits": {"memory": "2Gi"}}},
    ]
    for count, edit in enumerate(edits, start=2):
        if "model" in edit:
            spec |= edit
        else:
            spec["engine"] |= edit
        before, template = uids(world), revisions(world)
        world.edit(resource(**spec)["spec"])
        made = {w.name for w in world.plan().writes if isinstance(w, Apply)}
        assert made == {"llama-engine"}
        started: set[str] = set()
        for _ in range(30):
            world.execute(world.plan())
            world.step()
            world.now += 5
            started |= uids(world) - before
        assert len(started) == 2
        assert revisions(world) != template
        assert world.resource["status"]["observedGeneration"] == count
        assert world.condition("Ready")["status"] == "True"


def test_case_3_a_new_operator_restarts_no_engine() -> None:
    world = settled(replicas=2)
    before = uids(world)
    world.installation = replace(
        world.installation, engine_images={"cpu": "octavo-engine:next", "cuda": "x"}
    )
    world.settle()
    assert uids(world) == before


def test_case_4_a_broken_image_that_is_mended_becomes_ready() -> None:
    world = settled(replicas=1)
    world.edit(resource(replicas=1, engine={"image": "bad:1"})["spec"])
    world.execute(world.plan())
    world.step()
    for pod in world.engines():
        if pod["spec"]["containers"][0]["image"] == "bad:1":
            pod["status"]["containerStatuses"] = [waiting("ImagePullBackOff", "Back-off pulling")]
    world.execute(world.plan())
    assert (world.condition("Ready")["status"], world.condition("Ready")["reason"]) == (
        "False", "ImagePullFailed",
    )  # fmt: skip
    world.edit(resource(replicas=1)["spec"])
    world.settle()
    status = world.resource["status"]
    assert world.condition("Ready")["status"] == "True"
    assert status["observedGeneration"] == world.resource["metadata"]["generation"]


def test_case_5_ready_means_that_the_new_revision_takes_requests() -> None:
    world = settled(replicas=1)
    old = revisions(world)
    world.edit(resource(replicas=1, engine={"image": "slow:1"})["spec"])
    for _ in range(20):
        world.execute(world.plan())
        if world.condition("Ready")["status"] == "True":
            break
        world.step()
        world.now += 60
    assert not old & revisions(world)
    assert world.resource["status"]["routable"] == 1


@pytest.mark.parametrize("amount", ["20gi", "", "unlimited"])
def test_case_6_a_bad_quantity_is_a_condition(amount: str) -> None:
    world = World(resource(engine={"resources": {"limits": {"memory": amount}}}))
    plan = world.plan()
    assert plan.writes == ()
    assert plan.status is not None
    assert plan.status["reason"] == "InvalidSpec"


def test_case_7_without_the_monitor_s_kind_all_else_is_done_and_cleaned_up() -> None:
    world = settled(replicas=1)
    assert not [key for key in world.children if key[0] == "PodMonitor"]
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("spec", [{"replicas": 1}, from_hub()])
def test_case_10_nothing_of_ours_holds_a_deletion_up(spec: dict[str, Any]) -> None:
    world = settled(**spec)
    for child in world.children.values():
        assert "finalizers" not in child["metadata"]
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == world.resource["metadata"]["uid"]
    assert "finalizers" not in world.resource["metadata"]


def test_case_12_long_names_are_refused_and_odd_model_names_reach_no_label() -> None:
    long = World(resource("x" * 63)).plan()
    assert long.status is not None
    assert long.status["reason"] == "InvalidSpec"
    model = {"uri": "hf://Org.Name/Model_v1.0", "servedNames": ["Org/Model-V1.0"]}
    world = settled(replicas=1, **(from_hub() | {"model": model}))
    for pod in world.engines():
        assert all("/" not in v and len(v) <= 63 for v in pod["metadata"]["labels"].values())


def test_case_13_who_gives_no_number_is_scaled_by_others_only() -> None:
    world = settled()
    for number in (4, 2, 7):
        world.deployment["spec"]["replicas"] = number
        for _ in range(5):
            writes = [w for w in world.plan().writes if isinstance(w, Apply)]
            assert writes == []
            world.execute(world.plan())
            world.step()
            world.now += 60
        assert world.deployment["spec"]["replicas"] == number


def test_case_14_a_wake_up_outlives_its_client() -> None:
    world = settled(autoscaling={"minReplicas": 0, "maxReplicas": 2})
    world.now += 400
    world.settle()
    assert world.deployment["spec"]["replicas"] == 0
    world.load = ServiceLoad(service="team/llama", held=0, wanted_age_s=3.0)
    world.settle()
    assert world.deployment["spec"]["replicas"] == 1
    assert world.resource["status"]["routable"] == 1


def test_case_19_without_a_free_gpu_a_rollout_ends_and_says_how() -> None:
    world = World(resource(replicas=1, engine={"device": "cuda"}), room=1)
    world.settle()
    world.edit(resource(replicas=1, engine={"device": "cuda", "image": "new:1"})["spec"])
    seen = set()
    for _ in range(30):
        world.execute(world.plan())
        seen.add(world.condition("Rollout")["reason"])
        world.step()
        world.now += 5
    assert "NoSurgeRoom" in seen
    assert world.condition("Ready")["status"] == "True"


def test_case_21_a_secret_reaches_loader_and_engine_and_may_come_late() -> None:
    spec = from_hub(secretRef={"name": "hub"})
    (reference,) = references(resource(**spec))
    assert reference == Reference(kind="Secret", name="hub")
    world = World(resource(replicas=1, **spec), references={reference: None})
    world.settle()
    assert world.condition("Ready")["reason"] == "ReferenceMissing"
    world.references[reference] = "11"
    world.settle()
    takes = {"secretRef": {"name": "hub"}}
    job = next(c for c in world.children.values() if c["kind"] == "Job")
    for template in (job["spec"]["template"], world.deployment["spec"]["template"]):
        assert takes in template["spec"]["containers"][0]["envFrom"]
    before = uids(world)
    world.references[reference] = "22"
    world.settle()
    assert not before & uids(world)


@pytest.mark.parametrize("text", ["x; touch /tmp/p", 'x" y', "$(touch /tmp/p)", "`id`", "a\nb"])
def test_case_24_no_text_of_the_resource_reaches_a_shell(text: str) -> None:
    refused = World(resource(model={"uri": f"hf://org/{text}"})).plan()
    assert refused.status is not None
    assert refused.status["reason"] == "InvalidSpec"
    world = settled(replicas=1, engine={"extraArgs": [text]})
    (container,) = world.deployment["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "octavo.engine"]
    assert container["args"][-1] == text.replace("$", "$$")


def test_case_26_a_volume_for_one_node_with_engines_on_two_is_told() -> None:
    world = settled(replicas=2, **from_hub())
    for node, pod in zip("ab", world.engines(), strict=True):
        pod["spec"]["nodeName"] = node
    stuck = world.engines()[1]
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_text(world.now)}
    stuck["status"] = {
        "phase": "Pending",
        "conditions": [placed],
        "containerStatuses": [waiting("ContainerCreating")],
    }
    world.now += 120
    world.execute(world.plan())
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"]) == ("False", "VolumeOnOtherNode")
    assert (
        "the volume is ReadWriteOnce and pods that need it were placed on a, b" in ready["message"]
    )


def test_case_32_quick_edits_make_no_second_child() -> None:
    world = World(resource(replicas=1))
    stale = copy.deepcopy(world)
    world.execute(world.plan())
    names_first = {(w.kind.name, w.name) for w in stale.plan().writes if isinstance(w, Apply)}
    assert names_first == set(world.children)
    world.edit(resource(replicas=2)["spec"])
    world.execute(world.plan())
    assert names_first == set(world.children)
