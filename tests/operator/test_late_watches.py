"""An operator whose watch of InferenceServices is late takes nothing away on what it knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.api import Object
from tests.cluster.kubernetes import Kubernetes
from tests.operator.api_proxy import ApiProxy
from tests.operator.operator_process import OperatorProcess, account
from tests.operator.test_operator_on_cluster import RESOURCE, is_ready, service

HUB: dict[str, Any] = {
    "model": {"uri": "hf://org/llama"},
    "cache": {"volume": {"size": "20Gi"}},
}


@pytest.fixture(scope="module")
def proxy(cluster: Kubernetes) -> Iterator[ApiProxy]:
    with ApiProxy(cluster) as running:
        yield running


@pytest.fixture(scope="module")
def operator(cluster: Kubernetes, proxy: ApiProxy) -> Iterator[OperatorProcess]:
    """An operator that learns by its watches alone what others have written."""
    with cluster.namespace() as namespace:
        account(namespace).bring(cluster)
        flags = ("--resync-s=600",)
        with OperatorProcess(cluster, namespace, *flags, server=proxy.url) as running:
            running.until(lambda: proxy.num_watches >= 8, "watches all kinds")
            yield running


def until_ready(cluster: Kubernetes, operator: OperatorProcess, name: str, counts: str) -> Object:
    return cluster.kubectl.until(
        lambda found: is_ready(found) and found["status"]["counts"] == counts,
        RESOURCE, name, namespace=operator.namespace,
    )  # fmt: skip


def test_engines_that_are_wanted_by_now_are_not_scaled_down(
    cluster: Kubernetes, operator: OperatorProcess, proxy: ApiProxy
) -> None:
    namespace, kubectl = operator.namespace, cluster.kubectl
    kubectl.apply(service("scaled", replicas=1), namespace=namespace)
    until_ready(cluster, operator, "scaled", "1/1")
    proxy.hold("inferenceservices")
    try:
        kubectl.apply(service("scaled", replicas=3), namespace=namespace)
        # Seen at once, and more than are wanted as far as the operator has heard.
        kubectl("scale", "deployment/scaled-engine", "--replicas=3", namespace=namespace)
        before = kubectl.get("deployment", "scaled-engine", namespace=namespace)
        until_ready(cluster, operator, "scaled", "3/3")
        after = kubectl.get("deployment", "scaled-engine", namespace=namespace)
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
    finally:
        proxy.let_go()
    kubectl.apply(service("scaled", replicas=1), namespace=namespace)
    until_ready(cluster, operator, "scaled", "1/1")


def test_a_volume_that_is_wanted_by_now_is_not_deleted(
    cluster: Kubernetes, operator: OperatorProcess, proxy: ApiProxy
) -> None:
    namespace, kubectl = operator.namespace, cluster.kubectl
    # Its engines take a while to go, and their volume stays until then.
    slow = {"podAnnotations": {"fake.octavo.dev/end-after": "6s"}}
    kubectl.apply(service("moved", engine=slow, replicas=1, **HUB), namespace=namespace)
    until_ready(cluster, operator, "moved", "1/1")
    volume = kubectl.get("pvc", "moved-models", namespace=namespace)
    kubectl.apply(service("moved", engine=slow, replicas=1), namespace=namespace)
    until_ready(cluster, operator, "moved", "1/1")
    proxy.hold("inferenceservices")
    try:
        kubectl.apply(service("moved", engine=slow, replicas=1, **HUB), namespace=namespace)
        until_ready(cluster, operator, "moved", "1/1")
        found = kubectl.get("pvc", "moved-models", namespace=namespace)
        assert found["metadata"]["uid"] == volume["metadata"]["uid"]
        assert "deletionTimestamp" not in found["metadata"]
    finally:
        proxy.let_go()
