"""What an operator does on a real API server, compared with what the chart lets it do."""

from __future__ import annotations

import json
from typing import Any

import yaml
from tests.charts.rendering import ROOT
from tests.charts.test_access import USED, USED_AT_HOME, Rights
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import Kubectl, Object
from tests.cluster.kubernetes import condition
from tests.operator.operator_process import OperatorProcess, prepare, user

from octavo.operator.kinds import CHILD_KINDS, POD_MONITOR

UNUSED: Rights = {
    # A server-side apply that creates needs the right to create, and is written down as a patch.
    **{(kind.group, kind.plural): {"create"} for kind in CHILD_KINDS},
    # The cluster lacks the kind; with it, it is a child like any other.
    (POD_MONITOR.group, POD_MONITOR.plural): {"create", "patch", "get"},
    # Asked for only where the plugin OwnerReferencesPermissionEnforcement is on.
    ("serving.octavo.dev", "inferenceservices/finalizers"): {"update"},
    # Only while something else of the Deployment has to wait.
    ("apps", "deployments/scale"): {"patch"},
    # There is no gateway.
    ("discovery.k8s.io", "endpointslices"): {"list"},
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


def done_by(control_plane: ControlPlane, namespace: str) -> tuple[Rights, list[Any]]:
    """Returns what the operator of a namespace did, and what it was refused."""
    used: Rights = {}
    refused = []
    for event in control_plane.audit():
        target = event.get("objectRef")
        if event["user"]["username"] != user(namespace) or not target:
            continue
        names = (target.get("resource", ""), target.get("subresource", ""))
        resource = "/".join(name for name in names if name)
        used.setdefault((target.get("apiGroup", ""), resource), set()).add(event["verb"])
        if event.get("responseStatus", {}).get("code") == 403:
            refused.append((event["verb"], resource, event["responseStatus"].get("message")))
    return used, refused


def is_ready(found: Object) -> bool:
    return condition(found, "Ready") == "True"


def patch(kubectl: Kubectl, name: str, change: dict[str, Any], namespace: str) -> None:
    text = json.dumps({"spec": change})
    kubectl("patch", "ois", name, "--type=merge", "--patch", text, namespace=namespace)


def test_what_it_does_and_what_it_may_are_the_same(
    control_plane: ControlPlane, namespace: str
) -> None:
    prepare(control_plane, namespace)
    kubectl = control_plane.kubectl
    examples = [yaml.safe_load(path.read_text("utf-8")) for path in ROOT.glob("examples/*.yaml")]
    lease = f"--lease={namespace}/octavo-operator"
    with OperatorProcess(control_plane, namespace, lease, "--resync-s=2") as operator:
        for kind, name in (("secret generic", "hub-token"), ("configmap", "settings")):
            kubectl("create", *kind.split(), name, "--from-literal=a=1", namespace=namespace)
        kubectl.apply(*examples, CONFIGURED, namespace=namespace)
        for name in ("smollm2", "configured", "llama-8b"):
            kubectl.until(is_ready, "ois", name, namespace=namespace)
        # The loading Job of the former model goes, and the volume with it.
        change = {"model": {"uri": "file:///models/b", "revision": None}, "cache": None}
        patch(kubectl, "llama-8b", change, namespace)
        kubectl.until_gone("pvc", "llama-8b-models", namespace=namespace)
        # So do prefixes that no engine has any more.
        (pins,) = kubectl.list("configmaps", namespace=namespace, selector=OF_CONFIGURED)
        patch(kubectl, "configured", {"cache": None}, namespace)
        kubectl.until_gone("configmap", pins["metadata"]["name"], namespace=namespace)
        assert operator.terminate() == 0
    used, refused = done_by(control_plane, namespace)
    assert refused == []
    granted = USED | USED_AT_HOME
    for what, verbs in used.items():
        assert verbs <= granted[what], what
    idle = {what: verbs - used.get(what, set()) for what, verbs in granted.items()}
    assert {what: verbs for what, verbs in idle.items() if verbs} == UNUSED
