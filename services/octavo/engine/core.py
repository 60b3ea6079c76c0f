"""EngineCore: schedule, run, sample, publish — one synchronous step at a time.

The core owns every request between submit and its last delta. It knows neither threads nor
transport: whoever submits passes a `sink`, and deltas come back beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from octavo.engine import answer
from octavo.engine import delta as deltas
from octavo.engine.batch import Logprobs, Row, Runner, Sampled, StepInput, StepOutput
from octavo.engine.cost import CostModel
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.device_error import DeviceError
from octavo.engine.intake import Model, build_requests
from octavo.engine.metrics import EngineMetrics
from octavo.engine.request import FinishReason, Request, RequestId
from octavo.engine.scheduler import Scheduler
from octavo.runtime.failpoint import failpoint
from octavo.v1 import engine_pb2, limits
from octavo.v1.errors import (
    DEADLINE_EXCEEDED,
    INVALID_VALUE,
    QUEUE_STALLED,
    QUEUE_TIMEOUT,
    REQUEST_FAILED,
    OctavoError,
)

log = structlog.get_logger(__name__)


class NewDetokenizer(Protocol):
    """Makes the detokenizer of one choice."""

    def __call__(self, request: Request, *, chars_sent: int) -> Detokenizer:
        """Returns a detokenizer that has replayed the request's outputs."""
        ...


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of a ticket and its text."""

    index: int
    request: Request
    detokenizer: Detokenizer
    tells_prompt: bool
    """Whether the entry of the first prompt position, which nothing predicts, is still due."""
    last_token: float = 0.0
    """Monotonic seconds of its latest token."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One GenerateRequest on its way; `sink` is opaque to the core."""

    proto: engine_pb2.GenerateRequest
    sink: object
    choices: tuple[Choice, ...]
    open: int
    last_token: float = 0.0


@dataclass(slots=True)
class StepResult:
    """What one step has to tell."""

    deltas: list[tuple[Ticket, engine_pb2.Delta]] = field(default_factory=list)
    ran: bool = False
    """Whether a step was run, so that another should follow at once."""


class EngineCore:
    """The engine without its shell.

    Args:
        scheduler: decides what runs.
        runner: computes it.
        model: names, identity and limits of what is served.
        new_detokenizer: makes the text side of a choice.
        clock: monotonic seconds.
        draw_seed: gives a seed for requests without one.
        metrics: where counts go.
        step_target_s: time that the prompt chunks of a step may take; zero bounds tokens only.
        cost: what steps cost, with what is known before the first; the core goes on learning.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        model: Model,
        new_detokenizer: NewDetokenizer,
        clock: Callable[[], float],
        draw_seed: Callable[[], int],
        metrics: EngineMetrics,
        step_target_s: float = 0.0,
        cost: CostModel | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.model = model
        self.metrics = metrics
        self.cost = cost or CostModel()
        self.steps = 0
        self._runner = runner
        self._new_detokenizer = new_detokenizer
        self._clock = clock
        self._draw_seed = draw_seed
        self._step_target_s = step_target_s
        self._ids = itertools.count(1)
        self._owner: dict[RequestId, tuple[Ticket, Choice]] = {}

    @property
    def num_open(self) -> int:
        """Choices that have not ended."""
        return len(self._owner)

    def submit(self, proto: engine_pb2.GenerateRequest, sink: object) -> Ticket:
        """Takes a request into the queue; raises OctavoError when it cannot be run."""
        now = self._clock()
        requests = build_requests(
            proto,
            self.model,
            now=now,
            next_id=lambda: RequestId(next(self._ids)),
            draw_seed=self._draw_seed,
        )
        chars_sent = {resume.choice: resume.chars_sent for resume in proto.resumes}
        choices = tuple(
            Choice(
                r.index,
                r,
                self._new_detokenizer(r, chars_sent=chars_sent.get(r.index, 0)),
                r.prompt_logprobs is not None,
            )
            for r in requests
        )
        self.scheduler.add(
            requests[:1] if requests[0].siblings else requests,
            now,
            prefill_us_per_token=self.cost.prefill_us_per_token,
            admitted=proto.admitted,
            suspect=proto.deaths > 0,
        )
        ticket = Ticket(proto, sink, choices, len(choices))
        for choice in choices:
            self._owner[choice.request.id] = (ticket, choice)
        return ticket

    def abort(self, ticket: Ticket) -> list[engine_pb2.Delta]:
        """Ends all choices of a ticket; their blocks are free when it returns.

        Returns:
            Their last deltas, for callers that did not ask for it.
        """
        ends = []
        for choice in ticket.choices:
            request = choice.request
            if not request.is_finished:
                delta = deltas.new(ticket.proto, choice.index, position=len(request.output_ids))
                self._finish(ticket, choice, FinishReason.ABORT, delta=delta)
                ends.append(delta)
        return ends

    def step(self) -> StepResult:
        """Runs one step; everything of it is published, or nothing."""
        result = StepResult()
        now = self._clock()
        self.scheduler.cache.host.poll()
        for request in self.scheduler.expire(now):
            late = request.first_scheduled is None and request.queue_deadline is not None
            queued_out = late and now >= (request.queue_deadline or 0.0)
            kind, end = (
                (QUEUE_TIMEOUT, request.queue_deadline)
                if queued_out
                else (DEADLINE_EXCEEDED, request.deadline)
            )
            limit_ms = round(1e3 * ((end or now) - request.arrival))
            self._fail(request, OctavoError(kind, limit_ms=limit_ms), result)
        target = self._step_target_s
        most = self.cost.step_tokens(target) if target else None
        step = self.scheduler.schedule(now, most)
        for request, error in self.scheduler.drain_rejected():
            if error.kind is QUEUE_STALLED:
                log.error("queue_stalled", **self.scheduler.figures(request))
            self._fail(request, error, result)
        if step is None:
            return result
        result.ran = True
        output = self._run(step, result)
        if output is not None:
            self._publish(step, output, result)
        self.steps += 1
        return result

    def _run(self, step: StepInput, result: StepResult) -> StepOutput | None:
        """Computes the step; on an exception its requests start over, and a lone one fails."""
        began = self._clock()
        try:
            failpoint("engine.step")
            for row in step.rows:
                failpoint("engine.row", row.token_ids)
            output = self._runner.run(step)
        except DeviceError:
            raise  # nobody's fault, and no next step would do better
        except Exception:
            culprits = self.scheduler.fail(step)
            log.exception("step_failed", rows=len(step.rows), culprits=len(culprits))
            self.metrics.steps_failed.inc()
            for request in culprits:
                self._fail(request, OctavoError(REQUEST_FAILED), result)
            return None
        seconds = self._clock() - began
        prefill = sum(len(row.token_ids) for row in step.rows if len(row.token_ids) > 1)
        self.cost.observe(prefill_tokens=prefill, rows=len(step.rows), seconds=seconds)
        self.metrics.observe_step(tokens=step.num_tokens, seconds=seconds)
        return output

    def _publish(self, step: StepInput, output: StepOutput, result: StepResult) -> None:
        poisoned = frozenset(
            spec.request.id
            for row in step.rows
            for spec in row.samples
            if not output.sampled[spec.request.id].finite
        )
        now = self._clock()
        self.scheduler.commit(step, poisoned=poisoned)
        searches: dict[Request, list[Sampled]] = {}
        for row in step.rows:
            if row.request.owner.beams is not None:
                got = [output.sampled[spec.request.id] for spec in row.samples]
                searches.setdefault(row.request.owner, []).extend(got)
                continue
            prompt_logprobs = output.prompt_logprobs.get(row.request.id, ())
            tells_prompt = self._owner[row.request.id][1].tells_prompt
            if row.request.score_only or prompt_logprobs or tells_prompt:
                self._publish_prompt(row, prompt_logprobs, result)
            for spec in row.samples:
                sampled = output.sampled[spec.request.id]
                if sampled.token_ids:
                    self._publish_tokens(spec.request, sampled, now, result)
                elif sampled.finite:
                    self._fail(spec.request, _nothing_left(), result)
                else:
                    self._fail_not_finite(spec.request, result)
        for carrier, found in searches.items():
            if not all(one.finite for one in found):
                self._fail_not_finite(carrier, result)
            elif found:
                self._advance_beams(carrier, found, now, result)

    def _publish_prompt(self, row: Row, entries: tuple[Logprobs, ...], result: StepResult) -> None:
        ticket, choice = self._owner[row.request.id]
        delta = deltas.new(ticket.proto, choice.index, position=len(row.request.output_ids))
        if choice.tells_prompt:
            delta.cached_tokens = row.request.num_cached
            delta.prompt_logprobs.add()
            choice.tells_prompt = False
        delta.prompt_logprobs.extend(deltas.logprobs(e) for e in entries)
        done = row.start + len(row.token_ids) >= row.request.num_tokens
        if row.request.score_only and done:
            row.request.first_token = ticket.last_token = self._clock()
            self._finish(ticket, choice, FinishReason.LENGTH, delta=delta)
        if delta.prompt_logprobs or delta.finish_reason:
            result.deltas.append((ticket, delta))

    def _publish_tokens(
        self, request: Request, sampled: Sampled, now: float, result: StepResult
    ) -> None:
        ticket, choice = self._owner[request.id]
        delta = deltas.new(ticket.proto, choice.index, position=len(request.output_ids))
        if request.first_token is None:
            request.first_token = now
            if choice.index == 0:  # the one that computed the prompt
                delta.cached_tokens = request.num_cached
                self.metrics.observe_first_token(request, now)
        elif choice.last_token:
            self.metrics.observe_gap(now - choice.last_token)
        choice.last_token = ticket.last_token = now
        most = self.model.capacity.max_model_len
        reason: FinishReason | None = None
        for token, logprobs in itertools.zip_longest(sampled.token_ids, sampled.logprobs):
            reason = answer.append(request, choice.detokenizer, token, delta, max_tokens=most)
            if logprobs is not None:
                delta.logprobs.append(deltas.logprobs(logprobs))
            if reason is not None:
                break
        self.metrics.generation_tokens.inc(len(delta.token_ids))
        if reason is not None:
            self._finish(ticket, choice, reason, delta=delta)
        result.deltas.append((ticket, delta))

    def _advance_beams(
        self, carrier: Request, sampled: list[Sampled], now: float, result: StepResult
    ) -> None:
        """Makes the next turn of a beam search; no token is told before its end."""
        assert carrier.beams is not None
        search, live = carrier.beams.search, carrier.beams.live
        ticket, choice = self._owner[carrier.id]
        ticket.last_token = now
        if carrier.first_token is None:
            carrier.first_token = now
            self.metrics.observe_first_token(carrier, now)
            # Says to the gateway that the prompt is computed and did no harm.
            delta = deltas.new(ticket.proto, choice.index, position=0)
            delta.cached_tokens = carrier.num_cached
            result.deltas.append((ticket, delta))
        outputs = [beam.output_ids for beam in live] or [[]]
        turn = search.advance([one.candidates for one in sampled], outputs)
        if turn.tokens:
            self.scheduler.advance_beams(carrier, turn)
            return
        found = search.finished
        if len(found) <= max(choice.index for choice in ticket.choices):
            self._fail(carrier, _nothing_left(), result)
            return
        for choice in ticket.choices:
            delta = deltas.new(ticket.proto, choice.index, position=0)
            reason = answer.fill(choice.request, choice.detokenizer, found[choice.index], delta)
            self.metrics.generation_tokens.inc(len(delta.token_ids))
            self._finish(ticket, choice, reason, delta=delta)
            result.deltas.append((ticket, delta))

    def _fail_not_finite(self, request: Request, result: StepResult) -> None:
        log.error("logits_not_finite", request=request.id)
        self._fail(request, OctavoError(REQUEST_FAILED), result)

    def _fail(self, request: Request, error: OctavoError, result: StepResult) -> None:
        """Ends a request, and the siblings that were to be forked from it, with an error."""
        ticket, _ = self._owner[request.id]
        victims = [
            request,
            *(s for s in request.siblings if s.id in self._owner and not s.output_ids),
        ]
        for victim in victims:
            if victim.id not in self._owner:
                continue
            choice = self._owner[victim.id][1]
            delta = deltas.new(ticket.proto, choice.index, position=len(victim.output_ids))
            delta.error.CopyFrom(error.to_proto())
            self._finish(ticket, choice, FinishReason.ERROR, delta=delta)
            result.deltas.append((ticket, delta))

    def _finish(
        self,
        ticket: Ticket,
        choice: Choice,
        reason: FinishReason,
        *,
        delta: engine_pb2.Delta,
    ) -> None:
        request = choice.request
        request.finish_reason = reason
        self.scheduler.finish(request)
        del self._owner[request.id]
        ticket.open -= 1
        delta.text += choice.detokenizer.flush()
        deltas.finish(delta, request)
        if ticket.open == 0:
            requests = [c.request for c in ticket.choices]
            delta.usage.CopyFrom(deltas.usage(requests, last_token=ticket.last_token))
            self.metrics.observe_end(ticket.choices[0].request, self._clock())
        self.metrics.finished(reason)

    def load(self) -> engine_pb2.Load:
        """What the router needs to price this engine."""
        s = self.scheduler
        return engine_pb2.Load(
            queued_prefill_tokens=s.queued_prefill_tokens,
            running=s.num_running,
            waiting=s.num_waiting,
            free_blocks=s.num_free_blocks,
            cached_free_blocks=s.num_cached_free_blocks,
            prefill_us_per_token=self.cost.prefill_us_per_token,
            decode_us_per_step=self.cost.decode_us_per_step,
            waiting_tokens=s.waiting_tokens,
        )

    def oldest_runnable_ms(self) -> int:
        """Age of the oldest request that could have run."""
        return min(round(1e3 * self.scheduler.oldest_runnable(self._clock())), limits.MAX_MS)


def _nothing_left() -> OctavoError:
    reason = "with bad_words, min_tokens and logit_bias it leaves no token to choose"
    return OctavoError(INVALID_VALUE, param="allowed_token_ids", reason=reason)
