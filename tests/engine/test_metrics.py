"""Metrics under the names that dashboards of this field read."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.engine.harness import Engine, generate

from octavo.engine.metrics import EngineMetrics
from octavo.engine.request import FinishReason


@pytest.mark.parametrize(
    "name",
    [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:num_requests_waiting_by_reason",
        "vllm:admission_rejections_total",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "vllm:gpu_prefix_cache_hit_rate",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:prompt_tokens_cached_total",
        "vllm:prompt_tokens_by_source_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:time_per_output_token_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:request_prefill_time_seconds_bucket",
        "vllm:request_decode_time_seconds_bucket",
        "vllm:request_prompt_tokens_bucket",
        "vllm:request_generation_tokens_bucket",
        "vllm:iteration_tokens_total_bucket",
        "octavo:kv_blocks_cached_free",
        "octavo:kv_blocks_free",
        "octavo:kv_blocks_pinned",
        "octavo:prompt_tokens_written_total",
    ],
)
def test_66_names_of_the_field_are_exported(name: str) -> None:
    registry = CollectorRegistry()
    EngineMetrics(registry, "m").finished(FinishReason.STOP)
    assert f"{name}{{" in generate_latest(registry).decode()


def test_66_blocks_that_are_cached_but_unused_do_not_count_as_used() -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "m")
    metrics.observe_cache(total=100, free=20, cached_free=70, queries=10, hits=4)
    metrics.observe_cache(total=100, free=20, cached_free=70, pinned=8, queries=30, hits=9)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"model_name": "m"})

    assert value("vllm:kv_cache_usage_perc") == pytest.approx(0.1)
    assert value("octavo:kv_blocks_cached_free") == 70
    assert value("octavo:kv_blocks_pinned") == 8
    assert (value("vllm:prefix_cache_queries_total"), value("vllm:prefix_cache_hits_total")) == (
        30,
        9,
    )


def test_tokens_and_reasons_are_counted_where_they_happen() -> None:
    engine = Engine()
    engine.submit(generate([1] * 20, max_tokens=5))
    engine.run()
    sample = engine.core.metrics.registry.get_sample_value
    labels = {"model_name": "fake"}
    assert sample("vllm:prompt_tokens_total", labels) == 20
    assert sample("octavo:prompt_tokens_written_total", labels) == 16
    assert sample("vllm:generation_tokens_total", labels) == 5
    assert sample("vllm:inter_token_latency_seconds_count", labels) == 4
    assert sample("vllm:request_success_total", {**labels, "finished_reason": "length"}) == 1
    engine.submit(generate([1] * 20, max_tokens=1))
    engine.run()
    for source, count in (("local_compute", 24), ("local_cache_hit", 16)):
        found = sample("vllm:prompt_tokens_by_source_total", {**labels, "source": source})
        assert found == count
