from __future__ import annotations

from typing import Any

import pytest
from tests.operator.building import from_hub, resource, service
from tests.operator.engine_pods import pod, unplaced
from tests.operator.world import START, World

from octavo.operator import names
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest
from octavo.operator.rollout import ONE_BY_ONE, Decision, decide
from octavo.operator.spec import Rollout
from octavo.operator.timestamps import to_text

USUAL = Strategy(max_surge=1, max_unavailable=0)
NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
GPU = {"containers": [{"name": "engine", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}


def deployment(surge: int, unavailable: int) -> Manifest:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return {"spec": {"strategy": {"rollingUpdate": rolling}}}


def decided(
    *engines: Manifest, now: float, present: Manifest | None = None, **spec: Any
) -> Decision:
    wanted: Rollout = service(rollout=spec).spec.rollout
    return decide(wanted, present or deployment(1, 0), engines, "new", now)


OLD = pod("old", template="old", ready=True, routable=True, spec=GPU)
NEW = unplaced(NO_ROOM, name="new", template="new", spec=GPU)


def test_the_user_s_strategy_is_taken_as_a_rule() -> None:
    found = decided(OLD, now=START, maxSurge=2, maxUnavailable=1)
    assert found == Decision(strategy=Strategy(max_surge=2, max_unavailable=1))


def test_a_new_engine_without_room_waits_before_an_old_one_goes() -> None:
    early = decided(OLD, NEW, now=START + 10)
    assert (early.strategy, early.is_short_of_room) == (USUAL, False)
    assert early.look_again_s == pytest.approx(20)
    late = decided(OLD, NEW, now=START + 30)
    assert (late.strategy, late.is_short_of_room) == (ONE_BY_ONE, True)


def test_who_has_nodes_made_on_demand_has_it_wait_longer() -> None:
    early = decided(OLD, NEW, now=START + 60, noRoomSeconds=600)
    assert early == Decision(strategy=USUAL, look_again_s=540)
    late = decided(OLD, NEW, now=START + 600, noRoomSeconds=600)
    assert (late.strategy, late.is_short_of_room) == (ONE_BY_ONE, True)
    assert decided(OLD, NEW, now=START, noRoomSeconds=0).strategy == ONE_BY_ONE


def test_it_goes_on_one_by_one_until_no_old_engine_is_left() -> None:
    placed = pod("new", template="new", spec=GPU)
    going_on = decided(OLD, placed, now=START + 60, present=deployment(0, 1))
    assert (going_on.strategy, going_on.is_short_of_room) == (ONE_BY_ONE, True)
    done = decided(placed, now=START + 90, present=deployment(0, 1))
    assert (done.strategy, done.is_short_of_room) == (USUAL, False)


@pytest.mark.parametrize(
    "new",
    [
        unplaced("0/1 nodes are available: node affinity", name="n", template="new", spec=GPU),
        unplaced(NO_ROOM, name="n", template="new", spec=GPU | {"nodeSelector": {"a": "b"}}),
        unplaced(
            NO_ROOM,
            name="n",
            template="new",
            spec={"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
        ),
        unplaced(
            NO_ROOM,
            name="n",
            template="new",
            spec={"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"},
                                                "requests": {"memory": "1Gi"}}}]},
        ),
    ],
    ids=["no node fits", "other nodes", "more GPUs", "more memory"],
)  # fmt: skip
def test_a_mistake_in_the_new_revision_costs_no_engine_that_serves(new: Manifest) -> None:
    found = decided(OLD, new, now=START + 3600)
    assert (found.strategy, found.is_short_of_room) == (USUAL, False)


OVER = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1'


def refused(
    spec: Manifest = GPU,
    *,
    message: str = OVER,
    template: str = "new",
    strategy: tuple[int, int] = (1, 0),
) -> Manifest:
    """Returns a Deployment of whose template no pod can be made."""
    found = deployment(*strategy)
    annotations = {names.TEMPLATE: template}
    found["spec"]["template"] = {"metadata": {"annotations": annotations}, "spec": spec}
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    found["status"] = {"conditions": [failure | {"lastTransitionTime": to_text(START)}]}
    return found


def test_a_quota_that_forbids_one_more_engine_is_no_room() -> None:
    early = decided(OLD, now=START + 10, present=refused())
    assert early == Decision(strategy=USUAL, look_again_s=20)
    late = decided(OLD, now=START + 30, present=refused())
    assert (late.strategy, late.is_short_of_room) == (ONE_BY_ONE, True)
    going_on = decided(OLD, now=START + 31, present=refused(strategy=(0, 1)))
    assert (going_on.strategy, going_on.is_short_of_room) == (ONE_BY_ONE, True)
    going = pod("old", template="old", going=True, spec=GPU)
    assert decided(going, now=START + 60, present=refused(strategy=(0, 1))) == going_on
    gone = decided(now=START + 60, present=refused(strategy=(0, 1)))
    assert (gone.strategy, gone.is_short_of_room) == (USUAL, False)
    raised = decided(OLD, now=START + 60, present=deployment(0, 1))
    assert (raised.strategy, raised.is_short_of_room) == (USUAL, False)


def limits(**more: str) -> Manifest:
    resources = {"limits": {"nvidia.com/gpu": "1"} | more, "requests": {"memory": "1Gi"}}
    return {"containers": [{"name": "engine", "resources": resources}]}


@pytest.mark.parametrize(
    "present",
    [
        refused(message="failed quota: m: must specify limits.memory"),
        refused({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}),
        refused(limits(memory="9Gi")),
        refused(limits(memory="4Gi") | {"nodeSelector": {"a": "b"}}),
        refused(limits(memory="4Gi") | {"priorityClassName": "high"}),
        refused(limits(memory="4Gi"), template="older"),
    ],
    ids=["not over it", "more GPUs", "a higher limit", "other nodes", "another class", "not new"],
)
def test_a_mistake_that_a_quota_forbids_costs_no_engine_that_serves(present: Manifest) -> None:
    old = pod("old", template="old", ready=True, routable=True, spec=limits(memory="4Gi"))
    found = decided(old, now=START + 3600, present=present)
    assert (found.strategy, found.is_short_of_room) == (USUAL, False)


def test_what_kubernetes_adds_to_pods_makes_them_no_others() -> None:
    own = {"key": "gpu", "operator": "Exists"}
    added = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "tolerationSeconds": 300}
    both = {"tolerations": [own, added], "priorityClassName": "default"}
    old = pod("old", template="old", ready=True, routable=True, spec=GPU | both)
    for tolerations, strategy in (([own], ONE_BY_ONE), ([], USUAL)):
        present = refused(GPU | {"tolerations": tolerations})
        assert decided(old, now=START + 60, present=present).strategy == strategy


FOR_GPU = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
"""As ExtendedResourceToleration adds it to pods that ask for such GPUs."""


@pytest.mark.parametrize(
    "added",
    [{"tolerations": [FOR_GPU]}, {"nodeSelector": {"pool": "gpus"}}],
    ids=["toleration of a resource", "node selector of a namespace"],
)
def test_what_admission_adds_to_pods_is_not_missed_in_the_template(added: Manifest) -> None:
    old = pod("old", template="old", ready=True, routable=True, spec=GPU | added)
    assert decided(old, now=START + 60, present=refused()).strategy == ONE_BY_ONE


def test_what_only_the_old_pod_tolerates_keeps_it() -> None:
    spec = GPU | {"tolerations": [FOR_GPU | {"key": "amd.com/gpu"}]}
    old = pod("old", template="old", ready=True, routable=True, spec=spec)
    assert decided(old, now=START + 60, present=refused()).strategy == USUAL
    old["spec"]["tolerations"] = [FOR_GPU]
    why = f"{NO_ROOM[:-1]}, 1 node(s) had untolerated taint."
    unfit = unplaced(why, name="new", template="new", spec=GPU)
    assert decided(old, unfit, now=START + 60).strategy == USUAL, "nothing was added to the new one"


def test_who_wants_it_one_by_one_gets_no_condition_for_it() -> None:
    found = decided(OLD, NEW, now=START + 60, maxSurge=0, maxUnavailable=1)
    assert (found.strategy, found.is_short_of_room) == (ONE_BY_ONE, False)


def test_with_one_gpu_a_new_image_is_rolled_out_and_said_so() -> None:
    spec: dict[str, Any] = {"replicas": 1, "engine": {"device": "cuda", "image": "a:1"}}
    world = World(resource(**spec), room=1)
    world.settle()
    changed = resource(replicas=1, engine={"device": "cuda", "image": "a:2"})["spec"]
    world.edit(changed)
    reasons: list[str] = []
    for _ in range(40):
        world.execute(world.plan())
        reason = world.condition("Rollout")["reason"]
        reasons += [] if reasons[-1:] == [reason] else [reason]
        world.step()
        world.now += 5
    assert reasons == ["RollingOut", "NoSurgeRoom", "Complete"]
    assert [p["spec"]["containers"][0]["image"] for p in world.engines()] == ["a:2"]
    assert world.deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    world.settle()


def test_a_paused_rollout_waits_and_says_so() -> None:
    world = World(resource(replicas=1))
    world.settle()
    old = [p["metadata"]["uid"] for p in world.engines()]
    world.edit(resource(replicas=1, engine={"image": "a:2"}, rollout={"paused": True})["spec"])
    world.settle()
    assert [p["metadata"]["uid"] for p in world.engines()] == old
    assert world.condition("Rollout")["reason"] == "Paused"
    assert world.condition("Ready")["status"] == "False"
    world.edit(resource(replicas=1, engine={"image": "a:2"})["spec"])
    world.settle()
    assert [p["metadata"]["uid"] for p in world.engines()] != old
    assert world.condition("Ready")["status"] == "True"


def test_a_resource_that_is_paused_from_the_start_gets_its_engines_and_no_others() -> None:
    paused: dict[str, Any] = {"replicas": 2, "rollout": {"paused": True}}
    world = World(resource(**paused))
    world.settle()
    first = {p["metadata"]["uid"] for p in world.engines()}
    assert len(first) == 2
    assert world.condition("Ready")["status"] == "True"
    assert world.deployment["spec"]["paused"] is True
    world.edit(resource(**paused, engine={"image": "a:2"})["spec"])
    world.settle()
    assert {p["metadata"]["uid"] for p in world.engines()} == first
    assert world.condition("Rollout")["reason"] == "Paused"


def test_a_paused_deployment_that_was_deleted_is_made_with_engines() -> None:
    world = World(resource(replicas=1, rollout={"paused": True}))
    world.settle()
    del world.children["Deployment", "llama-engine"]
    world.pods.clear()
    world.settle()
    assert world.condition("Ready")["status"] == "True"
    assert len(world.engines()) == 1


def test_loading_another_model_counts_as_no_lack_of_room() -> None:
    world = World(resource(replicas=1, **from_hub()), room=1)
    world.settle()
    assert world.condition("Rollout")["reason"] == "Complete"
