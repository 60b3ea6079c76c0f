"""The operator's Prometheus metrics: names, labels, buckets, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_RECONCILE_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0)


class OperatorMetrics:
    """All metrics of one operator.

    Args:
        registry: where they are registered.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.reconciles = Counter(
            "octavo_operator_reconciles",
            "Looks at an InferenceService, by what came of them.",
            ["result"],
            registry=registry,
        )
        self.reconcile_s = Histogram(
            "octavo_operator_reconcile_seconds",
            "One look at an InferenceService, its writes included.",
            buckets=_RECONCILE_S,
            registry=registry,
        )
        self.writes = Counter(
            "octavo_operator_writes",
            "Writes to the API server, by kind of object and outcome.",
            ["kind", "verb", "outcome"],
            registry=registry,
        )
        self.missed = Counter(
            "octavo_operator_missed_changes",
            "InferenceServices whose changes the listing found and no watch had told of.",
            registry=registry,
        )
        self.watch_restarts = Counter(
            "octavo_operator_watch_restarts", "Failures of the watching as a whole.",
            registry=registry,
        )  # fmt: skip

    def observe(self, name: str, help: str, read: Callable[[], float]) -> None:
        """Adds a gauge that is read when it is scraped."""
        self.registry.register(_Read(name, help, (), lambda: {(): read()}))

    def observe_by(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        read: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        """Adds a gauge with labels that is read when it is scraped."""
        self.registry.register(_Read(name, help, labels, read))


class _Read(Collector):
    """A gauge whose values are asked for at each scrape, so that none outlives its object."""

    def __init__(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        read: Callable[[], Mapping[tuple[str, ...], float]],
    ) -> None:
        self._name = f"octavo_operator_{name}"
        self._help = help
        self._labels = labels
        self._values = read

    def describe(self) -> Iterable[Metric]:
        """Names the gauge without reading it."""
        return [GaugeMetricFamily(self._name, self._help, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Reads the gauge."""
        family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values().items():
            family.add_metric(labels, value)
        return [family]
