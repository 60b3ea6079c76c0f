from prometheus_client import CollectorRegistry, generate_latest

from octavo.gateway.metrics import MAX_PARAM_LABELS, GatewayMetrics


def test_names_of_callers_cannot_grow_the_metrics_without_bound() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    for i in range(1000):
        metrics.ignored_param(f"field_{i}")
    sample = metrics.registry.get_sample_value
    name = "octavo_gateway_ignored_parameters_total"
    assert sample(name, {"param": "field_0"}) == 1
    assert sample(name, {"param": "other"}) == 1000 - MAX_PARAM_LABELS
    text = generate_latest(metrics.registry).decode()
    assert text.count("ignored_parameters_total{") == MAX_PARAM_LABELS + 1


def test_gauges_are_read_when_scraped() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    states = {"ready": 1}
    metrics.observe_engines(lambda: states)
    metrics.observe("requests_in_flight", "Requests that run.", lambda: len(states))
    states["ready"] = 3
    sample = metrics.registry.get_sample_value
    assert sample("octavo_gateway_engines", {"state": "ready"}) == 3
    assert sample("octavo_gateway_engines", {"state": "suspected"}) == 0
    assert sample("octavo_gateway_requests_in_flight") == 1


def test_two_gateways_in_one_process_do_not_share_counters() -> None:
    first, second = (GatewayMetrics(CollectorRegistry()) for _ in range(2))
    first.dropped_delta("late")
    name, labels = "octavo_gateway_dropped_deltas_total", {"reason": "late"}
    assert first.registry.get_sample_value(name, labels) == 1
    assert second.registry.get_sample_value(name, labels) is None
