"""The control plane itself: the real rules of Kubernetes, and pods that behave as they are told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.cluster.api import ApiError, Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes, condition
from tests.cluster.manifests import deployment, disruption_budget, job, pod
from tests.cluster.places import ROOT
from tests.cluster.record import Record, clear_orphans

GATE = "example.dev/Routable"


def test_a_deployment_becomes_ready(cluster: Kubernetes, namespace: str) -> None:
    cluster.kubectl.apply(deployment("web", 3), namespace=namespace)
    found = cluster.kubectl.until(
        lambda d: d["status"].get("readyReplicas") == 3, "deployment", "web", namespace=namespace
    )
    assert condition(found, "Available") == "True"
    pods = cluster.kubectl.list("pods", namespace=namespace)
    assert len({pod["status"]["podIP"] for pod in pods}) == 3


def test_a_node_with_eight_gpus_runs_eight_of_nine_pods(
    cluster: Kubernetes, namespace: str
) -> None:
    with cluster.fake_node(gpus=8) as node:
        cluster.kubectl.apply(deployment("hungry", 9, gpus=1, node=node), namespace=namespace)
        cluster.kubectl.until(
            lambda d: d["status"].get("readyReplicas") == 8,
            "deployment",
            "hungry",
            namespace=namespace,
        )
        pods = cluster.kubectl.list("pods", namespace=namespace)
        (left_out,) = [p for p in pods if condition(p, "PodScheduled") == "False"]
        assert "Insufficient nvidia.com/gpu" in json.dumps(left_out["status"]["conditions"])


def test_a_pod_with_a_gate_is_ready_only_while_the_gate_is_open(
    cluster: Kubernetes, namespace: str
) -> None:
    gated = pod("gated", readinessGates=[{"conditionType": GATE}])
    cluster.kubectl.apply(gated, namespace=namespace)

    def until(containers: str, ready: str) -> None:
        cluster.kubectl.until(
            lambda p: (
                (condition(p, "ContainersReady"), condition(p, "Ready")) == (containers, ready)
            ),
            "pod",
            "gated",
            namespace=namespace,
        )

    until("True", "False")
    for status in ("True", "False", "True"):
        _set_gate(cluster, namespace, status)
        until("True", status)
    cluster.kubectl.annotate("pod", "gated", namespace=namespace, behaviour="unready")
    until("False", "False")
    cluster.kubectl.annotate("pod", "gated", namespace=namespace, behaviour="")
    until("True", "True")


def _set_gate(cluster: Kubernetes, namespace: str, status: str) -> None:
    patch = {"status": {"conditions": [{"type": GATE, "status": status}]}}
    flags = ("--subresource", "status", "--patch", json.dumps(patch))
    cluster.kubectl("patch", "pod", "gated", *flags, namespace=namespace)


@pytest.mark.parametrize(
    ("behaviour", "phase", "reason"),
    [
        ("crash", "Running", "CrashLoopBackOff"),
        ("image-missing", "Pending", "ImagePullBackOff"),
        ("fail", "Failed", "OOMKilled"),
        ("evicted", "Failed", "OOMKilled"),
        ("creating", "Pending", "ContainerCreating"),
        ("unready", "Running", "running"),
    ],
)
def test_a_pod_behaves_as_it_is_told(
    cluster: Kubernetes, namespace: str, behaviour: str, phase: str, reason: str
) -> None:
    notes = {"behaviour": behaviour, "exit-code": "137", "exit-reason": "OOMKilled", "message": "?"}
    annotations = {f"fake.octavo.dev/{key}": value for key, value in notes.items()}
    cluster.kubectl.apply(pod("actor", annotations=annotations), namespace=namespace)
    found = cluster.kubectl.until(
        lambda p: bool(p["status"].get("containerStatuses")), "pod", "actor", namespace=namespace
    )
    (container,) = found["status"]["containerStatuses"]
    ((state, details),) = container["state"].items()
    assert found["status"]["phase"] == phase
    assert details.get("reason", state) == reason
    assert not container["ready"]
    if behaviour == "crash":
        assert container["restartCount"] == 1
        assert container["lastState"]["terminated"]["exitCode"] == 137
        assert container["lastState"]["terminated"]["message"] == "?"


def test_a_crashing_pod_recovers(cluster: Kubernetes, namespace: str) -> None:
    crash = {"fake.octavo.dev/behaviour": "crash", "fake.octavo.dev/ready-after": "10ms"}
    cluster.kubectl.apply(pod("weak", annotations=crash), namespace=namespace)
    cluster.kubectl.until(
        lambda p: "CrashLoopBackOff" in json.dumps(p["status"]), "pod", "weak", namespace=namespace
    )
    cluster.kubectl.annotate("pod", "weak", namespace=namespace, behaviour="")
    found = cluster.kubectl.until(
        lambda p: condition(p, "Ready") == "True", "pod", "weak", namespace=namespace
    )
    assert found["status"]["containerStatuses"][0]["restartCount"] == 1


def test_a_job_succeeds_and_a_failing_one_fails(cluster: Kubernetes, namespace: str) -> None:
    bad = job("bad")
    bad["spec"]["template"]["metadata"]["annotations"] = {"fake.octavo.dev/behaviour": "fail"}
    cluster.kubectl.apply(job("good"), bad, namespace=namespace)
    for name, kind in (("good", "Complete"), ("bad", "Failed")):
        cluster.kubectl.until(
            lambda j, kind=kind: condition(j, kind) == "True",  # type: ignore[misc]
            "job",
            name,
            namespace=namespace,
        )


def test_a_claim_gets_a_volume_and_gives_it_back(cluster: Kubernetes, namespace: str) -> None:
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}]
    cluster.kubectl.apply(claim, pod("reader", volumes=volumes), namespace=namespace)
    cluster.kubectl.until(
        lambda p: condition(p, "Ready") == "True", "pod", "reader", namespace=namespace
    )
    found = cluster.kubectl.get("pvc", "models", namespace=namespace)
    assert found["status"]["phase"] == "Bound"
    cluster.kubectl("delete", "pod/reader", "pvc/models", namespace=namespace)
    cluster.kubectl.until_gone("pv", found["spec"]["volumeName"])


def test_a_silent_node_is_given_up_and_comes_back(cluster: Kubernetes) -> None:
    with cluster.fake_node() as node:
        cluster.kubectl.annotate("node", node, silent="true")
        cluster.kubectl.until(lambda n: condition(n, "Ready") == "Unknown", "node", node)
        # Another loop of the controller writes the taints.
        cluster.kubectl.until(
            lambda n: "node.kubernetes.io/unreachable" in json.dumps(n["spec"]), "node", node
        )
        cluster.kubectl.annotate("node", node, silent="")
        cluster.kubectl.until(lambda n: condition(n, "Ready") == "True", "node", node)


def test_rules_of_a_resource_are_enforced(cluster: Kubernetes, namespace: str) -> None:
    rule = {"rule": "self.low <= self.high", "message": "low must not be above high"}
    bounds = {
        "type": "object",
        "properties": {"low": {"type": "integer"}, "high": {"type": "integer"}},
        "x-kubernetes-validations": [rule],
    }
    schema = {"type": "object", "properties": {"spec": bounds}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    definition: Object = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "ranges.example.dev"},
        "spec": {
            "group": "example.dev",
            "scope": "Namespaced",
            "names": {"kind": "Range", "plural": "ranges", "singular": "range"},
            "versions": [version],
        },
    }
    cluster.kubectl.apply(definition)
    try:
        cluster.kubectl.until(
            lambda d: condition(d, "Established") == "True", "crd", "ranges.example.dev"
        )
        wrong: Object = {
            "apiVersion": "example.dev/v1",
            "kind": "Range",
            "metadata": {"name": "r"},
            "spec": {"low": 3, "high": 2},
        }
        with pytest.raises(ApiError, match="low must not be above high"):
            cluster.kubectl.apply(wrong, namespace=namespace)
        cluster.kubectl.apply({**wrong, "spec": {"low": 2, "high": 3}}, namespace=namespace)
    finally:
        cluster.kubectl("delete", "crd", "ranges.example.dev")


def test_two_managers_of_one_field_are_in_conflict(cluster: Kubernetes, namespace: str) -> None:
    cluster.kubectl.apply(deployment("shared", 1), namespace=namespace, manager="first")
    with pytest.raises(ApiError, match='conflict with "first"'):
        cluster.kubectl.apply(deployment("shared", 2), namespace=namespace, manager="second")


def test_what_is_owned_goes_with_its_owner(cluster: Kubernetes, namespace: str) -> None:
    owner: Object = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    cluster.kubectl.apply(owner, namespace=namespace)
    uid = cluster.kubectl.get("configmap", "owner", namespace=namespace)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {**owner, "metadata": {"name": "owned", "ownerReferences": [reference]}}
    cluster.kubectl.apply(owned, namespace=namespace)
    cluster.kubectl("delete", "configmap", "owner", namespace=namespace)
    cluster.kubectl.until_gone("configmap", "owned", namespace=namespace)


def test_a_drain_waits_for_the_disruption_budget(cluster: Kubernetes, namespace: str) -> None:
    with cluster.fake_node() as node:
        wanted = deployment("kept", 2, node=node)
        budget = disruption_budget("kept", minAvailable=2)
        cluster.kubectl.apply(wanted, budget, namespace=namespace)
        cluster.kubectl.until(
            lambda b: b["status"].get("currentHealthy") == 2, "pdb", "kept", namespace=namespace
        )
        with pytest.raises(ApiError, match="violate the pod's disruption budget"):
            cluster.kubectl("drain", node, "--timeout=1s")
        assert len(cluster.kubectl.list("pods", namespace=namespace)) == 2
        cluster.kubectl("delete", "pdb", "kept", namespace=namespace)
        cluster.kubectl("drain", node, "--timeout=20s")


def test_requests_are_in_the_audit_log(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("create", "configmap", "traced", namespace=namespace)
    (event,) = [
        event
        for event in control_plane.audit()
        if event["verb"] == "create"
        and event["objectRef"].get("namespace") == namespace
        and event["objectRef"]["resource"] == "configmaps"
        and event["user"]["username"] == "admin"
    ]
    assert event["responseStatus"]["code"] == 201


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_a_part_can_die_and_return(control_plane: ControlPlane, namespace: str, part: str) -> None:
    control_plane.kubectl.apply(deployment("lasting", 1), namespace=namespace)
    control_plane.kill(part)
    with pytest.raises(ApiError):
        control_plane.kubectl("get", "nodes", "--request-timeout=2s")
    control_plane.restart(part)
    control_plane.kubectl.until(
        lambda d: d["status"].get("readyReplicas") == 1,
        "deployment",
        "lasting",
        namespace=namespace,
        timeout_s=60.0,
    )


def test_the_end_leaves_nothing() -> None:
    with ControlPlane() as short:
        folder = short.record.folder
        pids = [part.pid for part in short.parts.values()]
        assert short.record.whole
    assert not folder.exists()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_what_a_killed_owner_left_is_removed() -> None:
    command = [sys.executable, "-m", "tests.cluster.left_behind"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        left = Record(Path(owner.stdout.readline().strip()))
        assert left.whole
        owner.kill()
    assert any(left.lives().values())
    clear_orphans()
    assert not left.folder.exists()
