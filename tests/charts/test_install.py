"""The chart on a real API server: installed, changed, installed twice, taken away."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.account import kubeconfig
from tests.charts.matrix import MATRIX
from tests.charts.rendering import CHART, PREVIOUS, RELEASED, ROOT, Values, pods
from tests.charts.test_scripts import run_cleanup
from tests.cluster import external
from tests.cluster.api import Object
from tests.cluster.binaries import program
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes

from octavo.operator import crd

DEFINITION = "inferenceservices.serving.octavo.dev"
KINDS = (
    "deployments,replicasets,services,serviceaccounts,secrets,configmaps,leases,roles,rolebindings,"
    "networkpolicies,poddisruptionbudgets,horizontalpodautoscalers,jobs"
)
CLUSTER_KINDS = "clusterroles,clusterrolebindings"
NAMESPACED: dict[str, Any] = {"rbac": {"clusterScoped": False}, "crds": {"enabled": False}}
ALONE: dict[str, Any] = {"gateway": {"enabled": False}, "valkey": {"enabled": False}}


def serving(*namespaces: str, cluster_scoped: bool = False) -> Values:
    """Returns values of an operator, without the definition, for some namespaces or for all."""
    rbac = {"clusterScoped": cluster_scoped, "namespaces": list(namespaces)}
    return ALONE | {"rbac": rbac, "crds": {"enabled": False}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Kubernetes]:
    """A cluster of this file's own: in the shared one the definition is not helm's."""
    if external.chosen():
        pytest.skip("installs a definition that others may use")
    with ControlPlane() as running:
        yield running


@pytest.fixture
def namespace(cluster: Kubernetes) -> Iterator[str]:
    """A namespace that takes pods of the restricted level only."""
    with cluster.namespace() as name:
        label = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", name, label)
        yield name


class Helm:
    """helm with one kubeconfig."""

    def __init__(self, kubeconfig: Path, home: Path) -> None:
        self._kubeconfig = kubeconfig
        self._home = home

    def run(
        self, *arguments: str, values: Values | None = None
    ) -> subprocess.CompletedProcess[str]:
        variables = {
            "KUBECONFIG": str(self._kubeconfig),
            "HELM_CACHE_HOME": str(self._home),
            "HELM_CONFIG_HOME": str(self._home),
            "HELM_DATA_HOME": str(self._home),
            "PATH": "/usr/bin:/bin",
            "HOME": str(self._home),
        }
        given = [] if values is None else ["--values", "-"]
        return subprocess.run(
            [program("helm"), *arguments, *given],
            input=json.dumps(values or {}),
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def install(
        self, name: str, namespace: str, values: Values, *flags: str, chart: Path = CHART
    ) -> None:
        """Installs or upgrades a release, and waits until its pods are ready."""
        where = ("--namespace", namespace, "--wait", "--timeout", "60s", "--take-ownership")
        done = self.run("upgrade", "--install", name, str(chart), *where, *flags, values=values)
        assert done.returncode == 0, done.stderr

    def refused(self, name: str, namespace: str, values: Values, verb: str = "install") -> str:
        """Installs or upgrades a release in vain; returns what helm says."""
        done = self.run(verb, name, str(CHART), "--namespace", namespace, values=values)
        assert done.returncode != 0
        return done.stderr

    def rendered(self, name: str, namespace: str, values: Values) -> list[Object]:
        """Returns what an upgrade would apply, as the cluster is now."""
        where = ("--namespace", namespace, "--dry-run=server", "--is-upgrade")
        done = self.run("template", name, str(CHART), *where, values=values)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]

    def uninstall(self, name: str, namespace: str) -> None:
        done = self.run("uninstall", name, "--namespace", namespace, "--wait")
        assert done.returncode == 0, done.stderr


@pytest.fixture
def helm(cluster: Kubernetes, tmp_path: Path) -> Helm:
    return Helm(cluster.kubeconfig, tmp_path)


def examples() -> list[Any]:
    return [yaml.safe_load(p.read_text("utf-8")) for p in ROOT.glob("examples/*")]


def of_release(cluster: Kubernetes, kinds: str, name: str, namespace: str = "") -> list[str]:
    selector = f"app.kubernetes.io/instance={name}"
    found = cluster.kubectl.list(kinds, namespace=namespace, selector=selector)
    return sorted(f"{each['kind']}/{each['metadata']['name']}" for each in found)


def templates(cluster: Kubernetes, namespace: str) -> dict[str, Object]:
    return {
        each["metadata"]["name"]: each["spec"]["template"]
        for each in cluster.kubectl.list("deployments", namespace=namespace)
    }


def test_release_comes_is_changed_and_goes_without_a_trace(
    cluster: Kubernetes, helm: Helm, namespace: str
) -> None:
    helm.install("octavo", namespace, {})
    assert templates(cluster, namespace).keys() == {
        "octavo-operator", "octavo-gateway", "octavo-valkey"
    }  # fmt: skip
    for values in (MATRIX["every pod setting"], MATRIX["autoscaled gateway"], MATRIX["no gateway"]):
        usable: Values = json.loads(json.dumps(values).replace('"high"', '""'))
        if "operator" in usable:  # nodes of the pool and zone that the setting names do not exist
            for component in ("operator", "gateway", "valkey"):
                usable[component].update(nodeSelector={}, affinity={}, topologySpreadConstraints=[])
                usable[component]["extraVolumes"][0] = {"name": "more", "emptyDir": {}}
        helm.install("octavo", namespace, usable)
    helm.uninstall("octavo", namespace)
    for kind in KINDS.split(","):
        assert of_release(cluster, kind, "octavo", namespace) == []
    assert of_release(cluster, CLUSTER_KINDS, "octavo") == []
    assert cluster.kubectl.get("customresourcedefinition", DEFINITION)


def test_upgrade_that_changes_nothing_restarts_nothing(
    cluster: Kubernetes, helm: Helm, namespace: str
) -> None:
    helm.install("again", namespace, NAMESPACED)
    before = templates(cluster, namespace)
    helm.install("again", namespace, NAMESPACED)
    assert templates(cluster, namespace) == before
    helm.uninstall("again", namespace)


EXTERNAL: dict[str, Any] = {"valkey": {"enabled": False}, "crds": {"enabled": False}}
URL: dict[str, Any] = {"url": "rediss://redis.example:6380/0"}


@pytest.mark.parametrize(
    ("values", "users"),
    [
        (NAMESPACED | {"valkey": {"auth": {"existingSecret": {"name": "it"}}}}, 2),
        (EXTERNAL | {"externalRedis": URL | {"passwordSecret": {"name": "it"}}}, 1),
        (EXTERNAL | {"externalRedis": URL | {"caSecret": {"name": "it", "key": "password"}}}, 1),
        (EXTERNAL | {"externalRedis": {"urlSecret": {"name": "it", "key": "password"}}}, 1),
    ],
    ids=["valkey", "password", "authority", "address"],
)
def test_upgrade_restarts_who_uses_a_secret_of_the_store_that_was_replaced(
    cluster: Kubernetes, helm: Helm, namespace: str, values: Values, users: int
) -> None:
    def sums(password: str) -> list[str]:
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "it"}}
        cluster.kubectl.apply(secret | {"stringData": {"password": password}}, namespace=namespace)
        templates = (pod.metadata for pod in pods(helm.rendered("x", namespace, values)))
        annotations = (each.get("annotations", {}) for each in templates)
        return [each["checksum/secret"] for each in annotations if "checksum/secret" in each]

    before, now = sums("one"), sums("two")
    assert len(before) == len(now) == users
    assert len({*before, *now}) == 2, "one of before and one of now"


def identities(cluster: Kubernetes, namespace: str) -> dict[str, tuple[str, int]]:
    """Returns the uids of what a release and its users have, and the generations of resources."""
    definition = cluster.kubectl.get("customresourcedefinition", DEFINITION)
    lasting = "deployments,services,serviceaccounts,networkpolicies,poddisruptionbudgets"
    resources = cluster.kubectl.list("ois", namespace=namespace)
    return {
        f"{each['kind']}/{meta['name']}": (meta["uid"], meta["generation"] * (each in resources))
        for each in [definition, *resources, *cluster.kubectl.list(lasting, namespace=namespace)]
        if (meta := {"generation": 0} | each["metadata"])
    }


def images(cluster: Kubernetes, namespace: str) -> set[str]:
    return {
        container["image"].rpartition(":")[2]
        for template in templates(cluster, namespace).values()
        for container in template["spec"]["containers"]
    }


@pytest.mark.parametrize(
    ("chart", "flags"),
    [(PREVIOUS, ()), (RELEASED[0], ("--reuse-values",))],
    ids=["given again", "reused"],
)
def test_upgrade_from_a_version_before_keeps_all_there_is(
    cluster: Kubernetes, helm: Helm, namespace: str, chart: Path, flags: tuple[str, ...]
) -> None:
    """Whether values are given again or kept, without those that came since."""
    values: Values = {"gateway": {"replicas": 2}}
    helm.install("octavo", namespace, values, chart=chart)
    cluster.kubectl.apply(*examples(), namespace=namespace)
    before, old = identities(cluster, namespace), images(cluster, namespace)
    helm.install("octavo", namespace, {} if flags else values, *flags)
    assert identities(cluster, namespace) == before
    assert templates(cluster, namespace)
    assert images(cluster, namespace).isdisjoint(old)
    deployment = cluster.kubectl.get("deployment", "octavo-gateway", namespace=namespace)
    assert deployment["spec"]["replicas"] == 2
    helm.uninstall("octavo", namespace)


def test_two_releases_live_and_die_apart(cluster: Kubernetes, helm: Helm, namespace: str) -> None:
    with cluster.namespace() as other, cluster.namespace() as third:
        helm.install("one", namespace, NAMESPACED)
        served = {"rbac": {"clusterScoped": False, "namespaces": [third]}}
        helm.install("two", namespace, NAMESPACED | served)
        helm.install("one", other, NAMESPACED)
        left = (
            of_release(cluster, KINDS, "two", namespace),
            of_release(cluster, KINDS, "one", other),
        )
        helm.uninstall("one", namespace)
        assert left == (
            of_release(cluster, KINDS, "two", namespace),
            of_release(cluster, KINDS, "one", other),
        )
        assert of_release(cluster, CLUSTER_KINDS, "one") == []
        helm.uninstall("two", namespace)
        helm.uninstall("one", other)


def test_release_that_serves_what_another_one_does_is_refused(
    cluster: Kubernetes, helm: Helm, namespace: str
) -> None:
    with cluster.namespace() as other:
        helm.install("first", namespace, ALONE)
        everywhere = f"release first in {namespace} serves all namespaces already"
        for values in (serving(cluster_scoped=True), serving(other, cluster_scoped=True)):
            assert everywhere in helm.refused("second", other, values)
        # Upgrades of its own, and the way out.
        helm.install("first", namespace, ALONE | {"rbac": {"namespaces": [namespace]}})
        helm.install("second", other, serving(other, cluster_scoped=True))
        there = f"release second in {other} serves {other} already"
        assert there in helm.refused("first", namespace, serving(cluster_scoped=True), "upgrade")
        helm.uninstall("second", other)
        helm.install("second", other, serving(other))
        for values in (serving(other), serving(namespace, other), serving(cluster_scoped=True)):
            refusal = helm.refused("third", namespace, values)
            assert "two operators would write the same objects" in refusal
        helm.uninstall("second", other)
        helm.uninstall("first", namespace)


def test_namespaced_release_asks_for_nothing_of_the_cluster_s(
    cluster: Kubernetes, helm: Helm, namespace: str, tmp_path: Path
) -> None:
    cluster.kubectl.apply(crd.definition())
    cluster.kubectl("create", "serviceaccount", "tenant", namespace=namespace)
    flags = ("--clusterrole=cluster-admin", f"--serviceaccount={namespace}:tenant")
    cluster.kubectl("create", "rolebinding", "tenant", *flags, namespace=namespace)
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(cluster, namespace, "tenant")))
    Helm(path, tmp_path).install("tenant", namespace, NAMESPACED)
    helm.uninstall("tenant", namespace)


def test_second_release_is_told_whose_the_definition_is(
    cluster: Kubernetes, helm: Helm, namespace: str
) -> None:
    helm.install("first", namespace, {"gateway": {"enabled": False}})
    try:
        second = ("install", "second", str(CHART), "--namespace", namespace)
        done = helm.run(*second)
        assert done.returncode != 0
        sentence = f"belongs to release first in {namespace}: set crds.enabled=false"
        assert sentence in done.stderr
    finally:
        helm.uninstall("first", namespace)
    # Now nobody's; helm has it taken over on purpose only.
    done = helm.run(*second)
    assert "invalid ownership metadata" in done.stderr
    helm.install("second", namespace, {})
    helm.uninstall("second", namespace)


def account_of(cluster: Kubernetes, name: str, namespace: str, folder: Path) -> str:
    """Makes a ServiceAccount and the files of its pods; returns the API server's address."""
    cluster.kubectl("create", "serviceaccount", name, namespace=namespace)
    token = cluster.kubectl("create", "token", name, namespace=namespace)
    (folder / "token").write_text(token.strip(), encoding="utf-8")
    roots = cluster.kubectl.get("configmap", "kube-root-ca.crt", namespace=namespace)
    (folder / "ca.crt").write_text(roots["data"]["ca.crt"], encoding="utf-8")
    shown = cluster.kubectl("config", "view", "--output", "json")
    url: str = json.loads(shown)["clusters"][0]["cluster"]["server"]
    return url


def test_uninstall_cleans_up_though_a_served_namespace_is_gone(
    cluster: Kubernetes, helm: Helm, namespace: str, tmp_path: Path
) -> None:
    gone = f"{namespace}-gone"
    cluster.kubectl("create", "namespace", gone)
    served = {"clusterScoped": False, "namespaces": [gone, namespace]}
    helm.install("clean", namespace, {"rbac": served, "cleanup": {"enabled": True}})
    cluster.kubectl.apply(*examples(), namespace=namespace)
    cluster.delete_namespace(gone)
    # The hook's pod is kwok's, which runs nothing: here is what it would.
    url = account_of(cluster, "clean-octavo-cleanup", namespace, tmp_path)
    assert run_cleanup(tmp_path, url, gone, namespace) == 0
    assert cluster.kubectl.list("ois", namespace=namespace) == []
    helm.uninstall("clean", namespace)
    assert of_release(cluster, KINDS, "clean", namespace) == []


def allowed(cluster: Kubernetes, account: str, namespace: str, *question: str) -> bool:
    who = ("--as", f"system:serviceaccount:{account}")
    try:
        answer = cluster.kubectl("auth", "can-i", *question, *who, namespace=namespace)
    except Exception as refusal:
        answer = str(refusal)
    return answer.strip().startswith("yes")


def test_accounts_may_what_they_need_where_they_serve(
    cluster: Kubernetes, helm: Helm, namespace: str
) -> None:
    with cluster.namespace() as served:
        values = {"rbac": {"clusterScoped": False, "namespaces": [served]}}
        helm.install("rights", namespace, values | {"crds": {"enabled": True}})
        operator, gateway = (
            f"{namespace}:rights-octavo-{name}" for name in ("operator", "gateway")
        )
        assert allowed(cluster, operator, served, "create", "deployments.apps")
        assert allowed(cluster, operator, served, "get", "secrets")
        assert allowed(cluster, operator, namespace, "patch", "leases/rights-octavo-operator")
        assert allowed(cluster, gateway, served, "watch", "endpointslices.discovery.k8s.io")
        for account in (operator, gateway):
            assert not allowed(cluster, account, served, "list", "secrets")
            assert not allowed(cluster, account, served, "create", "pods/exec")
            assert not allowed(cluster, account, "default", "list", "pods")
        assert not allowed(cluster, gateway, served, "get", "secrets")
        assert not allowed(cluster, gateway, served, "patch", "deployments.apps")
        cluster.kubectl.apply(*examples(), namespace=served)
        assert len(cluster.kubectl.list("ois", namespace=served)) == len(examples())
        helm.uninstall("rights", namespace)
