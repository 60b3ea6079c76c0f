"""Builds the Delta messages of octavo.v1 from what a step produced."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.batch import Logprobs
from octavo.engine.request import FinishReason, Request
from octavo.v1 import common_pb2, engine_pb2

_FINISH = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}


def new(proto: engine_pb2.GenerateRequest, choice: int, *, position: int) -> engine_pb2.Delta:
    """Returns an empty delta of a choice."""
    return engine_pb2.Delta(
        request_id=proto.request_id, attempt=proto.attempt, choice=choice, position=position
    )


def logprobs(entry: Logprobs) -> common_pb2.PositionLogprobs:
    """Returns the wire form of one position's candidates."""
    return common_pb2.PositionLogprobs(
        candidates=[
            common_pb2.TokenLogprob(token_id=t, logprob=p, rank=r)
            for t, p, r in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
        ]
    )


def finish(delta: engine_pb2.Delta, request: Request) -> None:
    """Writes why the choice ended."""
    assert request.finish_reason is not None
    delta.finish_reason = _FINISH[request.finish_reason]
    if isinstance(request.stop_reason, str):
        delta.stop_string = request.stop_reason
    elif request.stop_reason is not None:
        delta.stop_token_id = request.stop_reason


def usage(requests: Sequence[Request], *, last_token: float) -> engine_pb2.Usage:
    """Sums up a request over its choices; times are those of the first choice.

    Args:
        requests: the choices, the one that computed the prompt first.
        last_token: monotonic seconds of the last token of any choice.
    """
    first = requests[0]
    begun = first.first_scheduled if first.first_scheduled is not None else first.queued
    token = first.first_token if first.first_token is not None else begun
    return engine_pb2.Usage(
        prompt_tokens=len(first.prompt_ids),
        output_tokens=sum(len(r.output_ids) for r in requests),
        cached_tokens=first.num_cached,
        cache_write_tokens=first.num_written,
        preemptions=sum(r.num_preemptions for r in requests),
        swaps=sum(r.num_swaps for r in requests),
        queue_ms=1e3 * (begun - first.queued),
        prefill_ms=1e3 * (token - begun),
        decode_ms=1e3 * max(last_token - token, 0.0),
    )
