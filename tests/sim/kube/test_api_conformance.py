"""The API model against a real API server: the same operations have the same outcomes.

Compared are the kind of outcome, the object that comes back, who owns which of its fields, what a
write does to version, generation and UID, and what a watch tells. Controllers stand still
meanwhile, so that only these operations write. Not compared, because nothing of the operator reads
it: the wording of errors, times, spec of pods (admission adds tolerations and volumes to it).
"""

from __future__ import annotations

import itertools
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes
from tests.cluster.program import wait_until
from tests.operator.building import INSTALLATION, from_hub, service
from tests.operator.on_api_server import defined
from tests.sim.kube.api_model import ApiModel
from tests.sim.kube.api_operations import POD_SPEC, TIME, Operation, operations, whole
from tests.sim.kube.api_run import Api, Run, version_of
from tests.sim.kube.real_api import RealApi

from octavo.operator.cluster import (
    Key,
    UnavailableError,
)
from octavo.operator.desired import Circumstances, children
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    LEASE,
    POD,
    Kind,
    Manifest,
    kind_of,
    object_of,
)

__all__ = ["defined"]

NOW = 1_780_000_000.0


@dataclass(frozen=True, slots=True)
class Real:
    """A real API server whose controllers stand still, and a namespace of it."""

    api: RealApi
    namespace: str


@pytest.fixture(scope="module")
def real(control_plane: ControlPlane, defined: Kubernetes) -> Iterator[Real]:
    active = [control_plane.parts[n] for n in ("kube-controller-manager", "kube-scheduler")]
    api = RealApi(defined.kubeconfig)
    with control_plane.namespace() as namespace:
        wait_until(
            lambda: _serves(api, INFERENCE_SERVICE), 30, lambda: "the definition is not served"
        )
        for part in active:
            part.send(signal.SIGSTOP)
        yield Real(api, namespace)
        for part in active:
            part.send(signal.SIGCONT)
    api.close()


def _serves(api: RealApi, kind: Kind) -> bool:
    try:
        api.list(kind)
    except UnavailableError:
        return False
    return True


EXAMPLES = itertools.count()


def compare(real: Real, kind: Kind, wanted: list[Operation]) -> None:
    """Carries operations out on both sides, and has a watch tell of them."""
    prefix, namespace = f"e{next(EXAMPLES)}", real.namespace
    model = ApiModel(wall=lambda: NOW)
    ours, theirs = (Run(api, kind, namespace, prefix) for api in (model, real.api))
    start, since = model.version, int(real.api.list(kind, namespace).resource_version)
    last = Operation("create", "last", "a", whole(kind, {}, True))
    for operation in [*wanted, last]:
        assert ours.do(operation) == theirs.do(operation), operation
    ended = real.api.get(kind, Key(namespace, f"{prefix}-last"))
    seen = real.api.changes(kind, namespace, since, int(version_of(ended) or 0))
    assert ours.told(model.changes(kind, start)) == theirs.told(seen)


def test_garbage_goes_as_with_real_controllers(cluster: Kubernetes, namespace: str) -> None:
    real, model = RealApi(cluster.kubeconfig), ApiModel(wall=lambda: NOW)

    def made(api: Api, name: str, *owners: Manifest) -> Manifest:
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap"}
            | {k: o["metadata"][k] for k in ("name", "uid")}
            for o in owners
        ]
        metadata = {"name": name, "namespace": namespace, "ownerReferences": references}
        return api.create(CONFIG_MAP, object_of(CONFIG_MAP, metadata), manager="a")

    def left(api: Api) -> list[str]:
        names = [item["metadata"]["name"] for item in api.list(CONFIG_MAP, namespace).items]
        return [name for name in names if name != "kube-root-ca.crt"]

    for api in (model, real):
        one, other = made(api, "one"), made(api, "other")
        child = made(api, "child", one)
        for name, owners in {"both": [one, other], "grandchild": [child], "free": []}.items():
            made(api, name, *owners)
        api.delete(CONFIG_MAP, Key(namespace, "one"))
    assert [model.collect() for _ in range(3)] == [1, 1, 0]
    wait_until(lambda: left(real) == left(model), 30, lambda: str(left(real)))
    assert left(model) == ["both", "free", "other"]
    real.close()


@pytest.mark.parametrize(
    ("kind", "num_examples"),
    [(CONFIG_MAP, 20), (LEASE, 20), (DEPLOYMENT, 50), (INFERENCE_SERVICE, 50), (POD, 50)],
    ids=lambda value: value.name if isinstance(value, Kind) else "",
)
def test_the_model_does_what_a_real_api_server_does(
    real: Real, kind: Kind, num_examples: int
) -> None:
    @settings(
        max_examples=num_examples,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],  # each try to shrink takes as long
        suppress_health_check=list(HealthCheck),
    )
    @given(wanted=operations(kind))
    def all_of_them(wanted: list[Operation]) -> None:
        compare(real, kind, wanted)

    all_of_them()


def test_what_is_held_goes_when_it_is_let_go(real: Real) -> None:
    held = {"finalizers": ["octavo.dev/held"], "labels": {"l": "1"}}
    compare(
        real,
        CONFIG_MAP,
        [
            Operation("create", "x", "a", {"data": {"a": "1"}}, held),
            Operation("delete", "x"),
            Operation("delete", "x", bound="uid"),
            Operation("create", "x", "a"),
            Operation("apply", "x", "b", {"data": {"b": "1"}}),
            Operation("patch", "x", "a", {}, {"finalizers": None}),
            Operation("create", "x", "a"),
        ],
    )


def test_a_pod_is_told_to_go_before_it_goes(real: Real) -> None:
    true = {"status": "True", "lastTransitionTime": TIME}
    told = {"status": {"conditions": [{"type": "Ready"} | true]}}
    gate = {"status": {"conditions": [{"type": "Gate"} | true]}}
    compare(
        real,
        POD,
        [
            Operation("create", "y", "a", {"spec": POD_SPEC}),
            Operation("patch", "y", "kubelet", told, subresource="status"),
            Operation("delete", "y", bound="version"),
            Operation("delete", "y"),
            Operation("apply", "y", "b", gate, subresource="status", bound="uid"),
            Operation("create", "y", "a", {"spec": POD_SPEC}),
            Operation("remove", "y"),
            Operation("apply", "y", "b", gate, subresource="status", bound="other uid"),
            Operation("create", "y", "a", {"spec": POD_SPEC}),
            Operation("apply", "y", "b", gate, subresource="status", bound="other uid"),
        ],
    )


def test_the_operator_s_objects_are_kept_as_by_a_real_server(real: Real) -> None:
    model = ApiModel(wall=lambda: NOW, storage_class="fake")
    circumstances = Circumstances(
        installation=INSTALLATION,
        references="1",
        kinds=frozenset(),
        image="engine:1",
        strategy=Strategy(max_surge=1, max_unavailable=0),
        replicas=0,
        is_paused=True,
    )
    limits = {"limits": {"memory": "2048Mi", "cpu": "1500m"}, "requests": {"cpu": 1}}
    engine = {"resources": limits, "env": [{"name": "A", "value": ""}], "nodeSelector": {"a": "b"}}
    wanted = service(**from_hub(), engine=engine)
    for child in children(wanted, circumstances):
        kind = kind_of(child)
        child = child | {"metadata": child["metadata"] | {"namespace": real.namespace}}
        kept = []
        for api in (model, real.api):
            run = Run(api, kind, real.namespace, "")
            # A real server stores a claim once more, with nothing new in it.
            first, found, again = (api.apply(kind, child, manager="a") for _ in range(3))
            assert version_of(found) == version_of(again), kind.name
            assert run.comparable(first) == run.comparable(again)
            uid = found["metadata"]["uid"]
            kept.append(json.loads(json.dumps(run.comparable(found)).replace(uid, "UID")))
        assert kept[0] == kept[1], kind.name
