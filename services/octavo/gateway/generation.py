"""One request while it runs: attempts on engines, and one answer without gap or repeat.

    place      route → submit → accepted
    iterate    deltas; when the engine is lost or drained, another one goes on where this was

An attempt has the request's seed and its own number, so the answer stays the same and an engine
that comes back late is not heard. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from octavo.gateway.attempts import MAX_MESSAGE_BYTES, Attempt, EngineLostError, Loss
from octavo.gateway.call import Call
from octavo.gateway.catalogue import DEFAULT_RETRY_MS
from octavo.gateway.delivered import Delivered
from octavo.gateway.fleet import Fleet
from octavo.gateway.journal import FINISH_WORDS, Journal
from octavo.gateway.placement import Placement, ResumePolicy
from octavo.gateway.probation import Probation, Quarantine
from octavo.gateway.progress import Progress
from octavo.gateway.replica import Replica
from octavo.gateway.retry_budget import RetryBudget
from octavo.gateway.routing import Route
from octavo.gateway.time_bounds import TimeBounds
from octavo.runtime.env import Env
from octavo.runtime.failpoint import failpoint
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.errors import (
    DRAINING,
    ENGINE_FAILURE,
    INTERNAL,
    QUEUE_FULL,
    REQUEST_FAILED,
    REQUEST_TOO_LARGE,
    OctavoError,
)
from octavo.v1.validation import choices_of, validate_request

ACCEPT_TIMEOUT_S: Final = 5.0
"""An engine answers within a step; a session that is heard but does not answer is stuck."""

MAX_DEATHS: Final = 3
"""Engines that may be lost under one request. The second loss ends it already if it was alone on
probation, for then it is the likely cause."""

MAX_ATTEMPTS: Final = 8
"""Whatever their reasons: a bound on what one request can cost."""

LOOK_AGAIN_S: Final = 0.1

_RETRYABLE: Final = (QUEUE_FULL, DRAINING)
"""Refusals that another engine may not give: nothing was executed."""


@dataclass(slots=True, kw_only=True)
class Shared:
    """What the generations of a gateway have in common."""

    fleet: Fleet
    env: Env
    policy: ResumePolicy
    budget: RetryBudget = field(default_factory=RetryBudget)
    probation: Probation = field(default_factory=Probation)
    quarantine: Quarantine = field(default_factory=Quarantine)
    open: dict[Generation, None] = field(default_factory=dict)
    """Those that have not ended, oldest first."""


class Generation:
    """An async iterator of deltas with one reader.

    Must be closed; closing cancels what has not ended.
    """

    def __init__(
        self,
        shared: Shared,
        call: Call,
        request: engine_pb2.GenerateRequest,
        journal: Journal,
    ) -> None:
        self.id = request.request_id
        self.route = Route(engine="", hit_tokens=0, prompt_tokens=0, seconds=0.0)
        self._shared = shared
        self._call = call
        self._request = request
        self._journal = journal
        self._bounds = TimeBounds(request, shared.env.now() - call.waited_s)
        self._delivered = Delivered(choices_of(request))
        self._progress = Progress()
        self._placement = Placement(
            fleet=shared.fleet,
            env=shared.env,
            policy=shared.policy,
            probation=shared.probation,
            call=call,
            request=request,
            delivered=self._delivered,
            progress=self._progress,
            bounds=self._bounds,
        )
        self._replica: Replica | None = None
        self._attempt: Attempt | None = None
        self._ended = False
        self._failure: OctavoError | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def place(self) -> None:
        """Checks the request and waits until an engine has accepted it; raises OctavoError."""
        placed = False
        if (late_s := self._bounds.overdue_s) is not None:
            overdue = self._bounds.exceeded()
            late_s -= self._call.waited_s
            self._timer = asyncio.get_running_loop().call_later(late_s, self.fail, overdue)
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
                    self._count_loss(lost)
                    await self._resume()
                    continue
                if delta is None:
                    self.abandon()
                elif delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
                    # Nobody here asked for it: the engine goes down and hands over.
                    self._hand_over()
                    await self._resume()
                else:
                    return self._take(delta)
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
            self._journal.cancelled(output_tokens=self._delivered.num_tokens)

    def fail(self, error: OctavoError) -> None:
        """Ends the request with an error, which its reader gets, unless it has ended."""
        if not self._ended:
            self._failure = error
            self._release(error)
            self._journal.failed(error, output_tokens=self._delivered.num_tokens)

    def _check(self) -> None:
        call, request, shared = self._call, self._request, self._shared
        if shared.fleet.draining:
            raise OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS)
        validate_request(request, call.model.capacity)
        if request.ByteSize() > MAX_MESSAGE_BYTES:
            raise OctavoError(REQUEST_TOO_LARGE, limit=MAX_MESSAGE_BYTES)
        if shared.quarantine.holds(request, shared.env.now()):
            raise OctavoError(REQUEST_FAILED)

    async def _resume(self) -> None:
        """Places the answer again, where its reader is."""
        failpoint("gateway.resume")
        progress = self._progress
        if self._shared.policy.mode == "never" and self._delivered.begun:
            raise OctavoError(ENGINE_FAILURE)
        if progress.lost_at is None:
            progress.lost_at = self._shared.env.now()
        await self._attempt_until_accepted()

    async def _attempt_until_accepted(self) -> None:
        while True:
            attempt = await self._submit()
            try:
                async with asyncio.timeout(ACCEPT_TIMEOUT_S):
                    await attempt.answered()
            except TimeoutError:
                self._end_attempt()
                self._may_retry("no_answer", OctavoError(ENGINE_FAILURE))
            except EngineLostError as lost:
                self._count_loss(lost)
            except OctavoError as refusal:
                self._end_attempt()
                if self._ended or refusal.kind not in _RETRYABLE:
                    raise
                self._may_retry(refusal.kind.name, refusal)
            else:
                self._progress.admitted = True
                return

    async def _submit(self) -> Attempt:
        """Routes and sends the next attempt; the engine's counters have it when this returns."""
        progress, now = self._progress, self._shared.env.now
        sent = engine_pb2.GenerateRequest()
        sent.CopyFrom(self._request)
        self._delivered.continued(sent)
        place = await self._placement.next()
        self.route, self._replica = place.route, place.replica
        replica = place.replica
        progress.numerics = replica.numerics_id
        sent.admitted = progress.admitted
        sent.attempt += progress.attempts
        sent.deaths = progress.deaths
        sent.traceparent = self._journal.traceparent or self._call.traceparent
        self._placement.check_time()
        self._bounds.apply(sent, now())
        if not progress.attempts:
            self._shared.budget.request()
        progress.attempts += 1
        if progress.deaths:
            unfinished = self._delivered.unfinished
            searches = self._request.HasField("beam")
            progress.unproven = {min(unfinished)} if searches else unfinished
            self._shared.probation.enter(replica.name, self.id, now())
        failpoint("gateway.submit")
        self._attempt = replica.submit(
            sent, hashes=place.hashes, prefill_tokens=self.route.uncached_tokens
        )
        self._journal.routed(self.route, attempts=progress.attempts, deaths=progress.deaths)
        return self._attempt

    def _hand_over(self) -> None:
        self._end_attempt()
        self._note_tried()
        self._progress.last_error = OctavoError(ENGINE_FAILURE, retry_after_ms=DEFAULT_RETRY_MS)
        self._journal.retried("handed_over")
        self._check_attempts()

    def _count_loss(self, lost: EngineLostError) -> None:
        progress = self._progress
        progress.deaths += lost.loss is not Loss.GAP
        progress.last_error = OctavoError(ENGINE_FAILURE, retry_after_ms=DEFAULT_RETRY_MS)
        alone = self._leave_probation() and self._attempt is not None and self._attempt.accepted
        # Silence has many causes, such as a cut cable; a process that ends has few.
        if lost.loss is Loss.BROKEN and alone and progress.deaths > 1:
            self._shared.quarantine.put(self._request, self._shared.env.now())
            raise OctavoError(REQUEST_FAILED) from lost
        if progress.deaths >= MAX_DEATHS:
            raise progress.last_error from lost
        self._journal.retried(lost.loss.value)
        self._check_attempts()

    def _may_retry(self, reason: str, error: OctavoError) -> None:
        error.retry_after_ms = error.retry_after_ms or DEFAULT_RETRY_MS
        progress = self._progress
        progress.last_error = error
        self._note_tried()
        if progress.lost_at is None and not self._may_go_on(error):
            raise error
        self._journal.retried(reason)
        self._check_attempts()

    def _may_go_on(self, refusal: OctavoError) -> bool:
        """Whether a request that ran nowhere yet may try again.

        That costs a retry of the budget, unless it came to an engine that drains: that one refuses
        once and says so to all. If it was the last one, another may be started.
        """
        if refusal.kind is DRAINING:
            return bool(self._placement.candidates()) or self._placement.may_come
        return bool(self._placement.candidates()) and self._shared.budget.take()

    def _check_attempts(self) -> None:
        error = self._progress.last_error
        if self._progress.attempts >= MAX_ATTEMPTS and error is not None:
            raise error

    def _take(self, delta: engine_pb2.Delta) -> engine_pb2.Delta:
        failpoint("gateway.deliver")
        if delta.finish_reason == common_pb2.FINISH_REASON_ERROR:
            if delta.HasField("error"):
                raise OctavoError.from_proto(delta.error)
            raise OctavoError(INTERNAL, id=self.id)
        self._note_engine(delta)
        delta = self._delivered.take(delta)
        if delta.token_ids or delta.prompt_logprobs or delta.finish_reason:
            self._journal.delta()
        if self._delivered.complete:
            self._release()
            reasons = self._delivered.finish_reasons
            words = [FINISH_WORDS.get(reason, "stop") for reason in reasons]
            self._journal.finished(delta.usage, words)
            self._note_served(delta.usage)
        return delta

    def _note_served(self, usage: engine_pb2.Usage) -> None:
        assert self._attempt is not None, "its answer has come"
        service, choices = self._call.model.service, self._attempt.num_choices
        self._shared.fleet.demand.served(service, usage, choices=choices)

    def _note_engine(self, delta: engine_pb2.Delta) -> None:
        """Notes whose tokens these are, and that a suspect has passed."""
        progress = self._progress
        if delta.token_ids or delta.prompt_logprobs:
            if progress.delivered_by not in (None, progress.numerics):
                self._delivered.inexact = True
            progress.delivered_by = progress.numerics
        # A beam search tells no token before its end, but that it has begun.
        if progress.deaths and (delta.token_ids or self._request.HasField("beam")):
            progress.unproven.discard(delta.choice)
            if not progress.unproven:
                self._leave_probation()
        if progress.lost_at is not None:
            self._journal.resumed(self._shared.env.now() - progress.lost_at)
            progress.lost_at = None

    def _note_tried(self) -> None:
        if self._replica is not None:
            self._progress.tried.add(self._replica.incarnation)

    def _leave_probation(self) -> bool:
        return self._shared.probation.leave(self.route.engine, self.id)

    def _release(self, error: OctavoError | None = None) -> None:
        self._ended = True
        self._placement.stop(error)
        if self._timer is not None:
            self._timer.cancel()
        self._end_attempt(error)
        self._shared.open.pop(self, None)

    def _end_attempt(self, error: OctavoError | None = None) -> None:
        self._leave_probation()
        if self._replica is not None and self._attempt is not None:
            self._replica.cancel(self._attempt, error)
