"""What an operator does on a real API server, compared with what the chart lets it do."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import yaml
from tests.charts.account import Rights
from tests.charts.rendering import ROOT
from tests.charts.test_access import USED, USED_AT_HOME
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubernetes import condition
from tests.operator.api_proxy import ApiProxy, Asked
from tests.operator.operator_process import OperatorProcess, account

UNUSED: Rights = {
    # Asked for only where the plugin OwnerReferencesPermissionEnforcement is on.
    ("serving.octavo.dev", "inferenceservices/finalizers"): {"update"},
    # Only while something else of the Deployment has to wait.
    ("apps", "deployments/scale"): {"patch"},
}
"""What one run in this cluster has no use for."""

OF_CONFIGURED = "serving.octavo.dev/service=configured"

CONFIGURED: Object = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "configured"},
    "spec": {
        "model": {"uri": "file:///models/a"},
        "engine": {
            "env": [
                {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "a"}}}
            ]
        },
        "cache": {"pinnedPrefixes": [{"text": "Once upon a time"}]},
        "replicas": 1,
    },
}


MONITOR_DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "scope": "Namespaced",
        "names": {"kind": "PodMonitor", "plural": "podmonitors"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


def is_ready(found: Object) -> bool:
    return condition(found, "Ready") == "True"


def patch(kubectl: Kubectl, name: str, change: dict[str, Any], namespace: str) -> None:
    text = json.dumps({"spec": change})
    kubectl("patch", "ois", name, "--type=merge", "--patch", text, namespace=namespace)


def is_status_of(plural: str, asked: Asked) -> bool:
    return asked.is_write and asked.is_about(plural) and asked.is_about("status")


def test_what_it_does_and_what_it_may_are_the_same(
    control_plane: ControlPlane, namespace: str
) -> None:
    account(namespace).bring(control_plane)
    control_plane.kubectl.apply(MONITOR_DEFINITION)
    try:
        with ApiProxy(control_plane) as proxy:
            lead_a_life(control_plane, namespace, proxy)
    finally:
        control_plane.kubectl("delete", "crd", MONITOR_DEFINITION["metadata"]["name"])
    used, refused = account(namespace).done(control_plane)
    assert refused == []
    granted = USED | USED_AT_HOME
    for what, verbs in used.items():
        assert verbs <= granted[what], what
    idle = {what: verbs - used.get(what, set()) for what, verbs in granted.items()}
    assert {what: verbs for what, verbs in idle.items() if verbs} == UNUSED


def lead_a_life(control_plane: ControlPlane, namespace: str, proxy: ApiProxy) -> None:
    """Has an operator do all that it ever does, rare things included."""
    kubectl = control_plane.kubectl
    definition = MONITOR_DEFINITION["metadata"]["name"]
    kubectl.until(lambda found: condition(found, "Established") == "True", "crd", definition)
    for plural in ("inferenceservices", "pods"):
        # A conflict, after which the object is read again.
        proxy.fail(partial(is_status_of, plural), 409)
    examples = [yaml.safe_load(path.read_text("utf-8")) for path in ROOT.glob("examples/*.yaml")]
    flags = (f"--lease={namespace}/octavo-operator", "--resync-s=2")
    with OperatorProcess(control_plane, namespace, *flags, server=proxy.url) as operator:
        for kind, name in (("secret generic", "hub-token"), ("configmap", "settings")):
            kubectl("create", *kind.split(), name, "--from-literal=a=1", namespace=namespace)
        kubectl.apply(*examples, CONFIGURED, namespace=namespace)
        for name in ("smollm2", "configured", "llama-8b"):
            kubectl.until(is_ready, "ois", name, namespace=namespace, timeout_s=90)
        # The loading Job of the former model goes, and the volume with it.
        change = {"model": {"uri": "file:///models/b", "revision": None}, "cache": None}
        patch(kubectl, "llama-8b", change, namespace)
        kubectl.until_gone("pvc", "llama-8b-models", namespace=namespace, timeout_s=90)
        # So do prefixes that no engine has any more.
        (pins,) = kubectl.list("configmaps", namespace=namespace, selector=OF_CONFIGURED)
        patch(kubectl, "configured", {"cache": None}, namespace)
        name = pins["metadata"]["name"]
        kubectl.until_gone("configmap", name, namespace=namespace, timeout_s=90)
        assert operator.terminate() == 0
        # The Lease that the chart brought is lost, and there are gateways to look for.
        kubectl("delete", "lease", "octavo-operator", "--ignore-not-found", namespace=namespace)
    # Monitors that are turned off go.
    more = (*flags, f"--gateway-service={namespace}/gateway", "--no-pod-monitors")
    with OperatorProcess(control_plane, namespace, *more, server=proxy.url) as operator:
        monitor = "podmonitor", "configured-engine"
        kubectl.until_gone(*monitor, namespace=namespace, timeout_s=90)
        assert operator.terminate() == 0
