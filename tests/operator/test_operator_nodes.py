"""Engines whose node goes, without a word or because somebody drains it, or ends them itself."""

from __future__ import annotations

from typing import Any

from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.operator_process import OperatorProcess
from tests.operator.test_operator_on_cluster import (
    RESOURCE,
    is_ready,
    operator,
    prepared,
    rested,
    service,
)

__all__ = ["operator", "prepared"]


def on(*nodes: str, **engine: Any) -> Object:
    """A service of one engine that may be on these nodes."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [here]}]}
    placed = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return service(replicas=1, engine={"affinity": placed, **engine})


def engines(cluster: Kubernetes, namespace: str) -> list[Object]:
    return cluster.kubectl.list("pods", namespace=namespace)


def said(found: Object, kind: str) -> tuple[str, str]:
    """Returns reason and message of a condition."""
    conditions = found.get("status", {}).get("conditions", [])
    return next(((c["reason"], c["message"]) for c in conditions if c["type"] == kind), ("", ""))


def test_an_engine_of_a_node_that_vanishes_is_told_and_replaced(
    control_plane: ControlPlane, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, control_plane.kubectl
    soon = {
        "key": "node.kubernetes.io/unreachable",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 10,
    }
    with control_plane.fake_node() as first, control_plane.fake_node() as second:
        # Pods are to be on the first node first; the second one opens when that is silent.
        kubectl("cordon", second)
        kubectl.apply(on(first, second, tolerations=[soon]), namespace=namespace)
        kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        (engine,) = engines(control_plane, namespace)
        name = engine["metadata"]["name"]
        kubectl.annotate("pod", name, namespace=namespace, silent="true")
        kubectl.annotate("node", first, silent="true")
        found = kubectl.until(
            lambda s: condition(s, "Ready") == "False",
            RESOURCE, "chat", namespace=namespace, timeout_s=120,
        )  # fmt: skip
        for kind in ("Ready", "Routable"):
            reason, message = said(found, kind)
            assert reason == "NodeLost"
            assert f"the node {first} does not answer" in message
        assert found["status"]["routable"] == 0
        kubectl("uncordon", second)
        kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace, timeout_s=120)
        where = {
            pod["spec"]["nodeName"]: pod["metadata"] for pod in engines(control_plane, namespace)
        }
        assert where.keys() == {first, second}
        assert "deletionTimestamp" in where[first], "nobody is there to end it"
        kubectl("delete", "node", first)
        kubectl.until_gone("pod", name, namespace=namespace, timeout_s=180)
        (left,) = engines(control_plane, namespace)
        assert left["spec"]["nodeName"] == second


def test_a_drain_takes_the_only_engine_and_another_node_gets_one(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    with cluster.fake_node() as first, cluster.fake_node() as second:
        slow = {"podAnnotations": {"fake.octavo.dev/ready-after": "4s"}}
        cluster.kubectl("cordon", second)
        cluster.kubectl.apply(on(first, second, **slow), namespace=namespace)
        cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        cluster.kubectl("uncordon", second)
        cluster.kubectl("drain", first, "--delete-emptydir-data", "--timeout=60s")
        found = cluster.kubectl.until(
            lambda s: condition(s, "Ready") == "False", RESOURCE, "chat", namespace=namespace
        )
        assert said(found, "Routable")[0] in ("NoEngines", "Loading")
        cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        (engine,) = engines(cluster, namespace)
        assert engine["spec"]["nodeName"] == second


WORDS = "The node was low on resource: ephemeral-storage."


def evict(cluster: Kubernetes, namespace: str) -> None:
    """Lets the node of the only engine end it, as a kubelet does that needs its room."""
    (engine,) = cluster.live_pods(namespace, "serving.octavo.dev/service=chat")
    name = engine["metadata"]["name"]
    cluster.kubectl.annotate("pod", name, namespace=namespace, message=WORDS, behaviour="evicted")


def test_an_engine_that_its_node_evicts_is_told_until_another_one_serves(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, cluster.kubectl
    slow = {"podAnnotations": {"fake.octavo.dev/ready-after": "3s"}}
    kubectl.apply(service(replicas=1, engine=slow), namespace=namespace)
    kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    evict(cluster, namespace)
    kubectl.until(
        lambda s: said(s, "Ready") == ("Evicted", f"its node ended or refused it: {WORDS}"),
        RESOURCE, "chat", namespace=namespace,
    )  # fmt: skip
    kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    assert len(engines(cluster, namespace)) == 2, "the one that ended lies there for its log"


def test_on_a_node_whose_disk_is_full_an_engine_waits_and_says_so(
    control_plane: ControlPlane, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, control_plane.kubectl

    def is_full(node: Object) -> bool:
        return any(t["key"].endswith("/disk-pressure") for t in node["spec"].get("taints", []))

    with control_plane.fake_node() as node:
        kubectl.apply(on(node), namespace=namespace)
        kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        kubectl.annotate("node", node, disk_pressure="true")
        kubectl.until(is_full, "node", node)
        evict(control_plane, namespace)
        kubectl.until(
            lambda s: said(s, "Ready")[0] == said(s, "Scheduled")[0] == "Unschedulable",
            RESOURCE, "chat", namespace=namespace,
        )  # fmt: skip
        rested(control_plane, namespace)
        assert len(engines(control_plane, namespace)) == 2, "one that ended, one that waits"
        kubectl.annotate("node", node, disk_pressure="")
        kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
