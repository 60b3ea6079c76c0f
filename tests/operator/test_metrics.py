from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from octavo.operator.metrics import OperatorMetrics


def test_gauges_are_read_when_they_are_scraped() -> None:
    metrics = OperatorMetrics(CollectorRegistry())
    values: dict[tuple[str, ...], float] = {("shop", "chat"): 1.0, ("shop", "embed"): 0.0}
    metrics.observe("waiting", "What waits.", lambda: len(values))
    metrics.observe_by("service_ready", "Ready.", ("namespace", "name"), lambda: values)
    text = generate_latest(metrics.registry).decode()
    assert "octavo_operator_waiting 2.0" in text
    assert 'octavo_operator_service_ready{name="chat",namespace="shop"} 1.0' in text
    del values["shop", "embed"]
    text = generate_latest(metrics.registry).decode()
    assert "octavo_operator_waiting 1.0" in text
    assert "embed" not in text, "a deleted service leaves no gauge"
