"""Who may do what with the API server, and which pods reach which."""

from __future__ import annotations

import pytest
import yaml
from tests.charts.account import Rights, rights
from tests.charts.matrix import MATRIX
from tests.charts.rendering import CHART, Manifest, Values, only, render

from octavo.operator import kinds
from octavo.operator.kinds import Kind
from octavo.operator.mirror import WATCHED_KINDS

READ = {"get", "list", "watch"}
USED: Rights = {
    # Children are made by server-side apply, for which the API server wants both verbs.
    **{(k.group, k.plural): READ | {"create", "patch"} for k in kinds.CHILD_KINDS},
    **{(k.group, k.plural): READ | {"create", "patch", "delete"} for k in kinds.PASSING_KINDS},
    # It may be missing, so it is listed and not watched.
    (kinds.POD_MONITOR.group, kinds.POD_MONITOR.plural): (
        {"get", "list", "create", "patch", "delete"}
    ),
    **{(k.group, k.plural): READ for k in (kinds.INFERENCE_SERVICE, kinds.POD)},
    (kinds.DEPLOYMENT.group, "deployments/scale"): {"patch"},
    (kinds.INFERENCE_SERVICE.group, "inferenceservices/status"): {"patch"},
    # Asked for by ownerReferences that block deletion, where that plugin is on.
    (kinds.INFERENCE_SERVICE.group, "inferenceservices/finalizers"): {"update"},
    ("", "pods/status"): {"patch"},
    ("", "events"): {"create"},
    ("", "secrets"): {"get"},
}
USED_AT_HOME: Rights = {
    ("coordination.k8s.io", "leases"): {"get", "patch", "create"},
    ("discovery.k8s.io", "endpointslices"): {"list"},
}


def test_operator_may_do_what_it_does_and_no_more() -> None:
    role = only(render(), "ClusterRole", "serving.octavo-operator")
    assert rights(role["rules"]) == USED
    assert rights(only(render(), "Role", "octavo-operator")["rules"]) == USED_AT_HOME


def test_the_list_of_what_the_operator_does_is_complete() -> None:
    def named(kind: Kind) -> tuple[str, str]:
        return kind.group, kind.plural

    assert {named(kind) for kind in kinds.KINDS} <= USED.keys() | USED_AT_HOME.keys()
    listed = {kind: USED[named(kind)] for kind in WATCHED_KINDS}
    assert all("list" in verbs for verbs in listed.values())
    unwatched = {kind for kind, verbs in listed.items() if "watch" not in verbs}
    assert unwatched == set(kinds.OPTIONAL_KINDS)


def test_gateway_may_look_for_engines_only() -> None:
    role = only(render(), "ClusterRole", "serving.octavo-gateway")
    assert rights(role["rules"]) == {
        ("serving.octavo.dev", "inferenceservices"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"list", "watch"},
    }


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_nobody_gets_everything(values: Values) -> None:
    for each in render(values):
        for rule in each.get("rules", []) if each["kind"] in ("Role", "ClusterRole") else []:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            if "secrets" in rule["resources"]:
                assert rule["verbs"] == ["get"]


def test_namespaced_mode_has_nothing_of_the_cluster_s() -> None:
    objects = render(MATRIX["namespaces"])
    assert not [each for each in objects if each["kind"].startswith("ClusterRole")]
    for kind in ("Role", "RoleBinding"):
        homes = [o["metadata"]["namespace"] for o in objects if o["kind"] == kind]
        assert sorted(homes) == ["blue", "blue", "red", "red", "serving"]


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_bindings_name_roles_and_accounts_that_exist(values: Values) -> None:
    objects = render(values)
    there = {(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects}
    for each in objects:
        if each["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            role = each["roleRef"]
            assert (role["kind"], each["metadata"].get("namespace"), role["name"]) in there
            (subject,) = each["subjects"]
            assert ("ServiceAccount", subject["namespace"], subject["name"]) in there


def test_users_roles_learn_of_inference_services() -> None:
    objects = render()
    resource = ("serving.octavo.dev", "inferenceservices")
    to = "rbac.authorization.k8s.io/aggregate-to-"
    granted: dict[str, set[str]] = {"admin": set(), "edit": set(), "view": set()}
    for name in granted:
        role = only(objects, "ClusterRole", f"serving.octavo-{name}")
        for target in granted:
            if role["metadata"]["labels"].get(to + target) == "true":
                granted[target] |= rights(role["rules"])[resource]
    change = {"create", "update", "patch", "delete"}
    assert granted == {
        "view": READ,
        "edit": READ | change,
        "admin": READ | change | {"deletecollection"},
    }


def test_cleanup_may_list_and_delete_only() -> None:
    role = only(render(MATRIX["cleanup"]), "Role", "serving.octavo-cleanup")
    assert rights(role["rules"]) == {
        ("serving.octavo.dev", "inferenceservices"): {"list", "delete"}
    }


def policies(values: Values) -> dict[str, Manifest]:
    return {
        each["metadata"]["name"].removeprefix("octavo-"): each["spec"]
        for each in render(values)
        if each["kind"] == "NetworkPolicy"
    }


def ports(rule: Manifest) -> set[int]:
    return {port["port"] for port in rule["ports"]}


def test_what_is_not_listed_is_denied() -> None:
    found = policies({"cleanup": {"enabled": True}})
    denied = found.pop("default-deny")
    assert denied["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in denied
    assert "egress" not in denied
    (components,) = denied["podSelector"]["matchExpressions"]
    assert sorted(components["values"]) == sorted(found)
    for name, spec in found.items():
        wanted = spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        assert wanted == name
        for rule in [*spec.get("ingress", []), *spec.get("egress", [])]:
            assert ports(rule), "a rule without ports opens them all"


def shapes(values: Values) -> set[tuple[str, str, frozenset[str]]]:
    """Returns by which parts the rules of each policy are bounded."""
    return {
        (name, way, frozenset(part for part in rule if rule[part]))
        for name, spec in policies(values).items()
        for way in ("ingress", "egress")
        for rule in spec.get(way, [])
    }


def test_no_empty_list_opens_what_a_full_one_does_not() -> None:
    full: Values = {
        "apiServerPorts": [443],
        "dnsPorts": [53],
        "monitoringNamespaces": ["monitoring"],
        "apiFrom": [{"podSelector": {}}],
        "gatewayEgress": [{"ports": [{"port": 4317}]}],
    }
    defaults = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))["networkPolicy"]
    assert full.keys() == {name for name, value in defaults.items() if isinstance(value, list)}
    more = {"cleanup": {"enabled": True}}
    empty = shapes(more | {"networkPolicy": {key: [] for key in full}})
    opened = empty - shapes(more | {"networkPolicy": full})
    assert opened == {("gateway", "ingress", frozenset({"ports"}))}, "apiFrom: empty is everyone"


def test_only_the_gateway_reaches_valkey() -> None:
    (rule,) = policies({})["valkey"]["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert ports(rule) == {6379}


def test_gateway_reaches_engines_the_store_the_api_server_and_dns() -> None:
    reached = set().union(*(ports(rule) for rule in policies({})["gateway"]["egress"]))
    assert reached == {53, 5353, 443, 6443, 50051, 6379}
    outside = policies(MATRIX["external redis"])["gateway"]["egress"]
    assert 6380 in set().union(*(ports(rule) for rule in outside))
    assert {4317} in [ports(rule) for rule in policies(MATRIX["open gateway"])["gateway"]["egress"]]


def test_operator_reaches_the_api_server_and_gateways_reports() -> None:
    reached = set().union(*(ports(rule) for rule in policies({})["operator"]["egress"]))
    assert reached == {443, 6443, 8081}


def test_api_is_for_everyone_unless_somebody_is_named() -> None:
    def peers(values: Values) -> list[Manifest] | None:
        (rule,) = [r for r in policies(values)["gateway"]["ingress"] if ports(r) == {8000}]
        found: list[Manifest] | None = rule.get("from")
        return found

    assert peers({}) is None
    named = peers(MATRIX["open gateway"]) or []
    assert {"namespaceSelector": {"matchLabels": {"team": "web"}}} in named
    assert len(named) == 2, "the test's pod is let in too"


def test_metrics_are_for_the_own_namespace_and_named_ones() -> None:
    def peers(values: Values) -> list[Manifest]:
        (rule,) = policies(values)["operator"]["ingress"]
        assert ports(rule) == {8081}
        found: list[Manifest] = rule["from"]
        return found

    assert peers({}) == [{"podSelector": {}}]
    monitoring = {"kubernetes.io/metadata.name": "monitoring"}
    assert {"namespaceSelector": {"matchLabels": monitoring}} in peers(MATRIX["open gateway"])


def test_policies_can_be_left_out() -> None:
    assert policies(MATRIX["no store"]) == {}
