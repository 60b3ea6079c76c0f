from __future__ import annotations

from typing import Any

import pytest
from tests.operator.building import from_hub, service

from octavo.operator import desired_loader, names, shared_volume
from octavo.operator.kinds import Manifest


def job(**spec: Any) -> Manifest:
    return desired_loader.job(service(**(from_hub() | spec)), "loader:1", "aa")


def test_the_loader_is_told_what_and_where() -> None:
    one = service(**from_hub(revision="v1"))
    assert desired_loader.arguments(one) == [
        "--model", "hf://org/llama", "--revision", "v1",
        "--target", f"/models/{one.spec.model.key}",
    ]  # fmt: skip
    assert desired_loader.arguments(one, ("aa", "bb"))[-2:] == ["--keep", "aa,bb"]
    assert "--revision" not in desired_loader.arguments(service(**from_hub()))


def test_another_model_or_revision_is_another_job_and_other_things_are_not() -> None:
    base = desired_loader.job_name(service(**from_hub()))
    assert desired_loader.job_name(service(**from_hub(revision="v1"))) != base
    assert desired_loader.job_name(service(**from_hub(), engine={"image": "x"})) == base
    assert base.startswith("llama-load-")


def test_the_loader_tries_again_by_itself_and_says_why_it_ended() -> None:
    found = job()
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert found["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    assert found["spec"]["backoffLimit"] >= 10**6
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"
    assert container["command"] == ["python", "-m", "octavo.loader"]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, {"requests": {"cpu": "100m", "memory": "256Mi"}}),
        (
            {"limits": {"memory": "128Mi"}},
            {"limits": {"memory": "128Mi"}, "requests": {"cpu": "100m"}},
        ),
        (
            {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi", "cpu": 1}},
            {"limits": {"memory": "2Gi", "cpu": 1}, "requests": {"memory": "1Gi"}},
        ),
    ],
    ids=["usual", "limited", "all"],
)
def test_the_loader_gets_what_it_is_given(given: Manifest, found: Manifest) -> None:
    volume = {"size": "1Gi"} | ({"loaderResources": given} if given else {})
    (container,) = job(cache={"volume": volume})["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == found


def test_the_loader_has_the_model_s_secret_and_the_engine_s_place() -> None:
    found = job(
        **from_hub(secretRef={"name": "hub"}),
        engine={"nodeSelector": {"a": "b"}, "env": [{"name": "HTTPS_PROXY", "value": "x"}]},
    )
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "hub"}}]
    assert {"name": "HTTPS_PROXY", "value": "x"} in container["env"]
    assert pod["nodeSelector"] == {"a": "b"}
    assert found["spec"]["template"]["metadata"]["annotations"] == {names.REFERENCES: "aa"}


def test_the_loader_goes_to_the_volume_of_the_engines() -> None:
    near: Manifest = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    pod = job(engine={"affinity": near})["spec"]["template"]["spec"]
    assert pod["affinity"] == shared_volume.affinity(
        service(**from_hub(), engine={"affinity": near})
    )
    shared = {"volume": {"size": "1Gi", "accessMode": "ReadWriteMany"}}
    assert "affinity" not in job(cache=shared)["spec"]["template"]["spec"]


def test_only_the_loader_writes_the_volume() -> None:
    pod = job()["spec"]["template"]["spec"]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "models"]
    assert volume["persistentVolumeClaim"] == {"claimName": "llama-models"}
    assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def test_a_job_notes_the_claim_that_it_loads_into_and_its_hash_does_not() -> None:
    one = service(**from_hub())
    first, later = (desired_loader.job(one, "loader:1", "", claim=uid) for uid in ("", "c1"))
    assert "annotations" not in first["metadata"]
    assert later["metadata"]["annotations"] == {names.CLAIM: "c1"}
    assert first["spec"] == later["spec"]


@pytest.mark.parametrize("kept", [(), ("aa",), ("aa", "bb")])
def test_what_a_job_keeps_can_be_read_from_it(kept: tuple[str, ...]) -> None:
    one = service(**from_hub(revision="--keep"))
    assert desired_loader.kept_by(desired_loader.job(one, "loader:1", "", kept)) == kept


def test_a_job_of_somebody_else_keeps_nothing_of_ours() -> None:
    pod: Manifest = {"containers": [{"name": "x"}, {"name": "y", "args": ["--keep", "aa"]}]}
    assert desired_loader.kept_by({"spec": {"template": {"spec": pod}}}) == ()


def test_the_claim_is_as_the_user_wants_it() -> None:
    volume = {"size": "30Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany"}
    one = service(model={"uri": "hf://org/llama"}, cache={"volume": volume})
    assert one.spec.cache.volume is not None
    found = desired_loader.volume_claim(one, one.spec.cache.volume)
    assert found["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "30Gi"}},
        "storageClassName": "fast",
    }
    plain = service(**from_hub())
    assert plain.spec.cache.volume is not None
    assert (
        "storageClassName"
        not in desired_loader.volume_claim(plain, plain.spec.cache.volume)["spec"]
    )
