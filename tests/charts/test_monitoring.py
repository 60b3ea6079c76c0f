"""Dashboards and alerts speak of metrics that exist, in expressions that mean something."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.charts.matrix import MATRIX
from tests.charts.rendering import MONITORING, ROOT, only, pod_of, render
from tests.ports import lasting_port
from tools import alerts, dashboards
from tools.dashboard import Dashboard

from octavo.engine.metrics import EngineMetrics
from octavo.gateway.metrics import GatewayMetrics
from octavo.operator.metrics import OperatorMetrics
from octavo.runtime.tls_folder import TlsFolder

LABELS_OF_TARGETS = {"namespace", "pod"}
"""What Prometheus adds to each series."""

Expression = tuple[str, str]
"""Where it stands, and what it says."""


def shown() -> Iterator[Expression]:
    for board in dashboards.ALL:
        for _, panels in board.rows:
            for panel in panels:
                for expression, _ in panel.lines:
                    plain = expression.replace("$__rate_interval", "5m")
                    yield f"{board.name}/{panel.title}", re.sub(r"\$\w+", ".*", plain)


def watched() -> Iterator[Expression]:
    for alert in alerts.ALL:
        yield alert.name, alert.when


EVERYWHERE = [*shown(), *watched()]
IDS = [where for where, _ in EVERYWHERE]


def nodes(text: str) -> list[promql.Expr]:
    """Returns an expression and all its parts, outer ones first."""
    found: list[promql.Expr] = []
    promql.walk(promql.parse(text), found.append)
    return found


@dataclass(frozen=True, slots=True)
class Selector:
    """A metric in an expression."""

    name: str
    labels: frozenset[str]
    is_range: bool


def selectors(text: str) -> list[Selector]:
    found = nodes(text)
    ranges = [None, *found]  # the selector of a range comes right after it
    return [
        Selector(
            node.name or "",
            frozenset(matcher.name for matcher in node.matchers.matchers),
            isinstance(before, promql.MatrixSelector),
        )
        for before, node in zip(ranges, found, strict=False)
        if isinstance(node, promql.VectorSelector)
    ]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that our processes export: its kind of metric, and its labels."""

    kind: str
    labels: frozenset[str]


@pytest.fixture(scope="module")
def exported() -> dict[str, Sample]:
    registry = CollectorRegistry()
    EngineMetrics(registry, "m")
    OperatorMetrics(registry)
    GatewayMetrics(registry)
    for prefix in ("octavo:", "octavo_gateway_"):
        TlsFolder("/", key="", origin="", wall=lambda: 0.0).observe(registry, prefix)
    named = {
        name: frozenset(getattr(collector, "_labelnames", ()))
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    found: dict[str, Sample] = operator_gauges()
    for text in (generate_latest(registry).decode(), gateway_text()):
        for family in text_string_to_metric_families(text):
            labels = named.get(family.name, frozenset())
            for sample in family.samples[:1]:
                labels |= sample.labels.keys()
            suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            for suffix in suffixes.get(family.type, ("",)):
                found.setdefault(family.name + suffix, Sample(family.type, labels | {"le"}))
    return found


def gateway_text() -> str:
    """Returns what a real gateway exports: some of its gauges are made by its parts."""
    port = lasting_port()
    command = [sys.executable, "-m", "octavo.gateway", "--port", str(port), "--redis", "redis://x"]
    roots = os.pathsep.join(str(ROOT / name) for name in ("services", "proto"))
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": roots}, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            assert any("listening" in line for line in process.stderr)
            return httpx.get(f"http://127.0.0.1:{port}/metrics").text
        finally:
            process.kill()


def operator_gauges() -> dict[str, Sample]:
    """Returns the gauges that the operator's process adds to its metrics."""
    text = (ROOT / "operator" / "octavo" / "operator" / "process.py").read_text("utf-8")
    names = re.findall(r"metrics\.observe(?:_by)?\(\s*\"(\w+)\"", text)
    assert names
    return {
        f"octavo_operator_{name}": Sample("gauge", frozenset(("namespace", "name", "reports")))
        for name in names
    }


@pytest.mark.parametrize(("where", "text"), EVERYWHERE, ids=IDS)
def test_metric_exists_and_is_used_as_what_it_is(
    where: str, text: str, exported: dict[str, Sample]
) -> None:
    found = selectors(text)
    assert found
    for selector in found:
        assert selector.name in exported, f"{selector.name} is no metric of ours"
        sample = exported[selector.name]
        assert selector.labels <= sample.labels | LABELS_OF_TARGETS
        if sample.kind in ("counter", "histogram"):
            assert selector.is_range, "a counter without rate()"
    names = {selector.name for selector in found}
    known = set().union(*(exported[name].labels for name in names)) | LABELS_OF_TARGETS
    for node in nodes(text):
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            assert set(node.modifier.labels) <= known


@pytest.mark.parametrize(("where", "text"), EVERYWHERE, ids=IDS)
def test_rates_are_of_counters_and_quantiles_keep_le(
    where: str, text: str, exported: dict[str, Sample]
) -> None:
    for node in nodes(text):
        if isinstance(node, promql.Call) and node.func.name in ("rate", "increase"):
            (argument,) = node.args
            assert isinstance(argument, promql.MatrixSelector)
            name = argument.vector_selector.name or ""
            assert exported[name].kind in ("counter", "histogram")
        if isinstance(node, promql.Call) and node.func.name == "histogram_quantile":
            _, buckets = node.args
            assert isinstance(buckets, promql.AggregateExpr)
            assert buckets.modifier is not None
            assert "le" in buckets.modifier.labels


@pytest.mark.parametrize(("where", "text"), EVERYWHERE, ids=IDS)
def test_ratios_aggregate_before_they_divide(where: str, text: str) -> None:
    for node in nodes(text):
        if isinstance(node, promql.BinaryExpr) and str(node.op) == "/":
            assert isinstance(node.lhs, promql.AggregateExpr)
            assert isinstance(node.rhs, promql.AggregateExpr)


@pytest.mark.parametrize("board", dashboards.ALL, ids=lambda board: board.name)
def test_legends_name_the_labels_that_tell_lines_apart(board: Dashboard) -> None:
    for _, panels in board.rows:
        for panel in panels:
            assert panel.about
            for expression, legend in panel.lines:
                grouped = set(re.findall(r"by \((\w+)\)", expression)) - {"le"}
                assert set(re.findall(r"\{\{(\w+)\}\}", legend)) == grouped


@pytest.mark.parametrize("board", dashboards.ALL, ids=lambda board: board.name)
def test_dashboards_fit_any_grafana(board: Dashboard) -> None:
    shown_board: Any = board.as_json()
    assert shown_board["uid"] == f"octavo-{board.name}"
    variables = {each["name"]: each for each in shown_board["templating"]["list"]}
    assert variables.keys() == {"datasource", "namespace", "model"}
    assert all(variables[name]["allValue"] == ".*" for name in ("namespace", "model"))
    sources = set(re.findall(r'"uid": "([^"]*)"', json.dumps(shown_board))) - {shown_board["uid"]}
    assert sources == {"${datasource}"}
    panels = shown_board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken = {
        (x, y)
        for box in (panel["gridPos"] for panel in panels)
        for x in range(box["x"], box["x"] + box["w"])
        for y in range(box["y"], box["y"] + box["h"])
    }
    assert len(taken) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in panels), "overlap"


def test_lists_of_models_come_from_metrics_that_exist(exported: dict[str, Sample]) -> None:
    for board in dashboards.ALL:
        metric, label = board.model_metric.split("/")
        assert label in exported[metric].labels


def test_alerts_are_rules_as_prometheus_takes_them() -> None:
    (group,) = yaml.safe_load(alerts.rules())["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == len(alerts.ALL)
    for rule in group["rules"]:
        assert rule.keys() == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smhd]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")


@pytest.mark.parametrize("alert", alerts.ALL, ids=lambda alert: alert.name)
def test_summaries_name_labels_that_the_alert_has(
    alert: alerts.Alert, exported: dict[str, Sample]
) -> None:
    named = set(re.findall(r"\{\{ \$labels\.(\w+) \}\}", alert.summary))
    for node in nodes(alert.when):
        if isinstance(node, promql.AggregateExpr) and node.modifier:
            assert named <= set(node.modifier.labels)
    for selector in selectors(alert.when):
        assert named <= exported[selector.name].labels | LABELS_OF_TARGETS


def test_rules_of_the_chart_link_to_the_page_when_told_where_it_is() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text("utf-8").lower()
    rule = only(render(MATRIX["all monitoring"]), "PrometheusRule", "octavo")
    for each in rule["spec"]["groups"][0]["rules"]:
        address, _, anchor = each["annotations"]["runbook_url"].partition("#")
        assert address == "https://docs.example/alerts.md"
        assert f"\n## {anchor}\n" in page
    plain = only(render(kinds=MONITORING), "PrometheusRule", "octavo")
    assert "runbook_url" not in plain["spec"]["groups"][0]["rules"][0]["annotations"]


def test_dashboards_are_where_the_sidecar_looks() -> None:
    objects = render(MATRIX["all monitoring"])
    for board in dashboards.ALL:
        found = only(objects, "ConfigMap", f"octavo-{board.name}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert found["metadata"]["annotations"] == {"grafana_folder": "octavo"}
        (content,) = found["data"].values()
        assert json.loads(content) == board.as_json()


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, ["--pod-monitor-interval=15s"]),
        ({"enabled": True}, ["--pod-monitor-interval=15s"]),
        (
            {"labels": {"release": "prometheus", "team": "a"}, "interval": "1m"},
            ["--pod-monitor-interval=1m", "--pod-monitor-labels=release=prometheus,team=a"],
        ),
        ({"enabled": False, "labels": {"release": "x"}}, ["--no-pod-monitors"]),
    ],
)
def test_engines_are_watched_as_the_rest_is(settings: dict[str, object], wanted: list[str]) -> None:
    args = pod_of(render({"monitoring": {"podMonitors": settings}}), "operator").args
    assert [argument for argument in args if "pod-monitor" in argument] == wanted


def test_monitors_look_at_ports_that_pods_have() -> None:
    objects = render(MATRIX["all monitoring"])
    for component in ("operator", "gateway"):
        monitor = only(objects, "PodMonitor", f"octavo-{component}")
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        spec = only(objects, "Deployment", f"octavo-{component}")["spec"]
        assert monitor["spec"]["selector"] == spec["selector"]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = spec["template"]["spec"]["containers"][0]["ports"]
        assert endpoint["port"] in [port["name"] for port in ports]
