from __future__ import annotations

import subprocess

import kubernetes_validate
import pytest
from tests.charts.matrix import MATRIX
from tests.charts.rendering import CHART, MONITORING, Manifest, Values, notes, only, pods, render
from tests.cluster.binaries import program

OF_OTHERS = {"PodMonitor", "PrometheusRule"}
"""Kinds that Kubernetes does not know by itself."""


def test_lint_finds_nothing() -> None:
    command = [program("helm"), "lint", "--strict", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_every_object_is_valid(values: Values) -> None:
    objects = render(values)
    for each in objects:
        if each["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(each, "1.34", strict=True)


@pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)
def test_objects_have_the_usual_labels(values: Values) -> None:
    for each in render(values):
        if each["metadata"].get("name") in ("plain", "octavo-text"):
            continue  # the user's own
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "octavo"
        assert labels["app.kubernetes.io/instance"] == "octavo"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert {"app.kubernetes.io/component", "app.kubernetes.io/version"} <= labels.keys()
        assert all(isinstance(value, str) and len(value) <= 63 for value in labels.values())


def identity(each: Manifest) -> tuple[str, str, str]:
    """Returns what two objects must not share."""
    metadata = each["metadata"]
    return each["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("one", "serving"), ("two", "serving")),
        (("octavo", "red"), ("octavo", "blue")),
        (("x" * 50 + "1", "serving"), ("x" * 50 + "2", "serving")),
        (("octavo", "n" * 60 + "1"), ("octavo", "n" * 60 + "2")),
        (("b-c", "a"), ("c", "a-b")),
    ],
)
def test_two_releases_share_no_object(first: tuple[str, str], second: tuple[str, str]) -> None:
    for mode in ({}, {"rbac": {"clusterScoped": False, "namespaces": ["shared"]}}):
        values = mode | {"crds": {"enabled": False}, "cleanup": {"enabled": True}}
        ours, theirs = (
            [identity(each) for each in render(values, name=name, namespace=namespace)]
            for name, namespace in (first, second)
        )
        assert len(set(ours)) == len(ours)
        assert set(ours) & set(theirs) == set()


def test_names_fit_whatever_the_release_is_called() -> None:
    values = {"monitoring": {"dashboards": {"enabled": True}}, "cleanup": {"enabled": True}}
    for each in render(values, name="x" * 53, namespace="n" * 63, kinds=MONITORING):
        assert len(each["metadata"]["name"]) <= 63, each["metadata"]["name"]


def test_name_overrides_replace_the_prefix() -> None:
    assert only(render({"fullnameOverride": "llm"}), "Deployment", "llm-gateway")
    assert only(render({"nameOverride": "llm"}, name="x"), "Deployment", "x-llm-gateway")


def test_selectors_hold_nothing_that_an_upgrade_changes() -> None:
    upgraded = MATRIX["every pod setting"] | {"image": {"tag": "2"}}
    wanted = {"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"}
    for values in ({}, upgraded):
        for each in render(values):
            if each["kind"] == "Deployment":
                assert each["spec"]["selector"]["matchLabels"].keys() == wanted


def test_pods_keep_their_templates_when_only_the_chart_s_version_changes() -> None:
    for pod in pods(render()):
        if not pod.owner.startswith("Pod/"):
            assert (
                not {"helm.sh/chart", "app.kubernetes.io/version"} & pod.metadata["labels"].keys()
            )


def test_services_select_the_pods_of_their_release_only() -> None:
    for each in render():
        if each["kind"] == "Service":
            component = each["metadata"]["labels"]["app.kubernetes.io/component"]
            assert each["spec"]["selector"] == {
                "app.kubernetes.io/name": "octavo",
                "app.kubernetes.io/instance": "octavo",
                "app.kubernetes.io/component": component,
            }


def test_crd_stays_at_uninstall_unless_told_otherwise() -> None:
    name = "inferenceservices.serving.octavo.dev"
    kept = only(render(), "CustomResourceDefinition", name)
    assert kept["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    gone = only(render(MATRIX["crds go"]), "CustomResourceDefinition", name)
    assert "annotations" not in gone["metadata"]
    assert not [o for o in render(MATRIX["no crds"]) if o["kind"] == "CustomResourceDefinition"]


def test_autoscaled_gateway_leaves_its_replicas_alone() -> None:
    objects = render(MATRIX["autoscaled gateway"])
    assert "replicas" not in only(objects, "Deployment", "octavo-gateway")["spec"]
    target = only(objects, "HorizontalPodAutoscaler", "octavo-gateway")["spec"]["scaleTargetRef"]
    assert target["name"] == "octavo-gateway"
    assert only(render(), "Deployment", "octavo-gateway")["spec"]["replicas"] == 2


def test_there_is_one_operator_at_a_time() -> None:
    spec = only(render(), "Deployment", "octavo-operator")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_extra_objects_may_be_templates() -> None:
    objects = render(MATRIX["extra objects"])
    assert only(objects, "ConfigMap", "plain")
    assert only(objects, "ConfigMap", "octavo-text")


def test_kinds_of_others_are_made_where_they_exist() -> None:
    def kinds(values: Values, *there: str) -> set[str]:
        return {each["kind"] for each in render(values, kinds=there)} & OF_OTHERS

    assert kinds({}) == set()
    assert kinds({}, *MONITORING) == OF_OTHERS
    off = {"monitoring": {name: {"enabled": False} for name in ("podMonitors", "alerts")}}
    assert kinds(off, *MONITORING) == set()
    assert kinds(MATRIX["all monitoring"]) == OF_OTHERS


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        ({}, "asks for no API key"),
        (MATRIX["open gateway"], "LoadBalancer opens it to the outside"),
        (MATRIX["no gateway"], "there is no gateway"),
        (MATRIX["no store"], "there is no Valkey or Redis"),
        (MATRIX["no store"], "networkPolicy.enabled is false"),
        (MATRIX["crds go"], "deletes every InferenceService"),
        (MATRIX["all monitoring"], "name Prometheus' namespace"),
    ],
)
def test_notes_warn(values: Values, warning: str) -> None:
    assert warning in notes(values)


def test_notes_show_how_to_go_on() -> None:
    text = notes()
    for part in ("kubectl -n serving rollout status", "kind: InferenceService", "curl http://"):
        assert part in text
    assert "WARNING: there is no" not in text
