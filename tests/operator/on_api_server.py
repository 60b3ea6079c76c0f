"""InferenceServices on a real API server: the definition in place, and ways to write and read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.reconciling import Reconciler

from octavo.operator import crd, names
from octavo.operator.kinds import Manifest
from octavo.operator.observed import Observed


@pytest.fixture(scope="module")
def defined(cluster: Kubernetes) -> Kubernetes:
    """The cluster with the definition."""
    definition = crd.definition()
    cluster.kubectl.apply(definition)
    cluster.kubectl.until(
        lambda found: condition(found, "Established") == "True",
        "customresourcedefinition",
        definition["metadata"]["name"],
    )
    return cluster


def resource(name: str = "llama", **spec: Any) -> Manifest:
    """Returns an InferenceService whose model is in its image, as a user writes it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file:///models/llama"}} | spec,
    }


def ready(observed: Observed) -> str:
    """Returns the condition Ready."""
    return condition(observed.resource, "Ready")


def reason(observed: Observed, type: str = "Ready") -> str:
    """Returns the reason of a condition."""
    return str(said(observed, type).get("reason", ""))


def said(observed: Observed, type: str = "Ready") -> Manifest:
    """Returns a condition; empty when there is none."""
    found: list[Manifest] = (observed.resource.get("status") or {}).get("conditions") or []
    return next((c for c in found if c["type"] == type), {})


def settled(cluster: Kubernetes, namespace: str, **spec: Any) -> Reconciler:
    """Applies a service and works until it is ready."""
    cluster.kubectl.apply(resource(**spec), namespace=namespace)
    reconciler = Reconciler(cluster.kubeconfig, namespace, "llama")
    reconciler.until(lambda observed: ready(observed) == "True")
    return reconciler


def replicas(cluster: Kubernetes, namespace: str) -> int:
    """Returns the number that the Deployment asks for."""
    found = cluster.kubectl.get("deployment", "llama-engine", namespace=namespace)
    return int(found["spec"]["replicas"])
