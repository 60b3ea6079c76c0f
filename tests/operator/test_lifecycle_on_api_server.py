"""Rollouts, scaling and models against a real API server, scheduler and controllers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.kubernetes import Kubernetes, condition
from tests.cluster.program import wait_until
from tests.operator.on_api_server import defined, ready, reason, replicas, resource, said, settled
from tests.operator.reconciling import Reconciler

from octavo.operator import failures, model_state, names
from octavo.operator.cluster import FailedError
from octavo.operator.kinds import CONFIG_MAP, object_of
from octavo.operator.observed import Observed
from octavo.operator.plan import Apply
from octavo.operator.writes import owns_replicas

__all__ = ["defined"]


def images(cluster: Kubernetes, namespace: str) -> set[str]:
    selector = names.selector_text("llama")
    pods = cluster.kubectl.list("pods", namespace=namespace, selector=selector)
    return {pod["spec"]["containers"][0]["image"] for pod in pods}


def limit(cluster: Kubernetes, namespace: str, hard: dict[str, str]) -> None:
    """Gives a namespace a quota."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": hard},
    }
    cluster.kubectl.apply(quota, namespace=namespace)
    cluster.kubectl.until(
        lambda q: "hard" in (q.get("status") or {}), "resourcequota", "few", namespace=namespace
    )


@pytest.mark.parametrize(("num_gpus", "quota"), [(1, 0), (4, 1)], ids=["nodes", "quota"])
def test_with_one_gpu_engines_are_replaced_one_by_one_and_it_is_said(
    defined: Kubernetes, namespace: str, num_gpus: int, quota: int
) -> None:
    if quota:
        limit(defined, namespace, {"requests.nvidia.com/gpu": str(quota)})
    with defined.fake_node(gpus=num_gpus) as node:
        place = {"device": "cuda", "nodeSelector": {"kubernetes.io/hostname": node}}
        how: dict[str, Any] = {"replicas": 1, "rollout": {"noRoomSeconds": 2}}
        reconciler = settled(defined, namespace, **how, engine=place | {"image": "a:1"})
        defined.kubectl.apply(resource(**how, engine=place | {"image": "a:2"}), namespace=namespace)
        reasons: list[str] = []

        def done(observed: Observed) -> bool:
            reasons.append(reason(observed, "Rollout"))
            return ready(observed) == "True"

        reconciler.until(done)
        assert "NoSurgeRoom" in reasons
        assert images(defined, namespace) == {"a:2"}
        found = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
        assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_revision_that_fits_nowhere_costs_no_engine(defined: Kubernetes, namespace: str) -> None:
    reconciler = settled(defined, namespace, replicas=1)
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}
    defined.kubectl.apply(resource(replicas=1, engine=nowhere), namespace=namespace)
    found = reconciler.until(lambda o: reason(o, "Ready") == "Unschedulable")
    assert "node affinity/selector" in said(found)["message"]
    assert reason(found, "Routable") == "Routable"
    assert found.resource["status"]["routable"] == 1


def test_a_resource_that_is_paused_from_the_start_gets_an_engine_and_no_other(
    defined: Kubernetes, namespace: str
) -> None:
    paused: dict[str, Any] = {"replicas": 1, "rollout": {"paused": True}}
    reconciler = settled(defined, namespace, **paused, engine={"image": "a:1"})
    found = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
    assert found["spec"]["paused"] is True
    defined.kubectl.apply(resource(**paused, engine={"image": "a:2"}), namespace=namespace)
    reconciler.until(lambda o: reason(o, "Rollout") == "Paused")
    assert images(defined, namespace) == {"a:1"}


def test_a_broken_image_is_said_and_mended(defined: Kubernetes, namespace: str) -> None:
    reconciler = settled(defined, namespace, replicas=1)
    bad = {"podAnnotations": {"fake.octavo.dev/behaviour": "image-missing"}}
    defined.kubectl.apply(resource(replicas=1, engine=bad), namespace=namespace)
    found = reconciler.until(lambda o: reason(o, "Ready") == "ImagePullFailed")
    assert found.resource["status"]["routable"] == 1
    defined.kubectl.apply(resource(replicas=1), namespace=namespace)
    found = reconciler.until(lambda observed: ready(observed) == "True")
    status = found.resource["status"]
    assert status["observedGeneration"] == found.resource["metadata"]["generation"]


@pytest.mark.parametrize(
    ("annotations", "wanted"),
    [
        (
            {
                "exit-code": "2",
                "message": "error[OCT-1206]: there is no setting --treads (command line)",
            },
            ("BadArgument", "OCT-1206: there is no setting --treads (command line)"),
        ),
        ({"exit-code": "137", "exit-reason": "OOMKilled"}, ("OutOfMemory", "limit of 1Gi")),
    ],
    ids=["argument", "memory"],
)
def test_an_engine_that_ends_says_why(
    defined: Kubernetes, namespace: str, annotations: dict[str, str], wanted: tuple[str, str]
) -> None:
    crash = {"behaviour": "crash"} | annotations
    engine = {
        "podAnnotations": {f"fake.octavo.dev/{key}": value for key, value in crash.items()},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    defined.kubectl.apply(resource(replicas=1, engine=engine), namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    found = reconciler.until(lambda o: reason(o, "Ready") == wanted[0])
    assert wanted[1] in said(found)["message"]


def test_pods_that_admission_refuses_are_told(defined: Kubernetes, namespace: str) -> None:
    limit(defined, namespace, {"pods": "1"})
    defined.kubectl.apply(resource(replicas=2), namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    found = reconciler.until(lambda o: reason(o, "Ready") == "PodsRefused")
    assert "exceeded quota: few" in said(found)["message"]


HUB: dict[str, Any] = {"uri": "hf://org/llama"}


def test_a_loader_that_a_quota_forbids_is_told_and_can_be_given_what_it_wants(
    defined: Kubernetes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_state, "NO_POD_AFTER_S", 1.0)
    limit(defined, namespace, {"limits.memory": "8Gi"})
    engine = {"resources": {"limits": {"memory": "2Gi"}}}
    volume: dict[str, Any] = {"size": "1Gi"}
    spec: dict[str, Any] = {"model": HUB, "engine": engine, "replicas": 1}
    defined.kubectl.apply(resource(**spec, cache={"volume": volume}), namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    found = reconciler.until(lambda o: reason(o, "Ready") == "NoLoaderPod")
    assert "kubectl describe job says why" in said(found, "ModelCached")["message"]
    (job,) = defined.kubectl.list("jobs", namespace=namespace)
    described = defined.kubectl("describe", "job", job["metadata"]["name"], namespace=namespace)
    assert "must specify limits.memory" in described
    volume["loaderResources"] = {"limits": {"memory": "1Gi"}}
    defined.kubectl.apply(resource(**spec, cache={"volume": volume}), namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")


def test_a_volume_that_somebody_deletes_is_made_and_filled_again(
    defined: Kubernetes, namespace: str
) -> None:
    loaded: dict[str, Any] = {"model": HUB, "cache": {"volume": {"size": "1Gi"}}}
    reconciler = settled(defined, namespace, replicas=1, **loaded)
    (lost,) = defined.kubectl.list("pvc", namespace=namespace)
    (old,) = defined.kubectl.list("jobs", namespace=namespace)
    defined.kubectl("delete", "pvc", lost["metadata"]["name"], "--wait=false", namespace=namespace)
    found = reconciler.until(lambda o: reason(o, "ModelCached") == "VolumeGoing")
    assert reason(found, "Ready") == "Serving", "its engines have it still"
    defined.kubectl.apply(resource(replicas=0, **loaded), namespace=namespace)
    reconciler.until(lambda o: reason(o, "ModelCached") == "Loaded")
    (new,) = defined.kubectl.list("pvc", namespace=namespace)
    assert new["metadata"]["uid"] != lost["metadata"]["uid"]
    (job,) = defined.kubectl.list("jobs", namespace=namespace)
    assert job["metadata"]["uid"] != old["metadata"]["uid"]


@pytest.fixture
def storage_class(defined: Kubernetes, namespace: str) -> Iterator[str]:
    """A class whose volumes cannot grow."""
    name = f"fixed-{namespace}"
    defined.kubectl.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name},
            "provisioner": "fake.octavo.dev/volume",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    yield name
    defined.kubectl("delete", "storageclass", name)


def test_a_volume_that_cannot_grow_is_told_and_the_way_back_is_open(
    defined: Kubernetes, namespace: str, storage_class: str
) -> None:
    def edit(size: str) -> Observed:
        volume = {"size": size, "storageClassName": storage_class}
        edited = resource(model=HUB, replicas=1, cache={"volume": volume})
        defined.kubectl.apply(edited, namespace=namespace)
        for _ in range(3):  # what is refused is known to the look behind it
            reconciler.turn()
        return reconciler.observed()

    volume = {"size": "1Gi", "storageClassName": storage_class}
    reconciler = settled(defined, namespace, model=HUB, replicas=1, cache={"volume": volume})
    found = edit("2Gi")
    assert (ready(found), reason(found, "ModelCached")) == ("True", "VolumeNotGrown")
    assert "its volume stays at 1Gi: " in said(found, "ModelCached")["message"]
    assert reconciler.refusals != []
    found = edit("1Gi")
    assert (ready(found), reason(found, "ModelCached")) == ("True", "Loaded")
    assert reconciler.plan().is_empty
    growing = json.dumps({"allowVolumeExpansion": True})
    defined.kubectl("patch", "storageclass", storage_class, "--type=merge", "-p", growing)
    larger = json.dumps({"spec": {"resources": {"requests": {"storage": "3Gi"}}}})
    defined.kubectl("patch", "pvc", "llama-models", "-p", larger, namespace=namespace)
    found = edit("2Gi")
    assert (ready(found), reconciler.refusals) == ("True", [])
    assert "its volume has 3Gi" in said(found, "ModelCached")["message"]
    assert reconciler.plan().is_empty


def test_a_webhook_that_is_away_is_told_apart_from_an_api_server_that_is(
    defined: Kubernetes, namespace: str
) -> None:
    reconciler, name = Reconciler(defined.kubeconfig, namespace, "llama"), f"away-{namespace}"
    webhook = {
        "name": "away.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "rules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["*"],
                "resources": ["configmaps"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    defined.kubectl.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
    )
    wanted = object_of(CONFIG_MAP, {"name": "x", "namespace": namespace}, data={"a": "1"})

    def fails() -> bool:
        try:
            reconciler.do(lambda cluster: cluster.apply(CONFIG_MAP, wanted))
        except FailedError as error:
            return 'failed calling webhook "away.example.com"' in error.message
        return False

    try:
        wait_until(fails, 30, lambda: "the webhook is not asked")
    finally:
        defined.kubectl("delete", "validatingwebhookconfiguration", name)


def test_our_pods_fit_the_restricted_standard(defined: Kubernetes, namespace: str) -> None:
    level = "pod-security.kubernetes.io/enforce=restricted"
    defined.kubectl("label", "namespace", namespace, level)
    loaded = {"model": {"uri": "hf://org/llama"}, "cache": {"volume": {"size": "1Gi"}}}
    settled(defined, namespace, replicas=1, **loaded)


def test_another_model_is_loaded_before_engines_change(defined: Kubernetes, namespace: str) -> None:
    def spec(revision: str) -> dict[str, Any]:
        model = {"uri": "hf://org/llama", "revision": revision}
        return {"model": model, "cache": {"volume": {"size": "1Gi"}}, "replicas": 1}

    reconciler = settled(defined, namespace, **spec("v1"))
    first = {job["metadata"]["name"] for job in defined.kubectl.list("jobs", namespace=namespace)}
    defined.kubectl.apply(resource(**spec("v2")), namespace=namespace)
    plan = reconciler.turn()
    kinds = [write.kind.name for write in plan.writes if isinstance(write, Apply)]
    assert kinds == ["Job"]
    reconciler.until(lambda observed: ready(observed) == "True")
    second = {job["metadata"]["name"] for job in defined.kubectl.list("jobs", namespace=namespace)}
    assert len(first) == len(second) == 1
    assert not first & second
    pods = defined.kubectl.list(
        "pods", namespace=namespace, selector="app.kubernetes.io/component=loader"
    )
    owners = {pod["metadata"]["ownerReferences"][0]["name"] for pod in pods}
    assert owners <= second


def test_another_model_is_loaded_where_the_engines_have_the_volume(
    defined: Kubernetes, namespace: str
) -> None:
    def spec(revision: str, nodes: tuple[str, ...]) -> dict[str, Any]:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
        required = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
        placed = {"requiredDuringSchedulingIgnoredDuringExecution": required}
        return {
            "model": {"uri": "hf://org/llama", "revision": revision},
            "cache": {"volume": {"size": "1Gi"}},
            "engine": {"affinity": {"nodeAffinity": placed}, "resources": {"requests": {"cpu": 8}}},
            "replicas": 1,
        }

    def place(component: str) -> str:
        selector = names.selector("llama", component).items()
        selected = ",".join(f"{key}={value}" for key, value in selector)
        (pod,) = defined.kubectl.list("pods", namespace=namespace, selector=selected)
        return str(pod["spec"]["nodeName"])

    # The other node is empty, and larger: the scheduler likes it better.
    with defined.fake_node(cpus=16) as first, defined.fake_node() as second:
        reconciler = settled(defined, namespace, **spec("v1", (first,)))
        job = {j["metadata"]["name"] for j in defined.kubectl.list("jobs", namespace=namespace)}
        defined.kubectl.apply(resource(**spec("v2", (first, second))), namespace=namespace)
        reconciler.until(lambda observed: ready(observed) == "True")
        after = {j["metadata"]["name"] for j in defined.kubectl.list("jobs", namespace=namespace)}
        assert not job & after
        assert place(names.LOADER) == first


def test_engines_on_two_nodes_that_wait_for_one_volume_are_told(
    defined: Kubernetes, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_STUCK_CREATING_S", 0.0)
    engines = {"matchLabels": names.selector("llama")}
    apart = [{"topologyKey": "kubernetes.io/hostname", "labelSelector": engines}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": apart}
    spec: dict[str, Any] = {
        "model": {"uri": "hf://org/llama"},
        "cache": {"volume": {"size": "1Gi"}},
        "engine": {
            "affinity": {"podAntiAffinity": required},
            "podAnnotations": {"fake.octavo.dev/behaviour": "creating"},
        },
        "replicas": 2,
    }
    defined.kubectl.apply(resource(**spec), namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    found = reconciler.until(lambda o: reason(o) == "VolumeOnOtherNode")
    assert "keep them on one node with engine.nodeSelector" in said(found)["message"]


def test_a_scale_of_the_waiting_is_taken_back_by_the_next_apply(
    defined: Kubernetes, namespace: str
) -> None:
    reconciler = settled(defined, namespace, replicas=1)
    found = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
    patch = {"metadata": {"uid": found["metadata"]["uid"]}, "spec": {"replicas": 2}}
    defined.kubectl(
        "patch", "deployment", "llama-engine", "--subresource=scale", "--type=merge",
        "--field-manager=octavo-operator", "--patch", json.dumps(patch), namespace=namespace,
    )  # fmt: skip
    assert replicas(defined, namespace) == 2
    shown = ("get", "deployment", "llama-engine", "-o", "json", "--show-managed-fields")
    assert not owns_replicas(json.loads(defined.kubectl(*shown, namespace=namespace)))
    reconciler.until(lambda observed: ready(observed) == "True")
    assert replicas(defined, namespace) == 1


def test_a_deleted_service_takes_all_with_it(defined: Kubernetes, namespace: str) -> None:
    loaded = {"model": {"uri": "hf://org/llama"}, "cache": {"volume": {"size": "1Gi"}}}
    settled(defined, namespace, replicas=1, **loaded)
    defined.kubectl("delete", "ois", "llama", namespace=namespace)
    for kind, name in [
        ("deployment", "llama-engine"), ("service", "llama-engine"), ("pdb", "llama-engine"),
        ("networkpolicy", "llama-engine"), ("networkpolicy", "llama-load"),
        ("persistentvolumeclaim", "llama-models"),
    ]:  # fmt: skip
        defined.kubectl.until_gone(kind, name, namespace=namespace)
    assert defined.kubectl.list("pods", namespace=namespace) == []


def test_a_budget_lets_one_engine_go_at_a_time(defined: Kubernetes, namespace: str) -> None:
    settled(defined, namespace, replicas=2)
    found = defined.kubectl.until(
        lambda pdb: (pdb.get("status") or {}).get("expectedPods") == 2,
        "pdb", "llama-engine", namespace=namespace,
    )  # fmt: skip
    assert condition(found, "DisruptionAllowed") == "True"
    assert found["status"]["disruptionsAllowed"] == 1


def test_a_model_in_an_image_is_mounted_or_it_is_said_why_not(
    defined: Kubernetes, namespace: str
) -> None:
    spec = resource(model={"uri": "oci://registry.example/llama:1"}, replicas=1)
    defined.kubectl.apply(spec, namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    found = reconciler.until(lambda o: reason(o) in ("Serving", "NoImageVolumes"))
    deployment = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
    volumes = [v["name"] for v in deployment["spec"]["template"]["spec"]["volumes"]]
    # The server's version decides; neither way is anything written twice.
    assert ("models" in volumes) == (reason(found) == "Serving")
    assert len([w for w in reconciler.writes if isinstance(w, Apply)]) == 4
