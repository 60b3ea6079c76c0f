"""Carries requests to engines and their answers back.

    Dispatcher.open   validate, draw the seed, hash, then place
      └ Generation    route → submit → accepted → deltas … → end; places again what was never
                      executed or died before its first delta

A second attempt has the same seed and the next number, so that its answer is the same and an
engine that comes back late is not heard. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import structlog
from opentelemetry.trace import Tracer

from octavo.gateway.attempts import MAX_MESSAGE_BYTES, Attempt, EngineLostError
from octavo.gateway.endpoints import ServedModel
from octavo.gateway.fleet import DEFAULT_RETRY_MS, Fleet
from octavo.gateway.journal import FINISH_WORDS, Journal
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.records import Record, Records
from octavo.gateway.replica import Replica
from octavo.gateway.routing import Route
from octavo.runtime.env import Env
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import BlockHash, extend_chain, hash_root
from octavo.v1.errors import (
    DEADLINE_EXCEEDED,
    DRAINING,
    ENGINE_FAILURE,
    INTERNAL,
    QUEUE_FULL,
    QUEUE_TIMEOUT,
    REQUEST_TOO_LARGE,
    OctavoError,
)
from octavo.v1.validation import choices_of, validate_request

log = structlog.get_logger(__name__)

ACCEPT_TIMEOUT_S = 5.0
"""An engine answers within a step; a session that is heard but does not answer is stuck."""

MAX_DEATHS = 2
"""Engines that one request may take down, or seem to, before it is given up."""

SEED_BITS = 62
"""Choice i uses seed + i, which must stay below 2**63."""

_RETRYABLE = (QUEUE_FULL, DRAINING)
"""Refusals that another engine may not give: nothing was executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a client asked for, in the engine's words."""

    model: ServedModel
    request: engine_pb2.GenerateRequest
    """Prompt as token ids; never changed."""
    id: str = ""
    """Identifier to use; empty draws one. Must be unguessable: records are read by it."""
    client_label: str = ""
    ignored: tuple[str, ...] = ()
    clamped: bool = False
    endpoint: str = "chat"
    traceparent: str = ""


class RetryBudget:
    """Bounds second attempts to a tenth of the requests, so that refusals cannot multiply load.

    Attempts that follow the death of an engine are bounded by MAX_DEATHS instead.
    """

    SHARE = 0.1
    MINIMUM = 10.0
    MAXIMUM = 100.0

    def __init__(self) -> None:
        self._balance = self.MINIMUM

    def request(self) -> None:
        """Notes a request."""
        self._balance = min(self.MAXIMUM, self._balance + self.SHARE)

    def take(self) -> bool:
        """Takes one retry; False when there is none left."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


@dataclass(slots=True, kw_only=True)
class _Progress:
    """Where the attempts of one generation stand."""

    attempts: int = 0
    deaths: int = 0
    tried: set[str] = field(default_factory=set)
    last_error: OctavoError | None = None


class Generation:
    """One request while it runs: an async iterator of deltas with one reader.

    Must be closed; closing cancels what has not ended.
    """

    def __init__(
        self, dispatcher: Dispatcher, call: Call, request: engine_pb2.GenerateRequest, *, now: float
    ) -> None:
        self.id = request.request_id
        self.route = Route(engine="", hit_tokens=0, prompt_tokens=0, seconds=0.0)
        self.outputs: list[list[int]] = [[] for _ in range(choices_of(request))]
        """Ids delivered so far by choice: what a resumed attempt starts from."""
        self._dispatcher = dispatcher
        self._call = call
        self._request = request
        self._arrived = now
        self._hashes: list[BlockHash] = []
        self._journal = dispatcher.journal(call, request)
        self._progress = _Progress()
        self._replica: Replica | None = None
        self._attempt: Attempt | None = None
        self._started = False
        self._ended = False
        self._failure: OctavoError | None = None
        self._reasons = [""] * len(self.outputs)

    async def place(self) -> None:
        """Checks the request and waits until an engine has accepted it; raises OctavoError."""
        placed = False
        try:
            self._check()
            await self._attempt_until_accepted()
            placed = True
        except OctavoError as error:
            self.fail(error)
            raise
        finally:
            if not placed:
                self.abandon()

    def __aiter__(self) -> Generation:
        """The generation is its own iterator."""
        return self

    async def __anext__(self) -> engine_pb2.Delta:
        """Returns the next delta; raises OctavoError when the answer cannot be finished."""
        try:
            while not self._ended:
                assert self._attempt is not None, "placed before it is read"
                try:
                    delta = await self._attempt.next()
                except EngineLostError as lost:
                    await self._place_again(lost)
                    continue
                if delta is not None:
                    return self._take(delta)
                self.abandon()
        except OctavoError as error:
            self.fail(error)
            raise
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancels the request on its engine unless it has ended. Idempotent."""
        self.abandon()

    def abandon(self) -> None:
        """Does the work of `aclose`, at once."""
        if not self._ended:
            self._release()
            self._journal.cancelled(output_tokens=self._num_output)

    def fail(self, error: OctavoError) -> None:
        """Ends the request with an error, which its reader gets, unless it has ended."""
        if not self._ended:
            self._failure = error
            self._release(error)
            self._journal.failed(error, output_tokens=self._num_output)

    @property
    def _num_output(self) -> int:
        return sum(map(len, self.outputs))

    def _check(self) -> None:
        call, request = self._call, self._request
        if self._dispatcher.fleet.draining:
            raise OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS)
        validate_request(request, call.model.capacity)
        if request.ByteSize() > MAX_MESSAGE_BYTES:
            raise OctavoError(REQUEST_TOO_LARGE, limit=MAX_MESSAGE_BYTES)
        card = call.model.card
        root = hash_root(card.identity, request.cache_salt)
        extend_chain(self._hashes, root, list(request.token_ids.ids), card.block_tokens)

    async def _attempt_until_accepted(self) -> None:
        progress = self._progress
        while True:
            attempt = self._submit()
            try:
                async with asyncio.timeout(ACCEPT_TIMEOUT_S):
                    await attempt.answered()
            except TimeoutError:
                self._cancel_attempt()
                self._may_retry("no_answer", OctavoError(ENGINE_FAILURE))
            except EngineLostError as lost:
                self._count_death(lost)
            except OctavoError as refusal:
                if self._ended or refusal.kind not in _RETRYABLE:
                    raise
                self._may_retry(refusal.kind.name, refusal)
            else:
                return
            progress.tried.add(self.route.engine)

    def _submit(self) -> Attempt:
        """Routes and sends the next attempt; the engine's counters have it when this returns."""
        progress, request = self._progress, self._request
        try:
            replica, route = self._dispatcher.fleet.route(
                self._call.model,
                self._hashes,
                prompt_tokens=len(request.token_ids.ids),
                reads_cache=not request.HasField("prompt_logprobs"),
                tried=progress.tried,
            )
        except OctavoError as error:
            raise progress.last_error or error from None
        self._replica, self.route = replica, route
        sent = engine_pb2.GenerateRequest()
        sent.CopyFrom(request)
        sent.attempt, sent.deaths = progress.attempts, progress.deaths
        sent.traceparent = self._journal.traceparent or self._call.traceparent
        self._take_elapsed(sent)
        progress.attempts += 1
        self._attempt = replica.submit(
            sent, hashes=self._hashes, prefill_tokens=route.uncached_tokens
        )
        self._journal.routed(route, attempts=progress.attempts, deaths=progress.deaths)
        return self._attempt

    def _take_elapsed(self, sent: engine_pb2.GenerateRequest) -> None:
        """Takes the time that earlier attempts used from the request's bounds."""
        elapsed_ms = int((self._dispatcher.env.now() - self._arrived) * 1000)
        for name, kind in (("remaining_ms", DEADLINE_EXCEEDED), ("max_queue_ms", QUEUE_TIMEOUT)):
            limit_ms: int = getattr(sent, name)
            if limit_ms and elapsed_ms >= limit_ms:
                raise OctavoError(kind, limit_ms=limit_ms)
            if limit_ms:
                setattr(sent, name, limit_ms - elapsed_ms)

    async def _place_again(self, lost: EngineLostError) -> None:
        if self._started:
            raise OctavoError(ENGINE_FAILURE) from lost
        self._count_death(lost)
        await self._attempt_until_accepted()

    def _count_death(self, lost: EngineLostError) -> None:
        progress = self._progress
        progress.deaths += 1
        progress.last_error = OctavoError(ENGINE_FAILURE, retry_after_ms=DEFAULT_RETRY_MS)
        if progress.deaths >= MAX_DEATHS:
            raise progress.last_error from lost
        self._journal.retried("engine_lost")

    def _may_retry(self, reason: str, error: OctavoError) -> None:
        error.retry_after_ms = error.retry_after_ms or DEFAULT_RETRY_MS
        progress = self._progress
        progress.last_error = error
        progress.tried.add(self.route.engine)
        elsewhere = self._dispatcher.fleet.can_route(self._call.model, progress.tried)
        if not (elsewhere and self._dispatcher.budget.take()):
            raise error
        self._journal.retried(reason)

    def _take(self, delta: engine_pb2.Delta) -> engine_pb2.Delta:
        if delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
            if delta.HasField("error"):
                raise OctavoError.from_proto(delta.error)
            raise OctavoError(INTERNAL, id=self.id)
        if delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
            # Nobody here asked for it: the engine is going down.
            raise OctavoError(ENGINE_FAILURE)
        self._started = True
        self._journal.delta()
        self.outputs[delta.choice].extend(delta.token_ids)
        if delta.finish_reason:
            self._reasons[delta.choice] = FINISH_WORDS.get(delta.finish_reason, "stop")
            if all(self._reasons):
                self._release()
                self._journal.finished(delta.usage, self._reasons)
        return delta

    def _release(self, error: OctavoError | None = None) -> None:
        self._ended = True
        self._cancel_attempt(error)
        self._dispatcher.forget(self)

    def _cancel_attempt(self, error: OctavoError | None = None) -> None:
        if self._replica is not None and self._attempt is not None:
            self._replica.cancel(self._attempt, error)


class Dispatcher:
    """Opens generations and holds what they share.

    Args:
        fleet: where they run.
        records: what became of them.
        metrics: counts them.
        env: time, seeds and ids.
        tracer: opens a span for each.
    """

    def __init__(
        self, *, fleet: Fleet, records: Records, metrics: GatewayMetrics, env: Env, tracer: Tracer
    ) -> None:
        self.fleet = fleet
        self.env = env
        self.budget = RetryBudget()
        self.metrics = metrics
        self._records = records
        self._tracer = tracer
        self._random = env.rng("seed")
        self._open: set[Generation] = set()

    @property
    def num_open(self) -> int:
        """Generations that have not ended."""
        return len(self._open)

    async def open(self, call: Call) -> Generation:
        """Starts a request and returns when an engine has accepted it.

        Raises:
            OctavoError: the request is invalid, or no engine can take it now.
        """
        request = engine_pb2.GenerateRequest()
        request.CopyFrom(call.request)
        request.request_id = call.id or self.env.new_id()
        if not request.sampling.HasField("seed"):
            request.sampling.seed = self._random.getrandbits(SEED_BITS)
        self.budget.request()
        generation = Generation(self, call, request, now=self.env.now())
        self._open.add(generation)
        await generation.place()
        return generation

    def journal(self, call: Call, request: engine_pb2.GenerateRequest) -> Journal:
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
            accepted_at=self.env.wall(),
        )
        return Journal(
            record,
            request,
            traceparent=call.traceparent,
            records=self._records,
            metrics=self.metrics,
            tracer=self._tracer,
            env=self.env,
        )

    def forget(self, generation: Generation) -> None:
        """Notes that a generation has ended."""
        self._open.discard(generation)

    def abort(self) -> None:
        """Fails everything that is open with DRAINING: the drain took too long."""
        for generation in list(self._open):
            generation.fail(OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS))

    def refused(self, error: OctavoError, *, id: str, endpoint: str) -> None:
        """Counts and logs a request that was turned away before it could be opened."""
        status = error.kind.status
        self.metrics.requests.labels("", endpoint, str(status), error.kind.code).inc()
        log.info("request_refused", id=id, code=error.kind.code, endpoint=endpoint, status=status)
