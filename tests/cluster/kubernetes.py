"""What every cluster of the tests offers, whoever brought it up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.api import Object
from tests.cluster.kubectl import Kubectl

FAKE_NODES = "fake.octavo.dev/node"
"""Annotation of the nodes that kwok plays."""


class Kubernetes:
    """A cluster that can be used.

    Args:
        kubectl: reaches it as an administrator.
    """

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl

    @property
    def kubeconfig(self) -> Path:
        """How an administrator reaches it."""
        return self.kubectl.kubeconfig

    @contextmanager
    def namespace(self) -> Iterator[str]:
        """Gives a new namespace in which pods can be made; its end is not waited for."""
        name = f"test-{uuid.uuid4().hex[:10]}"
        # Pods need the account, which Kubernetes would make a moment later.
        account = {"name": "default", "namespace": name}
        self.kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
        )
        try:
            yield name
        finally:
            self.vacate(name)

    def vacate(self, namespace: str) -> None:
        """Ends a namespace that is used no more."""
        self.kubectl("delete", "namespace", namespace, "--wait=false", "--ignore-not-found")

    def delete_namespace(self, name: str) -> None:
        """Deletes a namespace with all that is in it; returns when it is gone."""
        self.kubectl("delete", "namespace", name, "--timeout=100s", timeout_s=110.0)

    def live_pods(self, namespace: str, selector: str) -> list[Object]:
        """Returns the pods that a selector finds and that are not going."""
        found = self.kubectl.list("pods", namespace=namespace, selector=selector)
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    @contextmanager
    def fake_node(self, *, gpus: int = 0, cpus: int = 64) -> Iterator[str]:
        """Gives one more fake node, whose label `kubernetes.io/hostname` is its name."""
        name = f"node-{uuid.uuid4().hex[:10]}"
        self.add_fake_node(name, gpus=gpus, cpus=cpus)
        try:
            yield name
        finally:
            self.kubectl("delete", "node", name, "--wait=false", "--ignore-not-found")

    def add_fake_node(
        self, name: str, *, gpus: int = 0, cpus: int = 64, timeout_s: float = 30.0
    ) -> None:
        """Adds a fake node; returns when pods are scheduled to it."""
        self.kubectl.apply(_fake_node(name, gpus, cpus))
        self.kubectl.until(node_is_ready, "node", name, timeout_s=timeout_s)


def condition(found: Object, kind: str) -> str:
    """Returns the status of one of an object's conditions; empty when it has none of that kind."""
    # A definition that was just made has null there.
    conditions = found.get("status", {}).get("conditions") or []
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")


def node_is_ready(node: Object) -> bool:
    """Tells whether pods are scheduled to a node."""
    return condition(node, "Ready") == "True" and not node["spec"].get("taints")


def _fake_node(name: str, gpus: int, cpus: int) -> Object:
    room = {"cpu": str(cpus), "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "2000"}
    if gpus:
        room["nvidia.com/gpu"] = str(gpus)
    labels = {"hostname": name, "os": "linux", "arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {FAKE_NODES: "true"},
            "labels": {f"kubernetes.io/{key}": value for key, value in labels.items()},
        },
        "status": {"capacity": room, "allocatable": room},
    }
