from __future__ import annotations

from tests.gateway.api.scripted import LENGTH, STOP, candidates, made_model

from octavo.gateway.api.plan import Context, Plan, make_call
from octavo.gateway.api.tally import Tally
from octavo.v1 import engine_pb2
from octavo.v1.common_pb2 import PositionLogprobs


def plan(prompts: int = 1, n: int = 1, *, stream: bool = False) -> Plan:
    context = Context(id="0" * 32, created=1)
    model = made_model()
    request = engine_pb2.GenerateRequest(token_ids=engine_pb2.TokenIds(ids=[5, 6, 7]))
    call = make_call(context, model, request, endpoint="completions", clamped=False)
    return Plan(
        endpoint="completions",
        context=context,
        model=model,
        calls=(call,) * prompts,
        n=n,
        stream=stream,
        include_usage=False,
        continuous_usage=False,
        logprobs=None,
        prompt_logprobs=False,
        return_token_ids=False,
    )


def test_choices_are_complete_only_together() -> None:
    tally = Tally(plan(n=2))
    tally.take(0, engine_pb2.Delta(choice=1, token_ids=[1], finish_reason=STOP))
    assert not tally.complete
    tally.take(0, engine_pb2.Delta(choice=0, token_ids=[1], finish_reason=LENGTH))
    assert tally.complete
    assert [c.finish_reason for c in tally.choices] == ["length", "stop"]


def test_usage_counts_what_was_delivered_until_the_engine_says() -> None:
    tally = Tally(plan(prompts=2))
    tally.take(0, engine_pb2.Delta(token_ids=[1, 2]))
    assert tally.usage()["completion_tokens"] == 2
    for prompt in (0, 1):
        usage = engine_pb2.Usage(
            output_tokens=5, cached_tokens=3, cache_write_tokens=2, preemptions=1
        )
        usage.queue_ms = prompt
        tally.take(prompt, engine_pb2.Delta(finish_reason=STOP, usage=usage))
    assert tally.usage() == {
        "prompt_tokens": 6,
        "completion_tokens": 10,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 4},
    }
    assert tally.metrics()["queue_ms"] == 1.0
    assert tally.metrics()["preemptions"] == 2


def test_a_stream_keeps_no_texts() -> None:
    tally = Tally(plan(stream=True))
    choice = tally.take(0, engine_pb2.Delta(text="a", token_ids=[1]))
    assert (choice.text, choice.token_ids, choice.positions) == ([], [], [])


def test_the_reason_of_a_stop() -> None:
    tally = Tally(plan())
    choice = tally.take(0, engine_pb2.Delta(finish_reason=STOP, stop_token_id=9))
    assert choice.stop_reason == 9


def test_prompt_logprobs_in_pieces_are_put_together() -> None:
    tally = Tally(plan())
    tally.take(0, engine_pb2.Delta(prompt_logprobs=[PositionLogprobs(), candidates((6, -1.0))]))
    tally.take(0, engine_pb2.Delta(prompt_logprobs=[candidates((7, -2.0))]))
    tally.take(0, engine_pb2.Delta(token_ids=[1], finish_reason=STOP))
    ids = [[c.token_id for c in p.candidates] for p in tally.prompt_positions[0]]
    assert ids == [[], [6], [7]]


def test_cached_tokens_are_known_when_every_prompt_has_told() -> None:
    tally = Tally(plan(prompts=2))
    tally.take(0, engine_pb2.Delta(token_ids=[1], cached_tokens=16))
    assert (tally.knows_cached, tally.cached_tokens) == (False, 16)
    tally.take(1, engine_pb2.Delta(token_ids=[1], cached_tokens=0))
    assert (tally.knows_cached, tally.cached_tokens) == (True, 16)
