from __future__ import annotations

from dataclasses import replace

import pytest
from tests.operator.building import INSTALLATION, from_hub, service

from octavo.operator import desired_network, names
from octavo.operator.kinds import Manifest


def test_gateways_find_engines_before_they_are_ready() -> None:
    spec = desired_network.service(service())["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"] == names.selector("llama")
    ports = {p["name"]: (p["port"], p["targetPort"]) for p in spec["ports"]}
    assert ports == {
        "grpc": (50051, "grpc"),
        "grpcs": (50052, "grpcs"),
        "status": (9091, "status"),
    }


def test_only_gateways_and_monitoring_reach_engines_and_engines_reach_nobody() -> None:
    spec = desired_network.engine_policy(service(), INSTALLATION)["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec
    assert spec["ingress"] == [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "octavo"}},
                    "podSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}},
                }
            ],
            "ports": [{"port": 50051, "protocol": "TCP"}],
        },
        {
            "from": [
                {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                    }
                }
            ],
            "ports": [{"port": 9091, "protocol": "TCP"}],
        },
    ]


def test_without_a_gateway_pods_of_the_namespace_are_the_clients() -> None:
    alone = replace(INSTALLATION, gateway_namespace="", monitoring_namespaces=())
    spec = desired_network.engine_policy(service(), alone)["spec"]
    assert spec["ingress"] == [
        {"from": [{"podSelector": {}}], "ports": [{"port": 50051, "protocol": "TCP"}]}
    ]


ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
ELSEWHERE = {"name": ENDPOINT, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}


@pytest.mark.parametrize(
    ("variable", "ports"),
    [
        ({"name": ENDPOINT, "value": "http://collector:4317"}, {4317}),
        ({"name": ENDPOINT, "value": "http://collector:14317/"}, {14317}),
        ({"name": ENDPOINT, "value": "collector.otel:55680"}, {55680}),
        ({"name": ENDPOINT, "value": "http://$(HOST):9317"}, {9317}),
        ({"name": ENDPOINT, "value": "https://collector.example"}, {443}),
        ({"name": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "value": "http://[::1]:8317"}, {8317}),
        ({"name": ENDPOINT, "value": "http://collector:$(PORT)"}, {4317, 4318}),
        ({"name": "OTEL_EXPORTER_OTLP_HEADERS", "value": "a=b:1"}, {4317, 4318}),
        (ELSEWHERE, {4317, 4318}),
    ],
    ids=lambda given: str(given.get("value", given)) if isinstance(given, dict) else "",
)
def test_an_engine_that_sends_traces_reaches_dns_and_its_collector(
    variable: Manifest, ports: set[int]
) -> None:
    wanted = service(engine={"env": [{"name": "A", "value": "http://a:1"}, variable]})
    (rule,) = desired_network.engine_policy(wanted, INSTALLATION)["spec"]["egress"]
    assert {p["port"] for p in rule["ports"] if p["protocol"] == "UDP"} == {53, 5353}
    assert {p["port"] for p in rule["ports"] if p["protocol"] == "TCP"} == {53, 5353} | ports


def test_the_loader_reaches_its_hub_and_is_reached_by_nobody() -> None:
    spec = desired_network.loader_policy(service(**from_hub()))["spec"]
    assert spec["podSelector"] == {"matchLabels": names.selector("llama", "loader")}
    assert spec["egress"] == [{}]
    assert "ingress" not in spec
    assert "Ingress" in spec["policyTypes"]


def test_one_engine_at_a_time_may_be_evicted_and_a_broken_one_always() -> None:
    spec = desired_network.disruption_budget(service(replicas=1))["spec"]
    assert spec == {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector("llama")},
    }


def test_the_monitor_reads_the_status_port() -> None:
    spec = desired_network.pod_monitor(service(), INSTALLATION)["spec"]
    assert spec["podMetricsEndpoints"] == [{"port": "status", "path": "/metrics"}]


def test_the_monitor_has_the_labels_by_which_prometheus_selects_and_its_interval() -> None:
    stolen = {"release": "prometheus", names.SERVICE_LABEL: "another"}
    given = replace(INSTALLATION, pod_monitor_labels=stolen, pod_monitor_interval="1m")
    monitor = desired_network.pod_monitor(service(), given)
    assert monitor["metadata"]["labels"] == {
        "release": "prometheus",
        **names.labels("llama", names.ENGINE),
    }
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["interval"] == "1m"
