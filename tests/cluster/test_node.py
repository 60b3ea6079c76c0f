"""The whole node itself: pods run, are reached, and are kept apart."""

from __future__ import annotations

import contextlib
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api import ApiError, Object
from tests.cluster.binaries import program
from tests.cluster.builder import Builder
from tests.cluster.kubernetes import condition
from tests.cluster.manifests import disruption_budget
from tests.cluster.node import Node
from tests.cluster.node_files import NODE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

IMAGE = "octavo.dev/talker:1"


@pytest.fixture(scope="module")
def talking(node: Node) -> Node:
    node.import_program(Path(program("talker")), IMAGE)
    return node


@pytest.fixture
def home(talking: Node) -> Iterator[str]:
    with talking.namespace() as name:
        yield name


def talker(name: str, replicas: int = 1, **spec: object) -> Object:
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    container = {"name": "main", "image": IMAGE, "readinessProbe": probe}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
            },
        },
    }


def service(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def available(node: Node, namespace: str, *names: str) -> None:
    for name in names:
        node.kubectl.until(
            lambda d: condition(d, "Available") == "True",
            "deployment",
            name,
            namespace=namespace,
            timeout_s=90.0,
        )


def ask(node: Node, namespace: str, client: str, url: str) -> str:
    flags = ("exec", f"deployment/{client}", "--", "/talker", "get", url)
    return node.kubectl(*flags, namespace=namespace)


def reach(node: Node, namespace: str, client: str, url: str) -> str:
    """Asks until there is an answer: packet rules follow what the API server says."""
    for _ in range(30):
        with contextlib.suppress(ApiError):
            return ask(node, namespace, client, url)
    return ask(node, namespace, client, url)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10.0) as answer:
        text: str = answer.read().decode()
        return text


def test_a_pod_is_reached_by_the_name_of_its_service(talking: Node, home: str) -> None:
    talking.kubectl.apply(talker("server", 2), service("server"), talker("client"), namespace=home)
    available(talking, home, "server", "client")
    pods = {p["metadata"]["name"] for p in talking.kubectl.list("pods", namespace=home)}
    assert reach(talking, home, "client", "http://server") in pods
    assert ask(talking, home, "client", f"http://server.{home}.svc.cluster.local") in pods
    address = talking.kubectl.get("service", "server", namespace=home)["spec"]["clusterIP"]
    command = talking.inside([program("talker"), "get", f"http://{address}"])
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout in pods
    assert talking.in_network(lambda: fetch(f"http://{address}")) in pods
    assert "talking" in talking.kubectl("logs", "deployment/server", namespace=home)


def test_a_network_policy_cuts_a_foreign_pod_off(talking: Node, home: str) -> None:
    apps = (talker("server"), talker("friend"), talker("stranger"))
    talking.kubectl.apply(*apps, service("server"), namespace=home)
    available(talking, home, "server", "friend", "stranger")
    assert reach(talking, home, "stranger", "http://server")
    policy: Object = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "server"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}],
        },
    }
    talking.kubectl.apply(policy, namespace=home)
    for _ in range(30):
        try:
            ask(talking, home, "stranger", "http://server")
        except ApiError:
            break
    else:
        pytest.fail("the stranger was never cut off")
    assert reach(talking, home, "friend", "http://server")


def test_a_drain_waits_for_the_disruption_budget(talking: Node, home: str) -> None:
    budget = disruption_budget("kept", minAvailable=2)
    talking.kubectl.apply(talker("kept", 2), budget, namespace=home)
    available(talking, home, "kept")
    drain = ("drain", NODE, "--ignore-daemonsets", "--pod-selector=app=kept")
    try:
        with pytest.raises(ApiError, match="violate the pod's disruption budget"):
            talking.kubectl(*drain, "--timeout=2s")
        talking.kubectl("delete", "pdb", "kept", namespace=home)
        talking.kubectl(*drain, "--timeout=60s")
    finally:
        talking.kubectl("uncordon", NODE)


def test_restricted_pods_run_and_write_to_their_volume(talking: Node, home: str) -> None:
    enforce = "pod-security.kubernetes.io/enforce=restricted"
    talking.kubectl("label", "namespace", home, enforce)
    claim: Object = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "models"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    with pytest.raises(ApiError, match="violates PodSecurity"):
        talking.kubectl("run", "lax", "--image", IMAGE, namespace=home)
    careful = talker(
        "careful",
        securityContext={
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        volumes=[{"name": "models", "persistentVolumeClaim": {"claimName": "models"}}],
    )
    (container,) = careful["spec"]["template"]["spec"]["containers"]
    container["securityContext"] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    container["volumeMounts"] = [{"name": "models", "mountPath": "/models"}]
    talking.kubectl.apply(claim, careful, namespace=home)
    available(talking, home, "careful")
    write = ("exec", "deployment/careful", "--", "/talker", "write", "/models/weights")
    talking.kubectl(*write, namespace=home)
    with pytest.raises(ApiError, match="read-only file system"):
        talking.kubectl(*write[:-1], "/weights", namespace=home)


def test_a_built_image_runs(talking: Node, home: str, tmp_path: Path) -> None:
    (tmp_path / "talker").write_bytes(Path(program("talker")).read_bytes())
    (tmp_path / "talker").chmod(0o755)
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "FROM scratch AS first\nCOPY talker /\n"
        'FROM first AS second\nCOPY changing /\nENTRYPOINT ["/talker"]\n',
        encoding="utf-8",
    )
    with Builder() as builder:
        for _ in range(2):  # then with one layer that is there
            (tmp_path / "changing").write_bytes(os.urandom(8))
            image = builder.build_image("octavo/built:1", dockerfile, target="second")
            assert talking.import_image(builder, image) == [image]
        assert talking.import_image(builder, image) == [], "it is there"
    wanted = talker("built")
    wanted["spec"]["template"]["spec"]["containers"][0]["image"] = image
    talking.kubectl.apply(wanted, namespace=home)
    available(talking, home, "built")


def test_kubelet_can_die_and_return(talking: Node, home: str) -> None:
    talking.kubectl.apply(talker("lasting"), namespace=home)
    available(talking, home, "lasting")
    (before,) = talking.kubectl.list("pods", namespace=home)
    talking.kill("kubelet")
    talking.restart("kubelet")
    talking.kubectl.apply(talker("later"), namespace=home)
    available(talking, home, "later")
    after = talking.kubectl.get("pod", before["metadata"]["name"], namespace=home)
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
