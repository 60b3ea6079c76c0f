from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.building import from_hub, resource
from tests.operator.engine_pods import ended, waiting
from tests.operator.world import World

from octavo.operator import conditions
from octavo.operator.kinds import Manifest
from octavo.operator.observed import EngineSeen, GatewayReport, Gateways, Refusal, ServiceLoad
from octavo.operator.reconcile import reconcile
from octavo.operator.timestamps import to_text


def settled(**spec: Any) -> World:
    world = World(resource(**spec))
    world.settle()
    return world


def told(world: World, type: str = "Ready") -> tuple[str, str]:
    world.execute(world.plan())
    found = world.condition(type)
    return found["status"], found["reason"]


def broken(world: World, container: Manifest) -> World:
    """Lets all engines have one container that does not run."""
    for pod in world.engines():
        pod["status"]["containerStatuses"] = [container]
        pod["status"]["conditions"] = [
            c for c in pod["status"]["conditions"] if c["type"] not in ("Ready", "ContainersReady")
        ]
    return world


@pytest.mark.parametrize(
    ("container", "reason"),
    [
        (waiting("ErrImagePull", "not found"), "ImagePullFailed"),
        (ended(137, reason="OOMKilled"), "OutOfMemory"),
        (ended(2, "error[OCT-1206]: there is no setting --x (command line)"), "BadArgument"),
        (ended(70), "Stuck"),
    ],
)
def test_why_engines_do_not_run_is_the_reason(container: Manifest, reason: str) -> None:
    world = broken(settled(replicas=2), container)
    assert told(world) == ("False", reason)
    assert world.resource["status"]["reason"] == reason
    assert told(world, "Routable")[0] == "False"


def test_a_broken_image_is_said_while_old_engines_serve_and_is_healed() -> None:
    world = settled(replicas=1)
    world.edit(resource(replicas=1, engine={"image": "bad:1"})["spec"])
    world.execute(world.plan())
    world.step()
    for pod in world.engines():
        if pod["spec"]["containers"][0]["image"] == "bad:1":
            pod["status"]["containerStatuses"] = [waiting("ErrImagePull", "not found")]
    assert told(world) == ("False", "ImagePullFailed")
    assert world.condition("Routable")["status"] == "True"
    assert world.condition("Rollout")["reason"] == "RollingOut"
    world.edit(resource(replicas=1, engine={"image": "good:1"})["spec"])
    world.settle()
    assert told(world) == ("True", "Serving")
    assert {c["observedGeneration"] for c in world.resource["status"]["conditions"]} == {3}


def test_a_pod_deleted_by_hand_is_missed_until_another_takes_requests() -> None:
    world = settled(replicas=1)
    world.pods.clear()
    assert told(world) == ("False", "Loading")
    assert told(world, "Rollout") == ("True", "Complete")
    assert told(world, "Routable") == ("False", "NoEngines")
    world.settle()
    assert told(world) == ("True", "Serving")


def test_engines_without_a_node_are_told_in_the_scheduler_s_words() -> None:
    world = World(resource(replicas=2), room=1)
    for _ in range(8):
        world.execute(world.plan())
        world.step()
    assert told(world) == ("False", "Unschedulable")
    scheduled = world.condition("Scheduled")
    assert scheduled["status"] == "False"
    assert scheduled["message"] == (
        "1 of 2 engines have no node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    )
    assert told(world, "Routable") == ("True", "Routable")


def test_pods_that_a_quota_forbids_are_told() -> None:
    world = World(resource(replicas=1))
    world.execute(world.plan())
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    generation = world.deployment["metadata"]["generation"]
    world.deployment["status"] = {"observedGeneration": generation, "conditions": [failed]}
    assert told(world) == ("False", "PodsRefused")
    assert world.condition("Scheduled")["message"] == "exceeded quota: gpus"


def test_a_quota_that_makes_engines_be_replaced_one_by_one_is_no_failure() -> None:
    world = settled(replicas=1)
    world.edit(resource(replicas=1, engine={"image": "a:2"})["spec"])
    world.execute(world.plan())
    failed = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: gpus"}
    failed["lastTransitionTime"] = to_text(world.now)
    generation = world.deployment["metadata"]["generation"]
    world.deployment["status"] = {"observedGeneration": generation, "conditions": [failed]}
    assert told(world) == ("False", "PodsRefused")
    world.now += 30
    assert told(world) == ("False", "NoSurgeRoom")
    assert world.deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0


def test_a_volume_that_cannot_grow_keeps_no_service_from_being_ready() -> None:
    def ready(world: World, *refusals: Refusal) -> tuple[str, str]:
        plan = reconcile(replace(world.observed(), refusals=refusals), world.now)
        found = conditions.find((plan.status or world.resource["status"])["conditions"], "Ready")
        return found["status"], found["reason"]

    refusal = Refusal(kind="PersistentVolumeClaim", name="llama-models", message="why")
    world = settled(replicas=1, **from_hub())
    grown = from_hub() | {"cache": {"volume": {"size": "30Gi"}}}
    world.edit(resource(replicas=1, **grown)["spec"])
    assert ready(world, refusal) == ("True", "Serving")
    assert ready(world, replace(refusal, kind="Service")) == ("False", "WriteRefused")
    assert ready(World(resource(**from_hub())), refusal) == ("False", "WriteRefused"), "not made"


def test_engines_that_gateways_cannot_reach_are_told() -> None:
    world = World(resource(replicas=1), gateways=True)
    world.reports = lambda: type(World.reports(world))(reports=(), silent=1)  # type: ignore[method-assign]
    for _ in range(8):
        world.execute(world.plan())
        world.step()
    assert told(world) == ("False", "Loading")
    assert told(world, "Routable") == ("False", "NotRoutable")
    assert world.condition("Routable")["message"] == "1 gateways do not answer"


def cut_off(world: World, unreached_s: float, *, silent: int = 0) -> tuple[str, str]:
    """Returns Ready where the gateways' connections to all engines have been lost for a while."""
    why = "the engine's certificate has ended"
    engines = tuple(
        EngineSeen(uid=pod["metadata"]["uid"], service="team/llama", state="lost", detail=why)
        for pod in world.engines()
    )
    reports = () if silent else (GatewayReport(gateway="g", engines=engines),)
    seen = Gateways(reports=reports, silent=silent, unreached_s=unreached_s)
    world.reports = lambda: seen  # type: ignore[method-assign]
    return told(world)


def test_a_service_that_no_gateway_reaches_any_more_is_not_ready() -> None:
    world = settled(replicas=1)
    assert cut_off(world, 29.0) == ("True", "Serving"), "gateways connect again"
    assert world.plan().requeue_s == 1.0
    assert cut_off(world, 30.0) == ("False", "NotRoutable")
    assert told(world, "Routable") == ("False", "NotRoutable")
    assert "certificate has ended" in world.condition("Ready")["message"]
    assert [(e.type, e.reason) for e in world.events[-1:]] == [("Warning", "NotRoutable")]
    assert told(world, "Rollout") == ("True", "Complete"), "the gate is open: nothing is replaced"
    del world.reports
    assert told(world) == ("True", "Serving")


def test_a_service_without_any_gateway_that_is_ready_is_not_ready() -> None:
    world = settled(replicas=1)
    world.reports = lambda: Gateways(unreached_s=31.0)  # type: ignore[method-assign]
    assert told(world) == ("False", "NotRoutable")
    assert "no gateway is ready" in world.condition("Ready")["message"]


def test_what_is_told_of_gateways_stays_while_they_are_not_heard() -> None:
    world = settled(replicas=1)
    assert cut_off(world, 0.0, silent=1) == ("True", "Serving")
    assert cut_off(world, 30.0) == ("False", "NotRoutable")
    assert cut_off(world, 0.0) == ("False", "NotRoutable"), "an operator that has just begun"
    assert cut_off(world, 0.0, silent=1) == ("False", "NotRoutable")


def test_a_service_that_sleeps_needs_no_gateway_to_be_ready() -> None:
    world = asleep()
    assert cut_off(world, 1000.0) == ("True", "ScaledToZero")


def test_no_engines_are_wanted_and_none_serve() -> None:
    assert told(settled(replicas=0)) == ("False", "Stopped")


def asleep(**spec: Any) -> World:
    """A service without engines, as nobody has asked for a while."""
    world = settled(autoscaling={"minReplicas": 0, "maxReplicas": 3}, **spec)
    world.now += 400
    world.settle()
    assert told(world) == ("True", "ScaledToZero")
    return world


def test_an_edit_that_changes_no_engine_leaves_a_sleeping_service_ready() -> None:
    world = asleep()
    world.edit(resource(autoscaling={"minReplicas": 0, "maxReplicas": 4})["spec"])
    assert told(world) == ("True", "ScaledToZero")
    assert world.condition("Ready")["observedGeneration"] == 2


def test_a_revision_that_has_never_served_is_not_known_to_be_ready() -> None:
    world = asleep()
    before = world.resource["spec"]
    world.edit(resource(autoscaling=before["autoscaling"], engine={"image": "a:2"})["spec"])
    world.settle()
    assert told(world) == ("Unknown", "ScaledToZero")
    world.edit(before)
    world.settle()
    assert told(world) == ("True", "ScaledToZero"), "it is the one that served"


def test_a_paused_service_that_sleeps_says_which_revision_a_request_starts() -> None:
    world = asleep()
    before = world.resource["spec"]["autoscaling"]
    edit: dict[str, Any] = {"engine": {"image": "a:2"}, "rollout": {"paused": True}}
    world.edit(resource(autoscaling=before, **edit)["spec"])
    world.settle()
    assert told(world) == ("Unknown", "ScaledToZero")
    assert "of the revision that served before" in world.condition("Ready")["message"]
    world.load = ServiceLoad(service="team/llama", held=1, wanted_age_s=0.0)
    for _ in range(6):
        world.execute(world.plan())
        world.step()
        world.now += 5
    (engine,) = world.engines()
    assert engine["spec"]["containers"][0]["image"] != "a:2"
    assert told(world, "Rollout") == ("False", "Paused")


def test_a_sleeping_service_of_the_version_before_is_ready_as_it_was() -> None:
    world = asleep()
    served = world.resource["status"].pop("servedRevision")
    assert told(world) == ("True", "ScaledToZero")
    assert world.resource["status"]["servedRevision"] == served


def test_a_service_stays_ready_while_it_is_scaled() -> None:
    world = settled(autoscaling={"minReplicas": 1, "maxReplicas": 4})
    since = world.condition("Ready")["lastTransitionTime"]
    for queue_s in (9.0, 9.0, 0.0, 0.0):
        world.load = ServiceLoad(service="team/llama", queue_s=queue_s, wanted_age_s=0.0)
        for _ in range(6):
            assert told(world) == ("True", "Serving")
            assert told(world, "Rollout") == ("True", "Complete")
            world.step()
            world.now += 60
    assert world.condition("Ready")["lastTransitionTime"] == since


def test_a_service_with_a_number_is_ready_when_all_of_them_are() -> None:
    world = settled(replicas=1)
    world.edit(resource(replicas=2)["spec"])
    assert told(world)[0] == "False"
    world.settle()
    assert told(world) == ("True", "Serving")


def test_a_rollout_without_progress_is_stuck() -> None:
    world = settled(replicas=1)
    world.edit(resource(replicas=1, engine={"image": "x:1"})["spec"])
    world.execute(world.plan())
    world.step()
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
    world.deployment["status"]["conditions"] = [late]
    assert told(world, "Rollout") == ("False", "Stuck")


def test_a_model_that_cannot_be_loaded_is_the_reason() -> None:
    world = World(resource(replicas=1, **from_hub()))
    world.execute(world.plan())
    job = next(c for c in world.children.values() if c["kind"] == "Job")
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "gave up"}]}
    assert told(world) == ("False", "LoadFailed")
    assert told(world, "ModelCached") == ("False", "LoadFailed")


def test_engines_that_drain_are_counted() -> None:
    world = settled(replicas=2)
    world.engines()[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.execute(world.plan())
    status = world.resource["status"]
    assert (status["draining"], status["routable"], status["counts"]) == (1, 1, "1/2")
