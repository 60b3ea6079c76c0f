"""One trace from the client through gateway and engine, told to a collector over OTLP."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from tests.serving import Serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans that it is told, with the name of their service."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802
        for resource in request.resource_spans:
            names = [
                a.value.string_value
                for a in resource.resource.attributes
                if a.key == "service.name"
            ]
            for scope in resource.scope_spans:
                self.spans += [(names[0], span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, int]]:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
    made = Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield made, port
    server.stop(None)


def test_gateway_and_engine_tell_one_trace(
    collector: tuple[Collector, int],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, port = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    serving = Serving(tmp_path_factory.mktemp("logs"))
    answer = httpx.post(
        f"{serving.url}/v1/chat/completions",
        json={"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
        headers={"traceparent": PARENT},
        timeout=60,
    )
    assert answer.status_code == 200
    deadline = time.monotonic() + 10
    while len(made.spans) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    serving.end(signal.SIGTERM)
    by_service = dict(made.spans)
    assert set(by_service) == {"octavo-gateway", "octavo-engine"}
    gateway, engine = by_service["octavo-gateway"], by_service["octavo-engine"]
    assert {s.trace_id.hex() for s in by_service.values()} == {PARENT.split("-")[1]}
    assert gateway.parent_span_id.hex() == PARENT.split("-")[2]
    assert engine.parent_span_id == gateway.span_id
    keys = {a.key for a in gateway.attributes}
    assert {"gen_ai.operation.name", "gen_ai.request.model", "gen_ai.usage.output_tokens"} <= keys
