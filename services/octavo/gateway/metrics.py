"""The gateway's Prometheus metrics: names, labels, buckets, nothing else.

Labels take only values that the operator chose or that the catalogue lists, never a caller's text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

ENGINE_STATES = ("ready", "loading", "warming", "draining", "failed", "suspected", "unreachable")

MAX_PARAM_LABELS = 64
"""Distinct ignored fields that get a label of their own; callers can send any name."""


class GatewayMetrics:
    """All metrics of one gateway.

    Args:
        registry: where they are registered; a fresh one for each gateway.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = self._counter(
            "requests",
            "Requests ended, by HTTP status and finish reason or error code.",
            "model",
            "endpoint",
            "status",
            "finish",
        )
        self.ttft = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", _LATENCY_S
        )
        self.itl = self._histogram("inter_token_latency_seconds", "Gap between deltas.", _GAP_S)
        self.e2e = self._histogram("request_seconds", "Arrival to the last token.", _LATENCY_S)
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens.", "model")
        self.cached_tokens = self._counter(
            "cached_tokens", "Prompt tokens that the engines did not compute.", "model"
        )
        self.output_tokens = self._counter("output_tokens", "Tokens generated.", "model")
        self.routes = self._counter("routes", "Routing decisions.", "engine")
        self.predicted_hits = self._counter(
            "predicted_hit_tokens", "Prompt tokens that the router expected to be cached.", "engine"
        )
        self.actual_hits = self._counter(
            "actual_hit_tokens", "Prompt tokens of the same requests that were cached.", "engine"
        )
        self.retries = self._counter("retries", "Further attempts, by cause.", "reason")
        self.resume = Histogram(
            "octavo_gateway_resume_seconds",
            "Loss of an engine to the next delta of an answer that it had.",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.dropped_deltas = self._counter(
            "dropped_deltas", "Deltas not delivered: late, repeated, out of order.", "reason"
        )
        self.records_dropped = self._counter(
            "records_dropped", "Request records lost because the store was away too long."
        )
        self.records_unreadable = self._counter(
            "records_unreadable", "Stored records that are damaged or of another version."
        )
        self.ignored = self._counter(
            "ignored_parameters", "Harmless request fields without effect.", "param"
        )
        self.aborts = self._counter(
            "client_aborts", "Requests whose client left before the end.", "endpoint"
        )
        self.shed = self._counter(
            "requests_shed", "Requests ended because memory ran out, by what they held.", "kind"
        )
        self.loop_lag = Histogram(
            "octavo_gateway_loop_lag_seconds",
            "How late a timer of the event loop fires.",
            buckets=_LAG_S,
            registry=registry,
        )
        self.keyed = self._counter(
            "idempotent_requests",
            "Requests with an idempotency key, by what became of them or of their entry.",
            "outcome",
        )
        self.held = self._counter(
            "held",
            "Requests that waited for the first engine of a service, by what became of them.",
            "outcome",
        )
        self._params: set[str] = set()

    def observe(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Adds a gauge that is read when it is scraped."""
        Gauge(f"octavo_gateway_{name}", help, registry=self.registry).set_function(value)

    def observe_engines(self, states: Callable[[], Mapping[str, int]]) -> None:
        """Adds the number of engines by state, read when it is scraped."""
        gauge = Gauge(
            "octavo_gateway_engines", "Engines by state.", ["state"], registry=self.registry
        )
        for state in ENGINE_STATES:
            gauge.labels(state).set_function(partial(_count, states, state))

    def dropped_delta(self, reason: str) -> None:
        """Counts a delta that was not delivered."""
        self.dropped_deltas.labels(reason).inc()

    def ignored_param(self, name: str) -> None:
        """Counts an ignored field under its name, or under "other" when there are too many."""
        if name not in self._params and len(self._params) >= MAX_PARAM_LABELS:
            name = "other"
        self._params.add(name)
        self.ignored.labels(name).inc()

    def forget_engine(self, name: str) -> None:
        """Drops the figures of an engine that is gone."""
        for counter in (self.routes, self.predicted_hits, self.actual_hits):
            counter.remove_by_labels({"engine": name})

    def forget_model(self, name: str) -> None:
        """Drops the figures of a name under which nothing is served any more."""
        counters = (self.requests, self.prompt_tokens, self.cached_tokens, self.output_tokens)
        for metric in (*counters, self.ttft, self.itl, self.e2e):
            metric.remove_by_labels({"model": name})

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"octavo_gateway_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(
            f"octavo_gateway_{name}", help, ["model"], buckets=buckets, registry=self.registry
        )


def _count(states: Callable[[], Mapping[str, int]], state: str) -> float:
    return states().get(state, 0)
