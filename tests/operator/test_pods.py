from __future__ import annotations

from tests.operator.engine_pods import pod, unplaced

from octavo.operator import names, pods


def test_pods_are_told_apart_by_component_and_come_by_name() -> None:
    found = [pod("b"), pod("loader", component=names.LOADER), pod("a")]
    assert [p["metadata"]["name"] for p in pods.of_component(found, names.ENGINE)] == ["a", "b"]
    assert len(pods.of_component([{"metadata": {"name": "x"}}], names.ENGINE)) == 0


def test_a_pod_that_goes_or_has_ended_is_not_live() -> None:
    assert pods.is_live(pod())
    assert not pods.is_live(pod(going=True))
    assert not pods.is_live(pod(phase="Failed"))
    assert not pods.is_live(pod(phase="Succeeded"))


def test_routable_takes_readiness_and_gate() -> None:
    assert pods.is_routable(pod(ready=True, routable=True))
    assert not pods.is_routable(pod(ready=True))
    assert not pods.is_routable(pod(routable=True))


def test_the_scheduler_s_sentence_is_found() -> None:
    assert pods.unschedulable(unplaced("no room"))["message"] == "no room"
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert pods.unschedulable(pod(conditions=[gated])) == {}
    assert pods.unschedulable({"metadata": {}}) == {}


def test_claims_in_use_are_seen() -> None:
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": "llama-models"}}
    using = pod(spec={"volumes": [{"name": "t", "emptyDir": {}}, volume]})
    assert pods.uses_claim(using, "llama-models")
    assert not pods.uses_claim(using, "other")
    assert not pods.uses_claim(pod(), "llama-models")


def test_config_maps_in_use_are_seen() -> None:
    volume = {"name": "v", "configMap": {"name": "llama-pins-1"}}
    using = pod(spec={"volumes": [{"name": "t", "emptyDir": {}}, volume]})
    assert pods.uses_config_map(using, "llama-pins-1")
    assert not pods.uses_config_map(using, "llama-pins-2")
    assert not pods.uses_config_map(pod(), "llama-pins-1")
