"""The engine's part of a trace: one span a request, child of the gateway's (GenAI attributes)."""

from __future__ import annotations

from opentelemetry import propagate, trace

from octavo.runtime.telemetry import tracer
from octavo.v1 import common_pb2, engine_pb2

_FINISH = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_ERROR: "error",
}

_Key = tuple[object, str, int]


class RequestSpans:
    """Open spans by (sink, request, attempt). Costs nothing for untraced requests."""

    def __init__(self) -> None:
        self._open: dict[_Key, trace.Span] = {}

    def begin(self, sink: object, proto: engine_pb2.GenerateRequest) -> None:
        """Opens the span of an accepted request that carries a trace context."""
        if not proto.traceparent:
            return
        context = propagate.extract({"traceparent": proto.traceparent})
        span = tracer().start_span(
            f"generate {proto.model}",
            context=context,
            kind=trace.SpanKind.SERVER,
            attributes={
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.model": proto.model,
                "octavo.attempt": proto.attempt,
            },
        )
        self._open[sink, proto.request_id, proto.attempt] = span

    def end(self, sink: object, delta: engine_pb2.Delta) -> None:
        """Closes the span with the request's usage."""
        span = self._open.pop((sink, delta.request_id, delta.attempt), None)
        if span is None:
            return
        usage = delta.usage
        span.set_attributes(
            {
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.response.finish_reasons": (_FINISH.get(delta.finish_reason, ""),),
                "octavo.usage.cached_tokens": usage.cached_tokens,
                "octavo.usage.cache_write_tokens": usage.cache_write_tokens,
                "octavo.queue_ms": usage.queue_ms,
                "octavo.prefill_ms": usage.prefill_ms,
                "octavo.decode_ms": usage.decode_ms,
                "octavo.preemptions": usage.preemptions,
                "octavo.swaps": usage.swaps,
            }
        )
        if delta.HasField("error"):
            span.set_status(trace.StatusCode.ERROR, delta.error.code)
        span.end()

    def abort(self, sink: object, request_id: str, attempt: int) -> None:
        """Closes the span of a cancelled attempt."""
        span = self._open.pop((sink, request_id, attempt), None)
        if span is not None:
            span.set_attribute("gen_ai.response.finish_reasons", ("abort",))
            span.end()

    def drop(self, sink: object) -> None:
        """Closes all spans of a sink that has gone."""
        for key in [k for k in self._open if k[0] == sink]:
            self.abort(sink, key[1], key[2])
