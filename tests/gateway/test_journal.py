from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind
from prometheus_client import CollectorRegistry

from octavo.gateway.journal import Journal
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.records import Record, Records
from octavo.gateway.routing import Route
from octavo.runtime.env import SystemEnv
from octavo.v1 import engine_pb2
from octavo.v1.errors import QUEUE_FULL, OctavoError

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROUTE = Route(engine="e1", hit_tokens=16, prompt_tokens=40, seconds=0.02)


class Bench:
    """A journal whose records, metrics, spans and log lines can be read."""

    def __init__(self, *, traced: bool = True, traceparent: str = "") -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        tracer = (provider if traced else NoOpTracerProvider()).get_tracer("test")
        self.metrics = GatewayMetrics(CollectorRegistry())
        self.records = Records(None, metrics=self.metrics, ttl_s=60)
        request = engine_pb2.GenerateRequest(max_tokens=9)
        request.sampling.temperature = 0.5
        request.token_ids.ids.extend([104, 105])
        self.record = Record(
            id="a" * 32,
            state="accepted",
            model="tiny",
            endpoint="chat",
            prompt_tokens=40,
            ignored=["user"],
            accepted_at=1.0,
        )
        self.journal = Journal(
            self.record,
            request,
            traceparent=traceparent,
            records=self.records,
            metrics=self.metrics,
            tracer=tracer,
            env=SystemEnv(),
        )

    @property
    def span(self) -> ReadableSpan:
        [span] = self.exporter.get_finished_spans()
        return span

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"octavo_gateway_{name}", labels)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as captured:
        yield captured


def finish(bench: Bench) -> None:
    bench.journal.routed(ROUTE, attempts=1, deaths=0)
    bench.journal.delta()
    bench.journal.delta()
    usage = engine_pb2.Usage(prompt_tokens=40, output_tokens=2, cached_tokens=32, queue_ms=1.5)
    bench.journal.finished(usage, ["stop"])


def test_a_finished_request_is_told_alike_to_record_metrics_span_and_log(
    lines: list[dict[str, Any]],
) -> None:
    bench = Bench()
    finish(bench)
    record = bench.record
    assert (record.state, record.cached_tokens, record.queue_ms) == ("finished", 32, 1.5)
    assert record.accepted_at < record.routed_at <= record.first_token_at <= record.ended_at
    labels = {"model": "tiny", "endpoint": "chat", "status": "200", "finish": "stop"}
    assert bench.metric("requests_total", **labels) == 1
    assert bench.metric("predicted_hit_tokens_total", engine="e1") == 16
    assert bench.metric("actual_hit_tokens_total", engine="e1") == 32
    assert bench.metric("ignored_parameters_total", param="user") == 1
    assert bench.metric("time_to_first_token_seconds_count", model="tiny") == 1
    assert bench.metric("inter_token_latency_seconds_count", model="tiny") == 1
    attributes = dict(bench.span.attributes or {})
    assert bench.span.name == "chat tiny"
    assert bench.span.kind is SpanKind.CLIENT
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == "tiny"
    assert attributes["gen_ai.request.max_tokens"] == 9
    assert attributes["gen_ai.usage.input_tokens"] == 40
    assert attributes["gen_ai.usage.output_tokens"] == 2
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    [line] = [one for one in lines if one["event"] == "request_finished"]
    assert line["id"] == record.id
    assert line["output_tokens"] == 2
    assert line["trace_id"] == record.trace_id != ""


def test_only_the_first_end_counts(lines: list[dict[str, Any]]) -> None:
    bench = Bench()
    finish(bench)
    bench.journal.cancelled(output_tokens=0)
    bench.journal.failed(OctavoError(QUEUE_FULL, queued=1, limit=1, unit="x"), output_tokens=0)
    assert bench.record.state == "finished"
    assert len([one for one in lines if one["event"] == "request_finished"]) == 1


def test_a_failure_has_its_code_everywhere(lines: list[dict[str, Any]]) -> None:
    bench = Bench()
    bench.journal.failed(OctavoError(QUEUE_FULL, queued=1, limit=1, unit="x"), output_tokens=0)
    assert (bench.record.state, bench.record.error) == ("failed", "OCT-2002")
    labels = {"model": "tiny", "endpoint": "chat", "status": "503", "finish": "OCT-2002"}
    assert bench.metric("requests_total", **labels) == 1
    assert not bench.span.status.is_ok
    assert dict(bench.span.attributes or {})["error.type"] == "queue_full"
    assert lines[-1]["finish"] == "OCT-2002"


def test_the_callers_trace_goes_on_to_the_engine() -> None:
    bench = Bench(traceparent=PARENT)
    version, trace_id, span_id, _ = bench.journal.traceparent.split("-")
    assert version == "00"
    assert trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert span_id != "b7ad6b7169203331"
    bench.journal.cancelled(output_tokens=0)
    assert bench.span.parent is not None
    assert f"{bench.span.parent.span_id:016x}" == "b7ad6b7169203331"


def test_without_an_exporter_the_callers_trace_passes_through() -> None:
    bench = Bench(traced=False, traceparent=PARENT)
    assert bench.journal.traceparent == PARENT
    finish(bench)
    assert bench.record.trace_id == "0af7651916cd43dd8448eb211c80319c"


def test_without_any_trace_nothing_is_sent() -> None:
    bench = Bench(traced=False)
    assert bench.journal.traceparent == ""
    finish(bench)
    assert bench.record.trace_id == ""


@pytest.mark.parametrize("senseless", ["", "garbage", "00-" + "0" * 32 + "-1-01"])
def test_a_senseless_trace_context_starts_a_new_trace(senseless: str) -> None:
    bench = Bench(traceparent=senseless)
    assert bench.journal.traceparent.startswith("00-")
    finish(bench)
