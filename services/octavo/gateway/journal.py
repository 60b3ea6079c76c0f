"""The story of one request, told once to record, metrics, trace and log.

Every request ends in exactly one of finished, failed and cancelled; later calls change nothing.
Never holds a word of prompt or answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.records import Record, Records, RouteNote, State
from octavo.gateway.routing import Route
from octavo.runtime.env import Env
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import OctavoError
from octavo.v1.validation import choices_of

log = structlog.get_logger(__name__)

CLIENT_CLOSED = "499"
"""Status under which requests are counted whose client left."""

_OPERATIONS = {"chat": "chat", "completions": "text_completion"}
_PROPAGATOR = TraceContextTextMapPropagator()

FINISH_WORDS: Mapping[int, str] = {
    common_pb2.FINISH_REASON_STOP: "stop",
    common_pb2.FINISH_REASON_LENGTH: "length",
    common_pb2.FINISH_REASON_ABORT: "abort",
    common_pb2.FINISH_REASON_ERROR: "error",
}


class Journal:
    """What happened to one request so far.

    Args:
        record: new, in state accepted.
        request: for the attributes of the span.
        traceparent: the caller's trace context; empty starts a trace.
    """

    def __init__(
        self,
        record: Record,
        request: engine_pb2.GenerateRequest,
        *,
        traceparent: str,
        records: Records,
        metrics: GatewayMetrics,
        tracer: Tracer,
        env: Env,
    ) -> None:
        self.record = record
        self._records = records
        self._metrics = metrics
        self._env = env
        self._started = env.now()
        self._last_delta = 0.0
        self._route: Route | None = None
        self._span = _start_span(tracer, record, request, traceparent)
        context = self._span.get_span_context()
        if context.is_valid:
            record.trace_id = trace.format_trace_id(context.trace_id)
        for name in record.ignored:
            metrics.ignored_param(name)
        records.write(record)

    @property
    def traceparent(self) -> str:
        """The trace context for the engine; empty when nothing is traced."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def routed(self, route: Route, *, attempts: int, deaths: int) -> None:
        """An engine was chosen."""
        record = self.record
        self._route = route
        if not self._last_delta:
            record.state = "routed"
        record.engine = route.engine
        record.attempts, record.deaths = attempts, deaths
        record.routed_at = self._env.wall()
        record.route = RouteNote(
            engine=route.engine,
            hit_tokens=route.hit_tokens,
            seconds=round(route.seconds, 6),
            runner_up=route.runner_up,
            runner_up_seconds=route.runner_up_seconds,
        )
        self._records.write(record)
        self._metrics.routes.labels(route.engine).inc()

    def retried(self, reason: str) -> None:
        """Another attempt will be made."""
        self._metrics.retries.labels(reason).inc()
        self._span.add_event("octavo.retry", {"reason": reason, "engine": self.record.engine})
        log.info("request_retried", id=self.record.id, reason=reason, engine=self.record.engine)

    def resumed(self, seconds: float) -> None:
        """Another engine goes on, so long after the first one was lost."""
        self.record.resumes += 1
        self._metrics.resume.observe(seconds)
        self._span.add_event("octavo.resumed", {"engine": self.record.engine})
        log.info(
            "request_resumed",
            id=self.record.id,
            engine=self.record.engine,
            seconds=round(seconds, 3),
        )

    def delta(self) -> None:
        """Something arrived for the client."""
        now = self._env.now()
        record = self.record
        if not self._last_delta:
            record.state = "first_token"
            record.first_token_at = self._env.wall()
            record.ttft_ms = _ms(now - self._started)
            self._records.write(record)
            self._metrics.ttft.labels(record.model).observe(now - self._started)
        else:
            self._metrics.itl.labels(record.model).observe(now - self._last_delta)
        self._last_delta = now

    def finished(self, usage: engine_pb2.Usage, reasons: list[str]) -> None:
        """Every choice came to its end."""
        if self.record.final:
            return
        record, model = self.record, self.record.model
        record.finish_reasons = reasons
        record.prompt_tokens = usage.prompt_tokens or record.prompt_tokens
        record.cached_tokens = usage.cached_tokens
        record.output_tokens = usage.output_tokens
        record.preemptions = usage.preemptions
        record.queue_ms, record.prefill_ms = round(usage.queue_ms, 3), round(usage.prefill_ms, 3)
        record.decode_ms = round(usage.decode_ms, 3)
        self._metrics.e2e.labels(model).observe(self._env.now() - self._started)
        self._metrics.prompt_tokens.labels(model).inc(record.prompt_tokens)
        self._metrics.cached_tokens.labels(model).inc(usage.cached_tokens)
        self._metrics.output_tokens.labels(model).inc(usage.output_tokens)
        if self._route is not None:
            engine = self._route.engine
            self._metrics.predicted_hits.labels(engine).inc(self._route.hit_tokens)
            self._metrics.actual_hits.labels(engine).inc(usage.cached_tokens)
        self._span.set_attribute("gen_ai.response.finish_reasons", reasons)
        self._end("finished", status="200", finish=reasons[0] if reasons else "")

    def failed(self, error: OctavoError, *, output_tokens: int) -> None:
        """The request got an error instead of its end."""
        if self.record.final:
            return
        self.record.error = error.kind.code
        self.record.output_tokens = output_tokens
        self._span.set_attribute("error.type", error.kind.name)
        self._span.set_status(Status(StatusCode.ERROR, error.kind.code))
        self._end("failed", status=str(error.kind.status), finish=error.kind.code)

    def cancelled(self, *, output_tokens: int) -> None:
        """The client left, or nobody waits for the answer any more."""
        if self.record.final:
            return
        self.record.output_tokens = output_tokens
        self._metrics.aborts.labels(self.record.endpoint).inc()
        self._end("cancelled", status=CLIENT_CLOSED, finish="cancelled")

    def _end(self, state: State, *, status: str, finish: str) -> None:
        record = self.record
        record.state = state
        record.ended_at = self._env.wall()
        record.total_ms = _ms(self._env.now() - self._started)
        self._records.write(record)
        self._metrics.requests.labels(record.model, record.endpoint, status, finish).inc()
        self._span.set_attributes(
            {
                "gen_ai.usage.input_tokens": record.prompt_tokens,
                "gen_ai.usage.output_tokens": record.output_tokens,
                "octavo.cached_tokens": record.cached_tokens,
                "server.address": record.engine,
            }
        )
        self._span.end()
        self._log(finish)

    def _log(self, finish: str) -> None:
        record = self.record
        log.info(
            "request_finished",
            id=record.id,
            state=record.state,
            finish=finish,
            endpoint=record.endpoint,
            model=record.model,
            client=record.client,
            engine=record.engine,
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.cached_tokens,
            output_tokens=record.output_tokens,
            queue_ms=record.queue_ms,
            ttft_ms=record.ttft_ms,
            total_ms=record.total_ms,
            attempts=record.attempts,
            trace_id=record.trace_id,
        )


def _start_span(
    tracer: Tracer, record: Record, request: engine_pb2.GenerateRequest, traceparent: str
) -> Span:
    """Opens the client span of the GenAI semantic conventions."""
    operation = _OPERATIONS.get(record.endpoint, record.endpoint)
    attributes: dict[str, str | int | float] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": record.model,
        "gen_ai.response.id": record.id,
        "gen_ai.request.choice.count": choices_of(request),
    }
    if request.max_tokens:
        attributes["gen_ai.request.max_tokens"] = request.max_tokens
    for name in ("temperature", "top_p"):
        if request.sampling.HasField(name):
            attributes[f"gen_ai.request.{name}"] = getattr(request.sampling, name)
    return tracer.start_span(
        f"{operation} {record.model}",
        context=_PROPAGATOR.extract({"traceparent": traceparent}) if traceparent else None,
        kind=SpanKind.CLIENT,
        attributes=attributes,
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
