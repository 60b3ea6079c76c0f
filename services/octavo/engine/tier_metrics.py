"""The Prometheus metrics of what lies below the pool: preemptions by mode, host, disk."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from octavo.engine.host_tier import TierCounts


class TierMetrics:
    """Part of `EngineMetrics`.

    Args:
        registry: where they are registered.
        model_name: the value of the `model_name` label.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._model_name = model_name
        self._preemptions = Counter(
            "octavo:preemptions",
            "Requests that lost their blocks, by what became of what they had computed.",
            ["model_name", "mode"],
            registry=registry,
        )
        self._totals = {
            name: Counter(f"octavo:{name}", text, ["model_name"], registry=registry)
            for name, text in {
                "host_cache_hits": "Tokens found in host memory, not in the pool.",
                "host_blocks_offloaded": "Blocks copied to host memory.",
                "host_blocks_restored": "Blocks copied back from host memory.",
                "disk_blocks_written": "Blocks written to disk.",
                "disk_blocks_read": "Blocks read back from disk.",
                "disk_failures": "Writes and reads of the disk that failed or were dropped.",
            }.items()
        }
        self._gauges = {
            name: Gauge(f"octavo:{name}", text, ["model_name"], registry=registry)
            for name, text in {
                "host_blocks": "Blocks that host memory has room for.",
                "host_blocks_cached": "Hittable blocks in host memory.",
                "host_blocks_used": "Blocks in host memory that swapped requests hold.",
                "disk_blocks": "Blocks on disk.",
            }.items()
        }
        self._seen: dict[str, int] = {}

    def observe(self, counts: TierCounts, *, preemptions: int, swaps: int, host_hits: int) -> None:
        """Advances the counters, all of which count from the start, and sets the gauges."""
        for mode, total in {"swap": swaps, "recompute": preemptions - swaps}.items():
            self._advance(self._preemptions.labels(self._model_name, mode), mode, total)
        totals = {
            "host_cache_hits": host_hits,
            "host_blocks_offloaded": counts.offloaded,
            "host_blocks_restored": counts.restored,
            "disk_blocks_written": counts.written,
            "disk_blocks_read": counts.read,
            "disk_failures": counts.disk_failed,
        }
        for name, total in totals.items():
            self._advance(self._totals[name].labels(self._model_name), name, total)
        gauges = {
            "host_blocks": counts.slots,
            "host_blocks_cached": counts.kept,
            "host_blocks_used": counts.used,
            "disk_blocks": counts.on_disk,
        }
        for name, value in gauges.items():
            self._gauges[name].labels(self._model_name).set(value)

    def _advance(self, counter: Counter, name: str, total: int) -> None:
        counter.inc(total - self._seen.get(name, 0))
        self._seen[name] = total
