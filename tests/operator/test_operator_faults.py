"""The operator on a real control plane behind a proxy that breaks things; killed at any write.

One operator serves the tests that only need one: each has a service of its own. What takes longer
than seconds is marked.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Container, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import pytest
from tests.cluster.api import Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.api_proxy import ApiProxy, Asked
from tests.operator.operator_process import OperatorProcess, account

from octavo.operator.kinds import CHILD_KINDS, POD_MONITOR

RESOURCE = "ois"
NUMBERS = itertools.count()
AT_LENGTH = pytest.mark.faults
"""What is much like another one that is always run."""


def service(name: str, **spec: Any) -> Object:
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


class World:
    """An operator behind a proxy, and one service of it."""

    def __init__(
        self, cluster: Kubernetes, proxy: ApiProxy, operator: OperatorProcess, name: str
    ) -> None:
        self.proxy = proxy
        self.operator = operator
        self.name = name
        self._cluster = cluster
        self._failed_before = proxy.num_failed

    @property
    def num_failed(self) -> int:
        return self.proxy.num_failed - self._failed_before

    def apply(self, **spec: Any) -> None:
        self._cluster.kubectl.apply(service(self.name, **spec), namespace=self.operator.namespace)

    def until(self, counts: str, timeout_s: float = 60.0) -> Object:
        """Waits until the service is Ready with these replicas; returns it."""
        return self._cluster.kubectl.until(
            has(counts), RESOURCE, self.name,
            namespace=self.operator.namespace, timeout_s=timeout_s,
        )  # fmt: skip

    def list(self, plural: str) -> list[Object]:
        """Returns what the service has of a kind."""
        selector = f"serving.octavo.dev/service={self.name}"
        return self._cluster.kubectl.list(
            plural, namespace=self.operator.namespace, selector=selector
        )

    def until_watched(self) -> None:
        """Waits until all kinds are watched."""
        self.operator.until(lambda: self.proxy.num_watches >= 8, "watches all kinds")

    def delete(self, kind: str = RESOURCE, name: str = "") -> None:
        """Deletes the service, or something of it."""
        namespace = self.operator.namespace
        self._cluster.kubectl("delete", kind, name or self.name, namespace=namespace)


@pytest.fixture(scope="module")
def shared(cluster: Kubernetes) -> Iterator[tuple[ApiProxy, OperatorProcess]]:
    """An operator that outlives what a test does to its requests."""
    with cluster.namespace() as namespace:
        account(namespace).bring(cluster)
        with (
            ApiProxy(cluster) as proxy,
            OperatorProcess(cluster, namespace, "--resync-s=2", server=proxy.url) as operator,
        ):
            yield proxy, operator


@pytest.fixture
def world(cluster: Kubernetes, shared: tuple[ApiProxy, OperatorProcess]) -> Iterator[World]:
    proxy, operator = shared
    made = World(cluster, proxy, operator, f"chat-{next(NUMBERS)}")
    yield made
    proxy.faults.clear()
    proxy.let_go()
    made.delete()


def is_write(asked: Asked) -> bool:
    return asked.is_write and not asked.is_about("leases")


@pytest.mark.parametrize(
    ("status", "late", "retry_after_s"),
    [
        (409, False, None),
        (422, False, None),
        (429, False, 1),
        (500, True, None),
        pytest.param(500, False, None, marks=AT_LENGTH),
        pytest.param(504, True, None, marks=AT_LENGTH),
    ],
    ids=["409", "422", "429", "500 after the write", "500", "504 after the write"],
)
def test_failing_writes_converge_without_duplicates(
    world: World, status: int, late: bool, retry_after_s: int | None
) -> None:
    world.proxy.fail(is_write, status, times=2, late=late, retry_after_s=retry_after_s)
    world.apply()
    world.until("1/1")
    world.proxy.fail(is_write, status, late=late, retry_after_s=retry_after_s)
    world.apply(replicas=2)
    world.until("2/2")
    assert world.num_failed == 3
    for plural in ("deployments", "services", "pdb", "networkpolicies", "replicasets"):
        assert len(world.list(plural)) == 1


@pytest.mark.parametrize("plural", ["inferenceservices", "pods"])
def test_a_status_in_conflict_is_read_again_and_written(world: World, plural: str) -> None:
    def is_status(asked: Asked) -> bool:
        return asked.is_write and asked.is_about(plural) and asked.is_about("status")

    before = len(world.operator.events)
    world.proxy.fail(is_status, 409, times=2)
    world.apply()
    world.until("1/1")
    assert world.num_failed == 2
    told = [event["event"] for event in world.operator.events[before:]]
    assert told.count("conflict") == 2
    assert {"write_refused", "cluster_error"}.isdisjoint(told)


@pytest.mark.parametrize(
    "status", [410, 500, *(pytest.param(each, marks=AT_LENGTH) for each in (403, 429))]
)
def test_failing_reads_delay_and_change_nothing(world: World, status: int) -> None:
    operator = world.operator
    world.apply()
    before = world.until("1/1")["status"]
    world.proxy.fail(lambda asked: not asked.is_write, status, times=2)
    operator.until(lambda: world.num_failed == 2, "asked twice in vain", 60)
    looks = operator.metric("reconciles_total")
    operator.until(lambda: operator.metric("reconciles_total") > looks, "listed again", 60)
    assert world.until("1/1")["status"] == before
    world.apply(replicas=2)
    world.until("2/2")


@pytest.mark.parametrize("how", ["expire", "drop", "hold", pytest.param("upset", marks=AT_LENGTH)])
def test_broken_watches_are_made_good(world: World, how: str) -> None:
    operator = world.operator
    world.apply()
    world.until("1/1")
    world.until_watched()
    missed, restarts = (
        operator.metric(name) for name in ("missed_changes_total", "watch_restarts_total")
    )
    getattr(world.proxy, how)()
    world.apply(replicas=3)
    world.delete("service", f"{world.name}-engine")
    world.until("3/3")
    operator.until(lambda: world.list("services"), "made the Service again")
    assert operator.status("/healthz") == 200
    if how == "hold":
        assert operator.metric("missed_changes_total") > missed
    else:
        world.until_watched()
        assert operator.metric("watch_restarts_total") - restarts == (how == "upset")


@AT_LENGTH
def test_an_event_that_is_missed_is_made_good_within_a_minute(
    control_plane: ControlPlane, namespace: str, proxy: ApiProxy
) -> None:
    with OperatorProcess(control_plane, namespace, server=proxy.url) as operator:
        control_plane.kubectl.apply(service("chat"), namespace=namespace)
        control_plane.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace)
        operator.until(lambda: proxy.num_watches >= 8, "watches all kinds")
        proxy.hold()
        control_plane.kubectl.apply(service("chat", replicas=2), namespace=namespace)
        control_plane.kubectl.until(
            lambda d: d["spec"]["replicas"] == 2,
            "deployment",
            "chat-engine",
            namespace=namespace,
            timeout_s=60,
        )


class Rivals:
    """Operators of one namespace that want one Lease."""

    def __init__(self, cluster: Kubernetes, namespace: str) -> None:
        account(namespace).bring(cluster)
        self._cluster = cluster
        self._namespace = namespace

    def one(self, *, waits: bool = True) -> OperatorProcess:
        lease = f"--lease={self._namespace}/octavo-operator"
        return OperatorProcess(self._cluster, self._namespace, lease, waits=waits)

    def serve(self, name: str) -> None:
        """Applies a service and waits until it is ready."""
        self._cluster.kubectl.apply(service(name), namespace=self._namespace)
        self._cluster.kubectl.until(has("1/1"), RESOURCE, name, namespace=self._namespace)


def test_of_two_operators_one_acts_and_the_other_takes_over(
    cluster: Kubernetes, namespace: str
) -> None:
    rivals = Rivals(cluster, namespace)
    with rivals.one(waits=False) as first, rivals.one() as second:
        rivals.serve("a")
        assert (first.status("/readyz"), second.status("/readyz")) == (200, 503)
        assert (second.status("/healthz"), second.metric("reconciles_total")) == (200, 0)
        first.terminate()
        second.until(lambda: second.status("/readyz") == 200, "took over what was released", 20)
        rivals.serve("b")


@AT_LENGTH
def test_an_operator_that_comes_to_after_another_one_took_over_ends(
    cluster: Kubernetes, namespace: str
) -> None:
    rivals = Rivals(cluster, namespace)
    with rivals.one(waits=False) as first, rivals.one() as second:
        rivals.serve("a")
        first.pause()
        second.until(lambda: second.status("/readyz") == 200, "took over what was left", 60)
        before = first.log_size
        first.resume()
        first.until_ended(30)
        assert "lease_lost" in first.log_since(before)
        rivals.serve("b")
        assert second.is_running


class Killer:
    """Kills an operator at some writes, before the API server gets them or after; starts it again.

    Args:
        operator: which one.
        proxy: through which it writes.
        at: which writes, from 1 on.
        late: whether they take effect.
    """

    def __init__(
        self, operator: OperatorProcess, proxy: ApiProxy, *, at: Container[int], late: bool
    ) -> None:
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
            if self.num_writes in self._at:
                self._operator.kill()

    def _heal(self) -> None:
        while not self._ends.wait(0.05):
            if not self._operator.is_running:
                # It writes before anybody has seen it ready, and is killed for it.
                with suppress(AssertionError):
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
            self._at = ()
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


def test_an_operator_killed_between_its_writes_leads_to_what_is_wanted(
    cluster: Kubernetes, namespace: str, proxy: ApiProxy
) -> None:
    with (
        OperatorProcess(cluster, namespace, server=proxy.url) as operator,
        Killer(operator, proxy, at=(1, 3, 5), late=True) as killer,
    ):
        cluster.kubectl.apply(service("chat"), namespace=namespace)
        cluster.kubectl.until(has("1/1"), RESOURCE, "chat", namespace=namespace, timeout_s=90)
        assert killer.num_writes > 5


@AT_LENGTH
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
                with Killer(operator, proxy, at=(at,), late=is_late) as killer:
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
