"""Opens generations, and holds what they share: fleet, records, metrics, retries. Knows no HTTP."""

from __future__ import annotations

import structlog
from opentelemetry.trace import Tracer

from octavo.gateway.call import Call
from octavo.gateway.catalogue import DEFAULT_RETRY_MS
from octavo.gateway.fleet import Fleet
from octavo.gateway.generation import Generation, Shared
from octavo.gateway.journal import Journal
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.placement import ResumePolicy
from octavo.gateway.records import Record, Records
from octavo.runtime.env import Env
from octavo.v1 import engine_pb2
from octavo.v1.errors import DRAINING, OctavoError

__all__ = ["Call", "Dispatcher", "Generation", "ResumePolicy"]

log = structlog.get_logger(__name__)

SEED_BITS = 62
"""Choice i uses seed + i, which must stay below 2**63."""


class Dispatcher:
    """Opens generations and holds what they share.

    Args:
        fleet: where they run.
        records: what became of them.
        metrics: counts them.
        env: time, seeds and ids.
        tracer: opens a span for each.
        resume: what becomes of answers whose engine is lost.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        records: Records,
        metrics: GatewayMetrics,
        env: Env,
        tracer: Tracer,
        resume: ResumePolicy | None = None,
    ) -> None:
        self.shared = Shared(fleet=fleet, env=env, policy=resume or ResumePolicy())
        self._env = env
        self._metrics = metrics
        self._records = records
        self._tracer = tracer
        self._random = env.rng("seed")

    @property
    def num_open(self) -> int:
        """Generations that have not ended."""
        return len(self.shared.open)

    async def open(self, call: Call) -> Generation:
        """Starts a request and returns when an engine has accepted it.

        Raises:
            OctavoError: the request is invalid, or no engine can take it now.
        """
        request = engine_pb2.GenerateRequest()
        request.CopyFrom(call.request)
        request.request_id = call.id or self._env.new_id()
        if not request.sampling.HasField("seed"):
            request.sampling.seed = self._random.getrandbits(SEED_BITS)
        generation = Generation(self.shared, call, request, self._journal(call, request))
        self.shared.open[generation] = None
        await generation.place()
        return generation

    def abort(self) -> None:
        """Fails everything that is open with DRAINING: the drain took too long."""
        for generation in list(self.shared.open):
            generation.fail(OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS))

    def refused(self, error: OctavoError, *, id: str, endpoint: str) -> None:
        """Counts and logs a request that was turned away before it could be opened."""
        status = error.kind.status
        self._metrics.requests.labels("", endpoint, str(status), error.kind.code).inc()
        log.info("request_refused", id=id, code=error.kind.code, endpoint=endpoint, status=status)

    def _journal(self, call: Call, request: engine_pb2.GenerateRequest) -> Journal:
        """Begins the story of a request."""
        record = Record(
            id=request.request_id,
            state="accepted",
            model=call.model.name,
            endpoint=call.endpoint,
            client=call.client_label,
            prompt_tokens=len(request.token_ids.ids),
            ignored=list(call.ignored),
            clamped=call.clamped,
            accepted_at=self._env.wall(),
        )
        return Journal(
            record,
            request,
            traceparent=call.traceparent,
            records=self._records,
            metrics=self._metrics,
            tracer=self._tracer,
            env=self._env,
        )
