"""The operator on a real control plane behind a proxy that breaks things; killed at any write."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubectl import Object
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.api_proxy import ApiProxy, Asked
from tests.operator.operator_process import OperatorProcess, account

from octavo.operator.kinds import CHILD_KINDS, POD_MONITOR

pytestmark = pytest.mark.faults

RESOURCE = "ois"


def service(name: str = "chat", **spec: Any) -> Object:
    spec.setdefault("model", {"uri": "file:///models/chat"})
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"engine": {}, **spec},
    }


def from_hub(name: str, **spec: Any) -> Object:
    cache = {"volume": {"size": "20Gi"}}
    return service(name, model={"uri": "hf://org/llama"}, cache=cache, **spec)


def has(counts: str) -> Any:
    """Returns a condition: the service is Ready with these replicas, as its spec is now."""

    def holds(found: Object) -> bool:
        status = found.get("status", {})
        is_current = status.get("observedGeneration") == found["metadata"]["generation"]
        return (
            is_current
            and condition(found, "Ready") == "True"
            and condition(found, "Rollout") == "True"
            and status["counts"] == counts
        )

    return holds


@pytest.fixture
def proxy(cluster: Kubernetes, namespace: str) -> Iterator[ApiProxy]:
    account(namespace).bring(cluster)
    with ApiProxy(cluster) as running:
        yield running


@pytest.fixture
def operator(cluster: Kubernetes, namespace: str, proxy: ApiProxy) -> Iterator[OperatorProcess]:
    with OperatorProcess(cluster, namespace, "--resync-s=3", server=proxy.url) as running:
        yield running


def is_write(asked: Asked) -> bool:
    return asked.is_write and not asked.is_about("leases")


@pytest.mark.parametrize(
    ("status", "late", "retry_after_s"),
    [
        (409, False, None),
        (429, False, 1),
        (500, False, None),
        (500, True, None),
        (504, True, None),
        (502, False, None),
    ],
    ids=["409", "429", "500", "500 after the write", "504 after the write", "502"],
)
def test_failing_writes_converge_without_duplicates(
    cluster: Kubernetes,
    operator: OperatorProcess,
    proxy: ApiProxy,
    status: int,
    late: bool,
    retry_after_s: int | None,
) -> None:
    namespace = operator.namespace
    proxy.fail(is_write, status, times=4, late=late, retry_after_s=retry_after_s)
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace, timeout_s=60)
    proxy.fail(is_write, status, times=4, late=late, retry_after_s=retry_after_s)
    cluster.kubectl.apply(service(replicas=2), namespace=namespace)
    cluster.kubectl.until(has("2/2"), RESOURCE, "chat", namespace=namespace, timeout_s=60)
    assert proxy.num_failed == 8
    for kind in ("deployments", "services", "pdb", "networkpolicies", "replicasets"):
        selector = "serving.octavo.dev/service=chat"
        assert len(cluster.kubectl.list(kind, namespace=namespace, selector=selector)) == 1


@pytest.mark.parametrize("plural", ["inferenceservices", "pods"])
def test_a_status_in_conflict_is_read_again_and_written(
    cluster: Kubernetes, operator: OperatorProcess, proxy: ApiProxy, plural: str
) -> None:
    def is_status(asked: Asked) -> bool:
        return asked.is_write and asked.is_about(plural) and asked.is_about("status")

    namespace = operator.namespace
    proxy.fail(is_status, 409, times=5)
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace, timeout_s=120)
    assert proxy.num_failed == 5
    told = [event["event"] for event in operator.events]
    assert told.count("conflict") == 5
    assert {"write_refused", "cluster_error"}.isdisjoint(told)


@pytest.mark.parametrize("status", [410, 429, 500, 403])
def test_failing_reads_delay_and_change_nothing(
    cluster: Kubernetes, operator: OperatorProcess, proxy: ApiProxy, status: int
) -> None:
    namespace = operator.namespace
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace)
    before = cluster.kubectl.get(RESOURCE, "chat", namespace=namespace)["status"]
    proxy.fail(lambda asked: not asked.is_write, status, times=6)
    operator.until(lambda: proxy.num_failed == 6, "asked six times in vain", 60)
    cluster.kubectl.apply(service("later"), namespace=namespace)
    cluster.kubectl.until(has("1/1"), RESOURCE, "later", namespace=namespace, timeout_s=60)
    assert cluster.kubectl.get(RESOURCE, "chat", namespace=namespace)["status"] == before


@pytest.mark.parametrize("how", ["expire", "drop", "silence", "upset"])
def test_broken_watches_are_made_good(
    cluster: Kubernetes, operator: OperatorProcess, proxy: ApiProxy, how: str
) -> None:
    namespace = operator.namespace
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace)
    operator.until(lambda: proxy.num_watches >= 8, "watches all kinds")
    getattr(proxy, how)()
    cluster.kubectl.apply(service(replicas=3), namespace=namespace)
    cluster.kubectl("delete", "service", "chat-engine", namespace=namespace)
    cluster.kubectl.until(has("3/3"), RESOURCE, "chat", namespace=namespace, timeout_s=60)
    cluster.kubectl.until(
        lambda s: bool(s["metadata"]["uid"]), "service", "chat-engine", namespace=namespace
    )
    assert operator.status("/healthz") == 200
    if how == "silence":
        assert operator.metric("missed_changes_total") > 0
    else:
        operator.until(lambda: proxy.num_watches >= 8, "watches again")
        assert operator.metric("watch_restarts_total") == (how == "upset")


def test_an_event_that_is_missed_is_made_good_within_a_minute(
    control_plane: ControlPlane, namespace: str, proxy: ApiProxy
) -> None:
    with OperatorProcess(control_plane, namespace, server=proxy.url) as operator:
        control_plane.kubectl.apply(service(), namespace=namespace)
        control_plane.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace)
        operator.until(lambda: proxy.num_watches >= 8, "watches all kinds")
        proxy.silence()
        control_plane.kubectl.apply(service(replicas=2), namespace=namespace)
        control_plane.kubectl.until(
            lambda d: d["spec"]["replicas"] == 2,
            "deployment",
            "chat-engine",
            namespace=namespace,
            timeout_s=60,
        )


def test_of_several_operators_one_acts(cluster: Kubernetes, namespace: str) -> None:
    account(namespace).bring(cluster)
    lease = f"--lease={namespace}/octavo-operator"

    def applied(name: str) -> None:
        cluster.kubectl.apply(service(name), namespace=namespace)
        cluster.kubectl.until(has("1/1"), RESOURCE, name, namespace=namespace)

    first, second, third = (
        OperatorProcess(cluster, namespace, lease, waits=waits) for waits in (False, True, True)
    )
    with first, second:
        applied("a")
        assert (first.status("/readyz"), second.status("/readyz")) == (200, 503)
        assert (second.status("/healthz"), second.metric("reconciles_total")) == (200, 0)
        first.terminate()
        second.until(lambda: second.status("/readyz") == 200, "took over what was released", 20)
        applied("b")
        with third:
            second.pause()
            third.until(lambda: third.status("/readyz") == 200, "took over what was left", 60)
            before = second.log_size
            second.resume()
            second.until_ended(30)
            assert "lease_lost" in second.log_since(before)
            applied("c")
            assert third.is_running


class Killer:
    """Kills an operator at its n-th write, before the API server gets it or after; starts it again.

    Args:
        operator: which one.
        proxy: through which it writes.
        at: which write; zero kills never.
        late: whether the write takes effect.
    """

    def __init__(self, operator: OperatorProcess, proxy: ApiProxy, *, at: int, late: bool) -> None:
        self._operator = operator
        self._proxy = proxy
        self._at = at
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._healer = threading.Thread(target=self._heal)
        self.num_writes = 0
        if late:
            proxy.after = self._count
        else:
            proxy.before = self._count

    def _count(self, asked: Asked) -> None:
        with self._lock:
            self.num_writes += 1
            if self.num_writes == self._at:
                self._operator.kill()

    def _heal(self) -> None:
        while not self._ends.wait(0.05):
            if not self._operator.is_running:
                self._operator.start()

    def __enter__(self) -> Self:
        self._healer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._proxy.before = self._proxy.after = _nothing
        with self._lock:
            self._at = 0
        self._ends.set()
        self._healer.join()
        if not self._operator.is_running:
            self._operator.start()


def _nothing(_asked: Asked) -> None:
    """Kills nobody."""


def shape(cluster: Kubernetes, namespace: str, name: str) -> object:
    """Returns what a service has become, without what differs between services."""
    selector = f"serving.octavo.dev/service={name}"
    found: dict[str, object] = {}
    for kind in [k for k in CHILD_KINDS if k != POD_MONITOR]:
        for child in cluster.kubectl.list(kind.plural, namespace=namespace, selector=selector):
            owners = child["metadata"]["ownerReferences"]
            spec = child.get("spec") or child["data"]
            spec = _without(spec, "clusterIP", "clusterIPs", "volumeName", "selector")
            found[f"{kind.name} {child['metadata']['name']}"] = (len(owners), spec)
    resource = cluster.kubectl.get(RESOURCE, name, namespace=namespace)
    conditions = [(c["type"], c["status"], c["reason"]) for c in resource["status"]["conditions"]]
    text = repr((found, sorted(conditions), resource["status"]["counts"]))
    text = re.sub(r"'[0-9a-f-]{36}'|'[0-9a-f]{16,32}'", "HASH", text)
    return text.replace(f"{name}-", "NAME-").replace(f"'{name}'", "NAME")


def _without(spec: Object, *fields: str) -> Object:
    return {key: value for key, value in spec.items() if key not in fields}


EDITED = {"replicas": 2, "engine": {"options": {"maxNumSeqs": 7}}}


@pytest.mark.parametrize(
    ("make", "late"),
    [(service, (False, True)), (from_hub, (True, False))],
    ids=["ready model", "model to load"],
)
@pytest.mark.timeout(1800)
def test_an_operator_killed_at_any_write_leads_to_the_same_end(
    cluster: Kubernetes, namespace: str, proxy: ApiProxy, make: Any, late: tuple[bool, bool]
) -> None:
    """Each round: applied, killed at its n-th write, started again; edited, killed again."""

    def round_of(name: str, at: int) -> tuple[object, int]:
        most = 0
        with OperatorProcess(cluster, namespace, "--resync-s=3", server=proxy.url) as operator:
            for counts, spec, is_late in (("1/1", {}, late[0]), ("2/2", EDITED, late[1])):
                with Killer(operator, proxy, at=at, late=is_late) as killer:
                    cluster.kubectl.apply(make(name, **spec), namespace=namespace)
                    cluster.kubectl.until(
                        has(counts), RESOURCE, name, namespace=namespace, timeout_s=90
                    )
                most = max(most, killer.num_writes)
            operator.until(lambda: operator.metric("waiting") <= 2, "at rest")
            found = shape(cluster, namespace, name)
        cluster.kubectl("delete", RESOURCE, name, namespace=namespace)
        return found, most

    undisturbed, num_writes = round_of("never", at=0)
    for at in range(1, num_writes + 1):
        assert round_of(f"at-{at}", at=at)[0] == undisturbed, f"killed at write {at}"
