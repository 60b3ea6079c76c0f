"""The engine's Prometheus metrics: counters and histograms by name, nothing else.

vLLM's names are kept, the present and the former ones, so that existing dashboards work; what only
this engine has is called octavo:*. A block counts as used while a request or a pin holds it: cached
blocks that nobody holds have a gauge of their own, because 0 % used and a warm cache go together.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from octavo.engine.request import FinishReason, Request
from octavo.engine.tier_metrics import TierMetrics

_LATENCY = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
            10.0, 20.0, 40.0, 80.0)  # fmt: skip
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000)
_FINISHED = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "abort",
    FinishReason.ERROR: "error",
}


class EngineMetrics:
    """All metrics of one engine.

    Args:
        registry: where they are registered.
        model_name: the value of vLLM's `model_name` label.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self.registry = registry
        self._model_name = model_name
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens of requests begun.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.cached_tokens = self._counter(
            "vllm:prompt_tokens_cached", "Prompt tokens skipped thanks to the prefix cache."
        )
        by_source = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens of requests begun, by where they came from.",
            ["model_name", "source"],
            registry=registry,
        )
        self._computed_here = by_source.labels(model_name, "local_compute")
        self._found_here = by_source.labels(model_name, "local_cache_hit")
        self.written_tokens = self._counter(
            "octavo:prompt_tokens_written", "Prompt tokens computed and left in the prefix cache."
        )
        self.cache_queries = self._counter("vllm:prefix_cache_queries", "Tokens looked up.")
        self.cache_hits = self._counter("vllm:prefix_cache_hits", "Tokens found.")
        self.preempted_hits = self._counter(
            "octavo:prefix_cache_preempted_hits", "Tokens found by requests that start over."
        )
        self.preemptions = self._counter("vllm:num_preemptions", "Requests that lost their blocks.")
        self.steps_failed = self._counter("octavo:steps_failed", "Steps that raised.")
        self.rejections = self._counter(
            "vllm:admission_rejections", "Requests refused because the queue was full."
        )
        self.slow_consumers = self._counter(
            "octavo:slow_consumers", "Sessions ended because the gateway did not read."
        )
        self._success = Counter(
            "vllm:request_success",
            "Choices that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self.ttft = self._histogram(
            "vllm:time_to_first_token_seconds", "Arrival to first token.", _LATENCY
        )
        self._inter_token = [
            self._histogram(name, "Between the tokens of a request.", _LATENCY)
            for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
        ]
        self.e2e = self._histogram(
            "vllm:e2e_request_latency_seconds", "Arrival to last token.", _LATENCY
        )
        self.queue_time = self._histogram(
            "vllm:request_queue_time_seconds", "Arrival to first step.", _LATENCY
        )
        self.prefill_time = self._histogram(
            "vllm:request_prefill_time_seconds", "First step to first token.", _LATENCY
        )
        self.decode_time = self._histogram(
            "vllm:request_decode_time_seconds", "First to last token.", _LATENCY
        )
        self.prompt_length = self._histogram(
            "vllm:request_prompt_tokens", "Prompt tokens of a request.", _TOKENS
        )
        self.output_length = self._histogram(
            "vllm:request_generation_tokens", "Output tokens of a choice.", _TOKENS
        )
        self.iteration_tokens = self._histogram(
            "vllm:iteration_tokens_total", "Tokens computed in a step.", _TOKENS
        )
        self.step_time = self._histogram("octavo:step_seconds", "Time of a step.", _LATENCY)
        self.running = self._gauge("vllm:num_requests_running", "Choices that hold blocks.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests in the queue.")
        self._waiting_for_room = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests in the queue, by what they wait for.",
            ["model_name", "reason"],
            registry=registry,
        ).labels(model_name, "capacity")
        self._usage = [
            self._gauge(name, "Share of the KV blocks in use by requests or pinned.")
            for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
        ]
        self.cached_free = self._gauge("octavo:kv_blocks_cached_free", "Unused but hittable.")
        self.free = self._gauge("octavo:kv_blocks_free", "Blocks that hold nothing.")
        self.pinned = self._gauge("octavo:kv_blocks_pinned", "Kept for pinned prefixes.")
        self.hit_rate = self._gauge(
            "vllm:gpu_prefix_cache_hit_rate", "Former name: hits over queries since the start."
        )
        self.tiers = TierMetrics(registry, model_name)
        self._seen = (0, 0, 0)
        self._preemptions = 0

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["model_name"], registry=self.registry).labels(self._model_name)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        metric = Histogram(name, text, ["model_name"], buckets=buckets, registry=self.registry)
        return metric.labels(self._model_name)

    def observe_step(self, *, tokens: int, seconds: float) -> None:
        """Records one step."""
        self.iteration_tokens.observe(tokens)
        self.step_time.observe(seconds)

    def observe_first_token(self, request: Request, now: float) -> None:
        """Records the times of a request up to its first token."""
        begun = request.first_scheduled if request.first_scheduled is not None else request.queued
        self.ttft.observe(now - request.queued)
        self.queue_time.observe(begun - request.queued)
        self.prefill_time.observe(now - begun)
        self.prompt_tokens.inc(len(request.prompt_ids))
        self.cached_tokens.inc(request.num_cached)
        self._found_here.inc(request.num_cached)
        self._computed_here.inc(len(request.prompt_ids) - request.num_cached)
        self.prompt_length.observe(len(request.prompt_ids))

    def observe_gap(self, seconds: float) -> None:
        """Records the time between two tokens, under its present and its former name."""
        for histogram in self._inter_token:
            histogram.observe(seconds)

    def observe_end(self, request: Request, now: float) -> None:
        """Records the end of a request's last choice."""
        self.e2e.observe(now - request.queued)
        self.written_tokens.inc(request.num_written)
        if request.first_token is not None:
            self.decode_time.observe(now - request.first_token)
        self.output_length.observe(len(request.output_ids))

    def finished(self, reason: FinishReason) -> None:
        """Counts a choice that ended."""
        self._success.labels(self._model_name, _FINISHED[reason]).inc()

    def observe_queue(self, *, running: int, waiting: int, preemptions: int) -> None:
        """Sets the gauges of the queue; `preemptions` counts from the start."""
        self.running.set(running)
        self.waiting.set(waiting)
        self._waiting_for_room.set(waiting)
        self.preemptions.inc(preemptions - self._preemptions)
        self._preemptions = preemptions

    def observe_cache(
        self,
        *,
        total: int,
        free: int,
        cached_free: int,
        pinned: int = 0,
        queries: int,
        hits: int,
        preempted_hits: int = 0,
    ) -> None:
        """Sets the gauges of the pool and advances the counters of the prefix cache.

        Args:
            total: allocatable blocks.
            free: blocks that hold nothing.
            cached_free: unused but hittable blocks.
            pinned: blocks that are never evicted; in use or not, they count as used.
            queries: tokens looked up since the start.
            hits: tokens found since the start, not counting those of preempted requests.
            preempted_hits: tokens that preempted requests found again since the start.
        """
        for gauge in self._usage:
            gauge.set((total - free - cached_free) / total if total else 0.0)
        self.free.set(free)
        self.cached_free.set(cached_free)
        self.pinned.set(pinned)
        self.cache_queries.inc(queries - self._seen[0])
        self.cache_hits.inc(hits - self._seen[1])
        self.preempted_hits.inc(preempted_hits - self._seen[2])
        self._seen = (queries, hits, preempted_hits)
        self.hit_rate.set(hits / queries if queries else 0.0)
