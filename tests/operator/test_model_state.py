from __future__ import annotations

import json
from typing import Any

import pytest
from tests.operator.building import INSTALLATION, from_hub, resource, service
from tests.operator.engine_pods import ended, pod, unplaced, waiting
from tests.operator.world import START

from octavo.operator import desired_loader, model_state, names
from octavo.operator.conditions import Condition
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Observed, Refusal
from octavo.operator.timestamps import to_text

JOB = desired_loader.job_name(service(**from_hub()))


def judged(
    *children: Manifest,
    pods: tuple[Manifest, ...] = (),
    refusals: tuple[Refusal, ...] = (),
    **spec: Any,
) -> Condition:
    spec = spec or from_hub()
    if not any(child["kind"] == "PersistentVolumeClaim" for child in children):
        children = (claim("20Gi", age_s=60), *children)
    observed = Observed(
        resource=resource(**spec),
        installation=INSTALLATION,
        children=children,
        pods=pods,
        refusals=refusals,
    )
    return model_state.judge(service(**spec), observed, START)


def job(*conditions: str, age_s: float = 0.0, **status: Any) -> Manifest:
    said = [{"type": c, "status": "True", "message": "why"} for c in conditions]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": JOB, "creationTimestamp": to_text(START - age_s)},
        "status": {"conditions": said, **status},
    }


def loader(**more: Any) -> Manifest:
    found = pod("l", component=names.LOADER, **more)
    found["metadata"]["labels"]["batch.kubernetes.io/job-name"] = JOB
    return found


@pytest.mark.parametrize("uri", ["pvc://weights/x", "oci://image:1", "file:///m"])
def test_a_model_that_is_not_loaded_is_there(uri: str) -> None:
    found = judged(model={"uri": uri})
    assert (found.status, found.reason) == ("True", "NotNeeded")


def test_a_model_is_there_when_its_job_is_complete() -> None:
    assert judged().reason == "Loading"
    assert judged(job()).reason == "Loading"
    done = judged(job("Complete"))
    assert (done.status, done.reason) == ("True", "Loaded")
    assert model_state.is_complete(job("Complete"))
    assert model_state.is_finished(job("Failed"))
    assert not model_state.is_finished(job("Suspended"))


def test_a_model_whose_secret_is_not_there_is_not_being_loaded() -> None:
    spec = from_hub(secretRef={"name": "hub"})
    found = judged(**spec)
    assert (found.status, found.reason) == ("False", "Waiting")
    assert found.message == f"before {spec['model']['uri']} is loaded: Secret hub"
    assert judged(job(), **spec).reason == "Loading", "who has begun has got its values"


def test_a_job_of_another_model_says_nothing() -> None:
    other = job("Complete") | {"metadata": {"name": "llama-load-00000000"}}
    assert judged(other).reason == "Loading"


def test_why_a_loader_does_not_get_on_is_told() -> None:
    words = json.dumps({"code": "OCT-1212", "text": "401", "help": "give HF_TOKEN"})
    refused = judged(job(), pods=(loader(containers=[ended(1, words)]),))
    assert (refused.status, refused.reason) == ("False", "ModelForbidden")
    assert refused.is_failure
    waiting = unplaced("no node", name="l", component=names.LOADER)
    waiting["metadata"]["labels"]["batch.kubernetes.io/job-name"] = JOB
    assert judged(job(), pods=(waiting,)).reason == "Unschedulable"


def test_a_loader_that_kubernetes_makes_no_pod_of_is_told() -> None:
    assert judged(job(age_s=29)).reason == "Loading"
    found = judged(job(age_s=30))
    assert (found.status, found.reason, found.is_failure) == ("False", "NoLoaderPod", True)
    assert f"the Job {JOB}: kubectl describe job says why" in found.message
    assert judged(job(age_s=30, active=1)).reason == "Loading", "its pod is not seen yet"
    assert judged(job(age_s=30), pods=(loader(going=True),)).reason == "Loading"
    assert judged(job("Complete", age_s=30)).reason == "Loaded"


def claim(size: str, *, uid: str = "c1", age_s: float = 60.0) -> Manifest:
    made = to_text(START - age_s)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "llama-models", "uid": uid, "creationTimestamp": made},
        "spec": {"resources": {"requests": {"storage": size}}},
    }


@pytest.mark.parametrize(
    ("noted", "claim_age_s", "is_lost"),
    [
        ("c1", 60, False),
        ("c1", 0, False),  # clocks that differ lose nothing
        ("c0", 60, True),
        ("", 60, False),
        ("", 30, False),  # both made in the same second
        ("", 29, True),
    ],
)
def test_a_job_says_nothing_of_a_volume_that_was_made_after_it(
    noted: str, claim_age_s: float, is_lost: bool
) -> None:
    done, volume = job("Complete", age_s=30), claim("20Gi", age_s=claim_age_s)
    if noted:
        done["metadata"]["annotations"] = {names.CLAIM: noted}
    assert model_state.is_of_lost_volume(done, volume) == is_lost
    assert judged(done, volume).reason == ("Loading" if is_lost else "Loaded")


def test_a_volume_that_is_being_deleted_is_told() -> None:
    going = claim("20Gi")
    going["metadata"]["deletionTimestamp"] = to_text(START)
    for children in ((going,), (going, job("Complete")), (going, job())):
        found = judged(*children)
        assert (found.status, found.reason, found.is_failure) == ("False", "VolumeGoing", True)
        assert found.message.startswith("llama-models is being deleted")


def test_without_a_volume_no_model_is_in_it() -> None:
    observed = Observed(
        resource=resource(**from_hub()), installation=INSTALLATION, children=(job("Complete"),)
    )
    assert model_state.judge(service(**from_hub()), observed, START).status == "False"


def test_a_volume_that_cannot_grow_is_told_of_the_model_that_is_in_it() -> None:
    why = "only dynamically provisioned pvc can be resized"
    refusal = Refusal(kind="PersistentVolumeClaim", name="llama-models", message=why)
    found = judged(job("Complete"), claim("10Gi"), refusals=(refusal,))
    assert (found.status, found.reason, found.is_failure) == ("True", "VolumeNotGrown", True)
    assert found.message.endswith(f"is in the volume; its volume stays at 10Gi: {why}")
    loading = judged(job(), claim("10Gi"), refusals=(refusal,))
    assert (loading.status, loading.reason) == ("False", "Loading")
    assert loading.message.endswith(why)
    other = Refusal(kind="Service", name="llama-models", message=why)
    assert judged(job("Complete"), claim("20Gi"), refusals=(other,)).reason == "Loaded"


def test_a_volume_that_is_larger_than_it_is_to_be_is_told() -> None:
    found = judged(job("Complete"), claim("30Gi"))
    assert (found.status, found.reason, found.is_failure) == ("True", "Loaded", False)
    assert found.message.endswith("; its volume has 30Gi, as none can shrink to 20Gi")
    assert judged(job("Complete"), claim("20480Mi")).message.endswith("is in the volume")


def test_a_loader_of_another_model_has_to_end_first() -> None:
    other = loader()
    other["metadata"]["labels"]["batch.kubernetes.io/job-name"] = "llama-load-00000000"
    one = service(**from_hub())

    def at_work(*found: Manifest) -> list[str]:
        return model_state.others_at_work(
            one, Observed(resource={}, installation=INSTALLATION, pods=found)
        )

    assert at_work(other, loader(), pod()) == ["l"]
    assert at_work(loader(), loader(phase="Succeeded"), pod()) == []
    other["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert at_work(other) == ["l"], "it may remove models as long as it is there"
    found = judged(pods=(other,))
    assert (found.status, found.reason) == ("False", "WaitingForLoader")
    assert "ended: l" in found.message
    other["status"]["phase"] = "Succeeded"
    assert at_work(other) == []


def test_a_job_that_gave_up_says_so() -> None:
    found = judged(job("Failed"))
    assert (found.status, found.reason, found.is_failure) == ("False", "LoadFailed", True)


def test_a_loader_that_waits_for_a_volume_on_another_node_is_told() -> None:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_text(START - 120)}
    volume = {"name": "models", "persistentVolumeClaim": {"claimName": "llama-models"}}
    stuck = loader(
        conditions=[placed],
        containers=[waiting("ContainerCreating")],
        spec={"nodeName": "b", "volumes": [volume]},
    )
    holder = pod("e", ready=True, spec={"nodeName": "a", "volumes": [volume]})
    assert judged(job(), pods=(stuck,)).reason == "ContainerNotCreated"
    found = judged(job(), pods=(stuck, holder))
    assert (found.status, found.reason) == ("False", "VolumeOnOtherNode")
    assert "placed on a, b" in found.message
