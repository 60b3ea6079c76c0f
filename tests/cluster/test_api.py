"""The client in this process answers as kubectl does."""

from __future__ import annotations

import json

import pytest
from tests.cluster.api import ApiError, MissingError
from tests.cluster.kubernetes import Kubernetes
from tests.cluster.manifests import deployment, pod


@pytest.mark.parametrize("kind", ["deployment", "deployments", "deploy", "deployments.apps"])
def test_a_kind_has_all_names_that_kubectl_knows(
    cluster: Kubernetes, namespace: str, kind: str
) -> None:
    cluster.kubectl.apply(deployment("web", 0), namespace=namespace)
    found = cluster.kubectl.get(kind, "web", namespace=namespace)
    told = cluster.kubectl("get", kind, "web", "--output", "json", namespace=namespace)
    assert found["spec"] == json.loads(told)["spec"]


def test_a_list_is_that_of_kubectl(cluster: Kubernetes, namespace: str) -> None:
    items = pod("one"), pod("two"), deployment("web", 0)
    cluster.kubectl.apply(*items, namespace=namespace)
    told = cluster.kubectl("get", "pods", "--output", "json", namespace=namespace)
    found = cluster.kubectl.list("pods", namespace=namespace)
    assert [_identity(p) for p in found] == [_identity(p) for p in json.loads(told)["items"]]
    assert [p["metadata"]["name"] for p in found] == ["one", "two"]
    both = cluster.kubectl.list("pods,deployments.apps", namespace=namespace)
    assert [p["kind"] for p in both] == ["Pod", "Pod", "Deployment"]
    everywhere = cluster.kubectl.list("pods", selector="app=one,app!=two")
    assert _identity(found[0]) in [_identity(p) for p in everywhere]


def _identity(item: dict[str, object]) -> tuple[object, ...]:
    meta = item["metadata"]
    assert isinstance(meta, dict)
    return item["apiVersion"], item["kind"], meta["uid"]


def test_what_is_not_there_is_named(cluster: Kubernetes, namespace: str) -> None:
    with pytest.raises(MissingError, match=r'\(NotFound\): pods "none" not found'):
        cluster.kubectl.get("pod", "none", namespace=namespace)
    with pytest.raises(ApiError, match='a resource type "horses"'):
        cluster.kubectl.get("horses", "none", namespace=namespace)


def test_an_unknown_field_is_refused_and_nothing_applied(
    cluster: Kubernetes, namespace: str
) -> None:
    wrong = deployment("web", 0)
    wrong["spec"]["replica"] = 1
    with pytest.raises(ApiError, match=r"\.spec\.replica: field not declared"):
        cluster.kubectl.apply(wrong, namespace=namespace)
    assert not cluster.kubectl.list("deployments", namespace=namespace)


def test_all_of_a_kind_goes_with_what_it_owns(cluster: Kubernetes, namespace: str) -> None:
    cluster.kubectl.apply(deployment("web", 1), namespace=namespace)
    cluster.kubectl.until(
        lambda d: d["status"].get("readyReplicas") == 1, "deploy", "web", namespace=namespace
    )
    (owned,) = cluster.kubectl.list("pods", namespace=namespace)
    cluster.kubectl.api.delete_all("deployments", namespace)
    cluster.kubectl.until_gone("pod", owned["metadata"]["name"], namespace=namespace)


def test_a_watch_ends_with_its_time(cluster: Kubernetes, namespace: str) -> None:
    cluster.kubectl.apply(deployment("web", 0), namespace=namespace)
    states = list(cluster.kubectl.api.states("deployment", "web", namespace, timeout_s=1.0))
    assert states[0]["metadata"]["name"] == "web"
    with pytest.raises(AssertionError, match=r"deployment web after 0\.5 s:\n.*"):
        cluster.kubectl.until(
            lambda d: not d, "deployment", "web", namespace=namespace, timeout_s=0.5
        )
