"""The API model by itself; `test_api_conformance` holds it against a real API server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.building import INSTALLATION, from_hub, resource, service
from tests.sim.kube.api_defaults import canonical
from tests.sim.kube.api_kinds import shape_of
from tests.sim.kube.api_model import ApiModel, Change
from tests.sim.kube.merging import Owner, apply, field_set, merged, tree, without, without_nulls

from octavo.operator import comparison, quantity
from octavo.operator.cluster import (
    ConflictError,
    ExpiredError,
    Key,
    MissingError,
    RefusedError,
)
from octavo.operator.desired import Circumstances, children
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    JOB,
    LEASE,
    POD,
    POD_MONITOR,
    VOLUME_CLAIM,
    Manifest,
    kind_of,
    object_of,
)
from octavo.operator.writes import owns_replicas

KEY = Key("team", "one")
NOW = 1_780_000_000.0


@pytest.fixture
def model() -> ApiModel:
    return ApiModel(wall=lambda: NOW)


def config_map(name: str = "one", **data: str) -> Manifest:
    given = {"data": data} if data else {}
    return object_of(CONFIG_MAP, {"name": name, "namespace": "team"}, **given)


def deployment(**spec: Any) -> Manifest:
    template = {
        "metadata": {"labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i:1"}]},
    }
    given = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
    return object_of(DEPLOYMENT, {"name": "one", "namespace": "team"}, spec=given | spec)


def pod(**spec: Any) -> Manifest:
    given = {"containers": [{"name": "c", "image": "i:1"}]}
    return object_of(POD, {"name": "one", "namespace": "team"}, spec=given | spec)


def version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def owned(manifest: Manifest, manager: str) -> list[Manifest]:
    entries = manifest["metadata"].get("managedFields", [])
    return [entry["fieldsV1"] for entry in entries if entry["manager"] == manager]


def test_each_write_has_a_version_and_one_without_effect_has_none(model: ApiModel) -> None:
    first = model.apply(CONFIG_MAP, config_map(a="1"), manager="a")
    assert version(first) == model.version
    assert model.apply(CONFIG_MAP, config_map(a="1"), manager="a") is first
    assert model.patch(CONFIG_MAP, KEY, {"data": {"a": "1"}}, manager="b") is first
    second = model.apply(LEASE, object_of(LEASE, {"name": "x", "namespace": "y"}), manager="a")
    assert version(second) == version(first) + 1


def test_a_field_goes_with_its_last_owner(model: ApiModel) -> None:
    model.apply(CONFIG_MAP, config_map(a="1", b="1"), manager="a")
    model.apply(CONFIG_MAP, config_map(b="1"), manager="b")
    both = model.apply(CONFIG_MAP, config_map(), manager="a")
    assert both["data"] == {"b": "1"}
    assert owned(both, "a") == []
    none = model.apply(CONFIG_MAP, config_map(), manager="b")
    assert "data" not in none


def test_force_takes_a_field_over_and_without_it_is_a_conflict(model: ApiModel) -> None:
    model.apply(CONFIG_MAP, config_map(a="1"), manager="a")
    with pytest.raises(ConflictError, match='conflict with "a"'):
        model.apply(CONFIG_MAP, config_map(a="2"), manager="b", force=False)
    taken = model.apply(CONFIG_MAP, config_map(a="2"), manager="b")
    assert owned(taken, "a") == []
    assert owned(taken, "b") == [{"f:data": {"f:a": {}}}]
    assert model.apply(CONFIG_MAP, config_map(a="2"), manager="c", force=False)["data"]


def test_whoever_scales_takes_the_replicas_from_whoever_applied_them(model: ApiModel) -> None:
    found = model.apply(DEPLOYMENT, deployment(replicas=2), manager="octavo-operator")
    assert owns_replicas(found)
    found = model.patch(
        DEPLOYMENT, KEY, {"spec": {"replicas": 5}}, manager="hpa", subresource="scale"
    )
    assert (found["spec"]["replicas"], found["metadata"]["generation"]) == (5, 2)
    assert not owns_replicas(found)
    assert found["metadata"]["managedFields"][-1]["subresource"] == "scale"
    found = model.apply(DEPLOYMENT, deployment(), manager="octavo-operator")
    assert found["spec"]["replicas"] == 5


def test_dropping_a_field_that_nobody_else_owns_brings_its_default_back(model: ApiModel) -> None:
    model.apply(DEPLOYMENT, deployment(replicas=3), manager="a")
    assert model.apply(DEPLOYMENT, deployment(), manager="a")["spec"]["replicas"] == 1


def test_status_and_spec_are_written_apart(model: ApiModel) -> None:
    wanted = resource("one") | {"status": {"model": "x"}}
    del wanted["metadata"]["uid"], wanted["metadata"]["resourceVersion"]
    made = model.apply(INFERENCE_SERVICE, wanted, manager="user")
    assert "status" not in made
    told = wanted | {"spec": {"replicas": 7}}
    said = model.apply(INFERENCE_SERVICE, told, manager="op", subresource="status")
    assert (said["status"], said["spec"]) == ({"model": "x"}, made["spec"])
    assert said["metadata"]["generation"] == 1
    spec = made["spec"] | {"replicas": 2}
    edited = model.patch(INFERENCE_SERVICE, KEY, {"spec": spec, "status": None}, manager="user")
    assert (edited["status"], edited["metadata"]["generation"]) == ({"model": "x"}, 2)
    with pytest.raises(MissingError):
        model.apply(
            INFERENCE_SERVICE,
            wanted | {"metadata": {"name": "no", "namespace": "team"}},
            manager="op",
            subresource="status",
        )


def test_conditions_of_several_writers_stand_side_by_side(model: ApiModel) -> None:
    model.create(POD, pod(), manager="kubelet")
    conditions = [{"type": "Ready", "status": "False"}]
    change = {"status": {"conditions": conditions}}
    model.patch(POD, KEY, change, manager="kubelet", subresource="status")
    gate = pod() | {"status": {"conditions": [{"type": "Gate", "status": "True"}]}}
    found = model.apply(POD, gate, manager="op", subresource="status")
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]} == {
        "Ready": "False",
        "Gate": "True",
    }
    assert found["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("bound", "error"),
    [({"uid": "another"}, RefusedError), ({"resourceVersion": "1"}, ConflictError)],
)
def test_a_write_to_another_object_than_meant_does_nothing(
    model: ApiModel, bound: dict[str, str], error: type[Exception]
) -> None:
    other = config_map(a="2")
    other["metadata"] |= bound
    if "uid" in bound:
        with pytest.raises(ConflictError):
            model.apply(CONFIG_MAP, other, manager="a")
    made = model.create(CONFIG_MAP, config_map(a="1"), manager="a")
    with pytest.raises(error):
        model.apply(CONFIG_MAP, other, manager="a")
    with pytest.raises(error):
        model.patch(CONFIG_MAP, KEY, {"metadata": bound}, manager="a")
    uid, at = bound.get("uid", ""), bound.get("resourceVersion", "")
    with pytest.raises(ConflictError):
        model.delete(CONFIG_MAP, KEY, uid=uid, resource_version=at)
    with pytest.raises(ConflictError):
        model.create(CONFIG_MAP, config_map(), manager="a")
    assert model.get(CONFIG_MAP, KEY) is made


def test_what_is_made_anew_has_another_uid(model: ApiModel) -> None:
    first = model.create(CONFIG_MAP, config_map(), manager="a")
    model.delete(CONFIG_MAP, KEY, uid=first["metadata"]["uid"])
    assert model.get(CONFIG_MAP, KEY) is None
    second = model.create(CONFIG_MAP, config_map(), manager="a")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


def test_a_pod_that_runs_and_what_has_a_finalizer_go_later(model: ApiModel) -> None:
    model.create(POD, pod(), manager="a")
    model.delete(POD, KEY)
    assert model.get(POD, KEY) is None
    model.create(POD, pod(nodeName="n", terminationGracePeriodSeconds=45), manager="a")
    model.delete(POD, KEY)
    before = model.version
    model.delete(POD, KEY)
    assert model.version == before
    going = model.get(POD, KEY)
    assert going is not None
    assert going["metadata"]["deletionTimestamp"] == "2026-05-28T20:27:25Z"
    model.patch(POD, KEY, {"status": {"phase": "Running"}}, manager="k", subresource="status")
    model.remove(POD, KEY)
    assert model.get(POD, KEY) is None
    claim = object_of(VOLUME_CLAIM, {"name": "one", "namespace": "team"}, spec={})
    model.create(VOLUME_CLAIM, claim, manager="a")
    model.delete(VOLUME_CLAIM, KEY)
    assert model.get(VOLUME_CLAIM, KEY) is not None
    model.patch(VOLUME_CLAIM, KEY, {"metadata": {"finalizers": None}}, manager="protection")
    assert model.get(VOLUME_CLAIM, KEY) is None


def test_garbage_is_what_has_lost_its_owners(model: ApiModel) -> None:
    owner = model.create(CONFIG_MAP, config_map("owner"), manager="a")
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
    for name, uids in {"both": [owner["metadata"]["uid"], "gone"], "one": ["gone"]}.items():
        child = config_map(name)
        child["metadata"]["ownerReferences"] = [reference | {"uid": uid} for uid in uids]
        model.create(CONFIG_MAP, child, manager="a")
    assert model.collect() == 1
    model.delete(CONFIG_MAP, Key("team", "owner"))
    assert model.collect() == 1
    assert model.collect() == 0
    assert model.list(CONFIG_MAP).items == []


def test_changes_are_told_at_once_and_to_whoever_asks_in_time() -> None:
    model = ApiModel(wall=lambda: NOW, history=3)
    told: list[Change] = []
    model.subscribe(told.append)
    start = model.version
    model.create(CONFIG_MAP, config_map(), manager="a")
    model.patch(CONFIG_MAP, KEY, {"data": {"a": "1"}}, manager="a")
    model.delete(CONFIG_MAP, KEY)
    assert [change.event for change in told] == ["ADDED", "MODIFIED", "DELETED"]
    assert model.changes(CONFIG_MAP, start) == told
    assert model.changes(CONFIG_MAP, start + 2) == told[2:]
    assert model.changes(POD, start) == []
    assert version(told[-1].manifest) == model.version
    model.create(POD, pod(), manager="a")
    with pytest.raises(ExpiredError):
        model.changes(CONFIG_MAP, start)
    assert model.changes(CONFIG_MAP, start + 1) == told[1:3]


def test_lists_choose_by_namespace_and_label(model: ApiModel) -> None:
    for name, labels in {"b": {"x": "1"}, "a": {"x": "2"}, "c": {}}.items():
        manifest = config_map(name)
        manifest["metadata"]["labels"] = labels
        model.create(CONFIG_MAP, manifest, manager="m")

    def listed(namespace: str | None, labels: dict[str, str | None]) -> list[str]:
        items = model.list(CONFIG_MAP, namespace, labels=labels).items
        return [item["metadata"]["name"] for item in items]

    assert listed(None, {}) == ["a", "b", "c"]
    assert listed("team", {"x": None}) == ["a", "b"]
    assert listed("team", {"x": "1"}) == ["b"]
    assert listed("other", {}) == []
    with pytest.raises(MissingError):
        model.list(POD_MONITOR)


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": -1},
        {"replicas": "1"},
        {"model": {}},
        {"engine": {"device": "abacus"}},
        {"model": {"uri": 5}},
        {"rollout": {"maxSurge": "x%"}},
    ],
)
def test_an_inference_service_against_its_schema_is_refused(
    model: ApiModel, spec: dict[str, Any]
) -> None:
    given = {"model": {"uri": "file:///m"}} | spec
    manifest = object_of(INFERENCE_SERVICE, {"name": "one", "namespace": "team"}, spec=given)
    with pytest.raises(RefusedError):
        model.create(INFERENCE_SERVICE, manifest, manager="user")
    assert model.get(INFERENCE_SERVICE, KEY) is None


def test_an_inference_service_has_the_defaults_of_its_schema(model: ApiModel) -> None:
    given = object_of(
        INFERENCE_SERVICE,
        {"name": "one", "namespace": "team"},
        spec={"model": {"uri": "file:///m"}},
    )
    found = model.apply(INFERENCE_SERVICE, given, manager="user")
    assert found["spec"] == resource(model={"uri": "file:///m"})["spec"]
    assert owned(found, "user") == [{"f:spec": {"f:model": {"f:uri": {}}}}]


def test_the_operator_s_children_are_at_rest_once_applied(model: ApiModel) -> None:
    given = Circumstances(
        installation=INSTALLATION,
        references="",
        kinds=frozenset(),
        image="engine:1",
        strategy=Strategy(max_surge=1, max_unavailable=0),
        replicas=2,
    )
    limits = {"limits": {"memory": "2048Mi", "cpu": 2}}
    wanted = service(**from_hub(), engine={"resources": limits, "env": [{"name": "A"}]})
    for child in children(wanted, given):
        kind = kind_of(child)
        found = model.apply(kind, child, manager="octavo-operator")
        assert comparison.differences(found, child) == []
        before = model.version
        model.apply(kind, child, manager="octavo-operator")
        assert model.version == before
    job = model.list(JOB).items[0]
    other = {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}
    with pytest.raises(RefusedError):
        model.patch(JOB, Key("team", job["metadata"]["name"]), other, manager="user")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("1024Mi", "1Gi"), ("1536Mi", "1536Mi"), ("1.5Gi", "1536Mi"), ("1000m", "1"), (2, "2"),
        ("0.5", "500m"), ("2000", "2k"), ("512Ki", "512Ki"), ("0.5Ki", "512"), ("0", "0"),
    ],
)  # fmt: skip
def test_quantities_are_kept_in_their_shortest_form(written: object, kept: str) -> None:
    assert canonical(written) == kept
    assert quantity.parse(written) == quantity.parse(kept)


NAMES = st.sampled_from(["a", "b", "c"])
ENTRIES = st.dictionaries(NAMES, st.sampled_from(["1", "2"]), min_size=1).map(
    lambda chosen: [{"name": name, "value": value} for name, value in chosen.items()]
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.dictionaries(NAMES, st.sampled_from(["1", "2"]), min_size=1),
        "env": ENTRIES,
        "args": st.lists(NAMES),
        "selector": st.dictionaries(NAMES, NAMES, min_size=1),
        # An empty one where something was is nothing at first: so it is with real servers.
        "deep": st.fixed_dictionaries({"x": NAMES}, optional={"env": ENTRIES}),
    },
)
SHAPE = shape_of(CONFIG_MAP)


@settings(derandomize=True, max_examples=200)
@given(applied=st.lists(st.tuples(st.sampled_from(["m", "n"]), CONFIGS), min_size=1, max_size=6))
def test_an_object_is_what_its_appliers_want_now_and_each_field_is_somebody_s(
    applied: list[tuple[str, Manifest]],
) -> None:
    live: Manifest = {}
    owners: dict[Owner, Any] = {}
    wanted: dict[str, Manifest] = {}
    for manager, config in applied:
        owner = Owner("Apply", manager)
        live, owners = apply(live or {}, config, SHAPE, owners, owner, force=True)
        live = without_nulls(live or {})
        wanted[manager] = config
        assert merged(live, config, SHAPE) == live, "the last word is kept"
        every = field_set(live, SHAPE)
        some = frozenset().union(*owners.values())
        assert {path for path in every if not _has_children(path, every)} <= some | {
            path[:n] for path in some for n in range(len(path))
        }
        again, after = apply(live, config, SHAPE, owners, owner, force=False)
        assert (without_nulls(again), after) == (live, owners), "a second time changes nothing"


def _has_children(path: tuple[str, ...], every: frozenset[tuple[str, ...]]) -> bool:
    return any(other[: len(path)] == path and other != path for other in every)


@settings(derandomize=True, max_examples=200)
@given(value=CONFIGS)
def test_a_value_without_all_its_fields_is_nothing(value: Manifest) -> None:
    fields = field_set(value, SHAPE)
    left = without(value, SHAPE, fields)
    assert not field_set(left, SHAPE) & {p for p in fields if not p[-1].startswith("k:")}
    assert tree(fields) == tree(sorted(fields, reverse=True))


def test_an_apply_that_arrives_is_not_changed_by_what_its_sender_does_later(
    model: ApiModel,
) -> None:
    sent = config_map(a="1")
    kept = model.apply(CONFIG_MAP, sent, manager="a")
    sent["data"]["a"] = "2"
    assert kept["data"] == {"a": "1"}
