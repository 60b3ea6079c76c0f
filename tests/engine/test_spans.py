"""The engine's span is a child of the caller's and carries the request's usage."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from tests.engine.harness import generate

from octavo.engine import spans as module
from octavo.engine.spans import RequestSpans
from octavo.v1 import common_pb2, engine_pb2

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))

    def tracer() -> Tracer:
        return provider.get_tracer("test")

    monkeypatch.setattr(module, "tracer", tracer)
    return exporter


def test_a_traced_request_has_one_span_under_its_parent(exporter: InMemorySpanExporter) -> None:
    spans, sink = RequestSpans(), object()
    spans.begin(sink, generate([1], model="m", traceparent=PARENT))
    delta = engine_pb2.Delta(request_id="r", finish_reason=common_pb2.FINISH_REASON_STOP)
    delta.usage.prompt_tokens, delta.usage.cached_tokens = 7, 5
    spans.end(sink, delta)
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert span.attributes["octavo.usage.cached_tokens"] == 5
    assert span.attributes["gen_ai.response.finish_reasons"] == ("stop",)


def test_untraced_requests_have_none_and_gone_sinks_leave_none_open(
    exporter: InMemorySpanExporter,
) -> None:
    spans, sink = RequestSpans(), object()
    spans.begin(sink, generate([1]))
    spans.end(sink, engine_pb2.Delta(request_id="r"))
    assert exporter.get_finished_spans() == ()
    spans.begin(sink, generate([1], traceparent=PARENT))
    spans.drop(sink)
    assert len(exporter.get_finished_spans()) == 1
