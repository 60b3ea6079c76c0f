from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from tests.operator.building import from_hub, service
from tests.operator.specs import URIS, specs

from octavo.operator import desired_engine, names
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest

USUAL = Strategy(max_surge=1, max_unavailable=0)
IMAGE = "octavo-engine:cpu"


def template(*, image: str = IMAGE, references: str = "", **spec: Any) -> Manifest:
    return desired_engine.pod_template(service(**spec), image, references, "spiffe://a/b")


def engine_of(found: Manifest) -> Manifest:
    container: Manifest = found["spec"]["containers"][0]
    return container


def template_hash(found: Manifest) -> str:
    return str(found["metadata"]["annotations"][names.TEMPLATE])


BASE: dict[str, Any] = {"model": {"uri": "pvc://weights/llama"}, "engine": {}}

CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": {"uri": "pvc://weights/other"}},
    "served names": {"model": {"uri": "pvc://weights/llama", "servedNames": ["x"]}},
    "secret": {"model": {"uri": "pvc://weights/llama", "secretRef": {"name": "s"}}},
    "env": {"engine": {"env": [{"name": "A", "value": "1"}]}},
    "arguments": {"engine": {"extraArgs": ["--watermark=0.1"]}},
    "options": {"engine": {"options": {"threads": 2}}},
    "resources": {"engine": {"resources": {"limits": {"memory": "1Gi"}}}},
    "host memory": {"cache": {"host": "1Gi"}},
    "disk": {"cache": {"host": "1Gi", "disk": {"size": "1Gi"}}},
    "pinned prefixes": {"cache": {"pinnedPrefixes": [{"text": "x"}]}},
    "image": {"engine": {"image": "mine:1"}},
    "pull policy": {"engine": {"imagePullPolicy": "Always"}},
    "device": {"engine": {"device": "cuda"}},
    "node selector": {"engine": {"nodeSelector": {"a": "b"}}},
    "tolerations": {"engine": {"tolerations": [{"key": "a"}]}},
    "affinity": {"engine": {"affinity": {"nodeAffinity": {}}}},
    "priority": {"engine": {"priorityClassName": "high"}},
    "runtime class": {"engine": {"runtimeClassName": "nvidia"}},
    "service account": {"engine": {"serviceAccountName": "sa"}},
    "security": {"engine": {"podSecurityContext": {"runAsUser": 7}}},
    "pod labels": {"engine": {"podLabels": {"a": "b"}}},
    "pod annotations": {"engine": {"podAnnotations": {"a": "b"}}},
    "pull secrets": {"engine": {"imagePullSecrets": [{"name": "p"}]}},
    "drain time": {"rollout": {"drainSeconds": 60}},
}


def test_another_pinned_prefix_is_another_template() -> None:
    one, other = (template(cache={"pinnedPrefixes": [{"text": text}]}) for text in "ab")
    assert template_hash(one) != template_hash(other)
    again = template(cache={"volume": {"size": 1}, "pinnedPrefixes": [{"text": "a"}]})
    assert template_hash(again) == template_hash(one)


@pytest.mark.parametrize("change", CHANGES)
def test_each_part_that_engines_depend_on_is_another_template(change: str) -> None:
    image = "mine:1" if change == "image" else IMAGE
    changed = template(image=image, **(BASE | CHANGES[change]))
    assert changed != template(**BASE)
    assert template_hash(changed) != template_hash(template(**BASE))


@pytest.mark.parametrize(
    "change",
    [
        {"replicas": 5},
        {"autoscaling": {"maxReplicas": 5}},
        {"rollout": {"maxSurge": 2, "maxUnavailable": 1, "paused": True}},
    ],
)
def test_what_engines_do_not_depend_on_is_the_same_template(change: dict[str, Any]) -> None:
    assert template(**(BASE | change)) == template(**BASE)


def test_changed_data_of_a_secret_is_another_template() -> None:
    one, other = template(references="aa"), template(references="bb")
    assert template_hash(one) != template_hash(other)
    assert one["metadata"]["annotations"][names.REFERENCES] == "aa"
    assert names.REFERENCES not in template()["metadata"]["annotations"]


def test_a_default_image_is_not_part_of_the_hash_and_a_chosen_one_is() -> None:
    assert template_hash(template(image="a")) == template_hash(template(image="b"))
    one = template(image="a", engine={"image": "a"})
    assert template_hash(one) != template_hash(template(image="a"))


def test_the_template_is_pinned() -> None:
    """A change of what is written here restarts every engine of everybody: is it worth that?"""
    found = template(
        **from_hub(revision="main", secretRef={"name": "hub"}), references="0123456789abcdef"
    )
    assert template_hash(found) == "a13a1bf1ecb0b658"
    assert template_hash(template(**BASE)) == "45b96a9ebddeac78"


def test_the_engine_is_told_where_its_model_is_and_where_to_listen() -> None:
    args = engine_of(template(**from_hub(revision="main")))["args"]
    key = service(**from_hub(revision="main")).spec.model.key
    assert args == [
        "--model", f"/models/{key}", "--served-name", "llama", "--listen", "0.0.0.0:50051",
        "--plaintext", "--metrics-listen", "0.0.0.0:9091", "--drain-s", "30",
    ]  # fmt: skip
    assert desired_engine.model_of(template(**from_hub(revision="main"))) == f"/models/{key}"
    assert desired_engine.model_of({"spec": {"containers": [{"name": "other"}]}}) == ""


@pytest.mark.parametrize(
    ("uri", "path", "volume"),
    [
        ("pvc://weights/a/b.gguf", "/models/a/b.gguf",
         {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}),
        ("pvc://weights", "/models",
         {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}),
        ("oci://registry/model:1", "/models",
         {"image": {"reference": "registry/model:1", "pullPolicy": "IfNotPresent"}}),
        ("file:///opt/m.gguf", "/opt/m.gguf", None),
    ],
)  # fmt: skip
def test_each_scheme_has_its_volume(uri: str, path: str, volume: Manifest | None) -> None:
    found = template(model={"uri": uri})
    assert engine_of(found)["args"][1] == path
    models = [v for v in found["spec"]["volumes"] if v["name"] == "models"]
    mounts = [m for m in engine_of(found)["volumeMounts"] if m["name"] == "models"]
    if volume is None:
        assert (models, mounts) == ([], [])
    else:
        assert models == [{"name": "models", **volume}]
        assert mounts == [{"name": "models", "mountPath": "/models", "readOnly": True}]


def test_a_loaded_file_is_opened_by_its_name() -> None:
    spec: dict[str, Any] = from_hub() | {"model": {"uri": "hf://org/name/q4.gguf"}}
    key = service(**spec).spec.model.key
    assert engine_of(template(**spec))["args"][1] == f"/models/{key}/q4.gguf"


def test_each_argument_arrives_whole() -> None:
    hostile = ["; touch /tmp/p", "$(id)", "a b", "'\"", "--x=$(HF_TOKEN)"]
    container = engine_of(template(engine={"extraArgs": hostile}))
    assert container["command"] == ["python", "-m", "octavo.engine"]
    assert container["args"][-5:] == [text.replace("$", "$$") for text in hostile]


@given(specs(uris=URIS))
def test_no_pod_runs_a_shell_or_is_privileged(spec: dict[str, Any]) -> None:
    pod = template(**spec)["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["python", "-m", "octavo.engine"]
    assert all(isinstance(argument, str) and argument for argument in container["args"])
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all("hostPath" not in volume for volume in pod["volumes"])


def test_the_grace_outlasts_the_drain() -> None:
    found = template(rollout={"drainSeconds": 100})
    assert found["spec"]["terminationGracePeriodSeconds"] == 100 + desired_engine.GRACE_S
    args = engine_of(found)["args"]
    assert args[args.index("--drain-s") + 1] == "100"


def test_engines_are_ready_only_when_they_are_routable() -> None:
    assert template()["spec"]["readinessGates"] == [{"conditionType": names.ROUTABLE_GATE}]


def test_a_gpu_is_asked_for_where_the_user_says_only_cuda() -> None:
    found = engine_of(template(engine={"device": "cuda"}))
    assert found["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert "resources" not in engine_of(template())


@pytest.mark.parametrize(
    "gpu",
    [
        *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "amd.com/gpu"),
        *("nvidia.com/a100", "gpu.example.com/h100"),
    ],
)
def test_a_gpu_that_the_user_names_is_the_only_one(gpu: str) -> None:
    mine = {"limits": {gpu: 2, "memory": "8Gi"}}
    assert engine_of(template(engine={"device": "cuda", "resources": mine}))["resources"] == mine


@pytest.mark.parametrize(
    "other", ["rdma/hca", "nvidia.com/hostdev", "vpc.amazonaws.com/efa", "memory"]
)
def test_a_resource_that_is_no_gpu_takes_none_away(other: str) -> None:
    given = {"device": "cuda", "resources": {"limits": {other: 1}}}
    limits = engine_of(template(engine=given))["resources"]["limits"]
    assert limits == {other: 1, "nvidia.com/gpu": 1}


def test_spread_counts_the_engines_of_this_service() -> None:
    mine = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    (found,) = template(engine={"topologySpreadConstraints": [mine]})["spec"][
        "topologySpreadConstraints"
    ]
    assert found == mine | {"labelSelector": {"matchLabels": names.selector("llama")}}


def test_labels_of_users_come_second() -> None:
    given_labels = {"team": "x"}
    labels = template(engine={"podLabels": given_labels})["metadata"]["labels"]
    assert given_labels.items() <= labels.items()
    assert names.labels("llama", "engine").items() <= labels.items()


def test_the_deployment_has_the_strategy_and_the_number_that_it_is_given() -> None:
    one = service()
    found = desired_engine.deployment(one, template(), USUAL, 3)
    assert found["spec"]["replicas"] == 3
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "paused" not in found["spec"]
    assert found["metadata"]["annotations"] == {names.IMAGE: IMAGE}
    left = desired_engine.deployment(one, template(), USUAL, None, is_paused=True)
    assert "replicas" not in left["spec"]
    assert left["spec"]["paused"] is True


def test_nothing_given_is_changed() -> None:
    one = service(engine={"podAnnotations": {"a": "b"}, "resources": {"limits": {"cpu": 1}}})
    before = copy.deepcopy(one)
    desired_engine.pod_template(one, IMAGE, "aa")
    assert one == before
