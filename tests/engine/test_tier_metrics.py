from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo.engine.host_tier import TierCounts
from octavo.engine.tier_metrics import TierMetrics


def test_totals_advance_the_counters_and_preemptions_are_told_by_mode() -> None:
    registry = CollectorRegistry()
    metrics = TierMetrics(registry, "m")

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"octavo:{name}", {"model_name": "m", **labels})

    first = TierCounts(slots=9, kept=4, used=2, offloaded=7, restored=3)
    metrics.observe(first, preemptions=5, swaps=2, host_hits=32)
    second = TierCounts(
        slots=9,
        kept=5,
        used=0,
        offloaded=9,
        restored=3,
        on_disk=8,
        written=9,
        read=1,
        disk_failed=2,
    )
    metrics.observe(second, preemptions=6, swaps=2, host_hits=48)
    assert value("preemptions_total", mode="swap") == 2
    assert value("preemptions_total", mode="recompute") == 4
    assert value("host_cache_hits_total") == 48
    assert value("host_blocks_offloaded_total") == 9
    assert value("host_blocks_restored_total") == 3
    assert value("disk_blocks_written_total") == 9
    assert (value("disk_blocks_read_total"), value("disk_failures_total")) == (1, 2)
    assert value("disk_blocks") == 8
    assert (value("host_blocks"), value("host_blocks_cached"), value("host_blocks_used")) == (
        9,
        5,
        0,
    )
