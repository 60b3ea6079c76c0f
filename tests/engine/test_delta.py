"""Wire forms of what a step produced."""

from __future__ import annotations

import pytest
from tests.engine.harness import generate

from octavo.engine import delta as deltas
from octavo.engine.batch import Logprobs
from octavo.engine.request import FinishReason, Request, RequestId, SamplingParams, StopParams
from octavo.v1 import common_pb2
from octavo.v1.block_hash import BlockHash


def request(**fields: object) -> Request:
    return Request(
        id=RequestId(1),
        prompt_ids=(1, 2, 3),
        sampling=SamplingParams(),
        stop=StopParams(max_tokens=9),
        arrival=5.0,
        queued=10.0,
        hash_root=BlockHash(b"r"),
        **fields,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("reason", "field"),
    [("END", "stop_string"), (0, "stop_token_id"), (None, None)],
    ids=["string", "token zero", "eos"],
)
def test_55_stop_reasons_keep_their_kind(reason: str | int | None, field: str | None) -> None:
    delta = deltas.new(generate([1], attempt=2), 1, position=4)
    deltas.finish(delta, request(finish_reason=FinishReason.STOP, stop_reason=reason))
    assert delta.finish_reason == common_pb2.FINISH_REASON_STOP
    assert delta.WhichOneof("stop_reason") == field
    assert (delta.attempt, delta.choice, delta.position) == (2, 1, 4)


def test_60_usage_sums_choices_and_counts_the_prompt_once() -> None:
    first = request(
        output_ids=[1, 2],
        num_cached=2,
        num_written=1,
        first_scheduled=10.5,
        first_token=11.0,
        num_preemptions=3,
        num_swaps=2,
    )
    usage = deltas.usage([first, request(output_ids=[1, 2, 3])], last_token=12.0)
    assert (usage.prompt_tokens, usage.output_tokens) == (3, 5)
    assert (usage.cached_tokens, usage.cache_write_tokens) == (2, 1)
    assert (usage.queue_ms, usage.prefill_ms, usage.decode_ms) == (500, 500, 1000)
    assert (usage.preemptions, usage.swaps) == (3, 2)


def test_usage_of_a_request_that_never_ran_has_no_negative_times() -> None:
    usage = deltas.usage([request()], last_token=0.0)
    assert (usage.queue_ms, usage.prefill_ms, usage.decode_ms) == (0, 0, 0)


def test_logprobs_keep_order_and_ranks() -> None:
    wire = deltas.logprobs(Logprobs(token_ids=(5, 6), logprobs=(-2.0, -1.0), ranks=(2, 1)))
    assert [(c.token_id, c.logprob, c.rank) for c in wire.candidates] == [
        (5, -2.0, 2),
        (6, -1.0, 1),
    ]
