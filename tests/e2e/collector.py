"""A collector of traces: what is told to it over OTLP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from tests.bounds import EVENTUALLY_S

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
"""Header of a caller that has begun a trace."""


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps the spans of the caller's trace, by the service that told them."""

    def __init__(self) -> None:
        self.spans: dict[str, trace_pb2.Span] = {}
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]

    def start(self, address: str) -> int:
        """Listens; returns the port."""
        port = self._server.add_insecure_port(address)
        self._server.start()
        return port

    def stop(self) -> None:
        """Listens no more."""
        self._server.stop(None)

    def Export(self, request: Any, context: Any) -> trace_service_pb2.ExportTraceServiceResponse:  # noqa: N802
        for resource in request.resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                if span.trace_id.hex() == TRACE:
                    self.spans[names["service.name"]] = span
        return trace_service_pb2.ExportTraceServiceResponse()

    def both(self, timeout_s: float = EVENTUALLY_S) -> Mapping[str, trace_pb2.Span]:
        """Returns the spans when gateway and engine have told theirs, or the time is over."""
        deadline = time.monotonic() + timeout_s
        while len(self.spans) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.spans


def check(spans: Mapping[str, trace_pb2.Span]) -> None:
    """Asserts that gateway and engine told one trace, which is the caller's."""
    assert set(spans) == {"octavo-gateway", "octavo-engine"}
    gateway, engine = spans["octavo-gateway"], spans["octavo-engine"]
    assert gateway.parent_span_id.hex() == PARENT
    assert engine.parent_span_id == gateway.span_id
    keys = {a.key for a in gateway.attributes}
    assert {"gen_ai.operation.name", "gen_ai.request.model", "gen_ai.usage.output_tokens"} <= keys
