import pytest

from octavo.gateway.delivered import Delivered
from octavo.v1 import common_pb2, engine_pb2


def delta(choice: int = 0, **fields: object) -> engine_pb2.Delta:
    return engine_pb2.Delta(choice=choice, **fields)  # type: ignore[arg-type]


def entries(count: int) -> list[common_pb2.PositionLogprobs]:
    return [common_pb2.PositionLogprobs() for _ in range(count)]


def test_nothing_delivered_means_to_start_anew() -> None:
    request = engine_pb2.GenerateRequest(n=2, prompt_logprobs=1, max_queue_ms=9)
    Delivered(2).continued(request)
    assert request == engine_pb2.GenerateRequest(n=2, prompt_logprobs=1, max_queue_ms=9)


def test_choices_that_go_on_are_resumed_from_their_ids_and_characters() -> None:
    delivered = Delivered(3)
    delivered.take(delta(0, token_ids=[5, 6], text="añ"))
    delivered.take(delta(1, token_ids=[7], finish_reason=common_pb2.FINISH_REASON_STOP))
    request = engine_pb2.GenerateRequest(n=3, prompt_logprobs=1, max_queue_ms=9)
    delivered.continued(request)
    assert list(request.resumes) == [
        engine_pb2.Resume(choice=0, output_ids=[5, 6], chars_sent=2),
        engine_pb2.Resume(choice=2),
    ]
    assert not request.HasField("prompt_logprobs"), "all of them came before the first token"
    assert request.max_queue_ms == 0
    assert not delivered.complete
    assert (delivered.num_tokens, delivered.longest) == (3, [5, 6])


def test_prompt_logprobs_of_a_second_attempt_come_once() -> None:
    delivered = Delivered(1)
    assert len(delivered.take(delta(prompt_logprobs=entries(5))).prompt_logprobs) == 5
    delivered.continued(engine_pb2.GenerateRequest())
    shown = [delivered.take(delta(prompt_logprobs=entries(3))) for _ in range(3)]
    assert [len(d.prompt_logprobs) for d in shown] == [0, 1, 3]
    delivered.continued(engine_pb2.GenerateRequest())
    assert len(delivered.take(delta(prompt_logprobs=entries(10))).prompt_logprobs) == 1


def test_usage_counts_the_answer_and_not_the_attempt() -> None:
    delivered = Delivered(2)
    delivered.take(delta(0, token_ids=[1], cached_tokens=16))
    delivered.take(delta(1, token_ids=[1, 2], finish_reason=common_pb2.FINISH_REASON_LENGTH))
    usage = engine_pb2.Usage(output_tokens=1, cached_tokens=96, cache_write_tokens=16)
    assert delivered.take(delta(0, token_ids=[3], cached_tokens=96)).cached_tokens == 16
    last = delivered.take(
        delta(0, token_ids=[4], finish_reason=common_pb2.FINISH_REASON_STOP, usage=usage)
    )
    assert (last.usage.output_tokens, last.usage.cached_tokens) == (5, 16)
    assert last.usage.cache_write_tokens == 96
    assert delivered.complete
    assert delivered.finish_reasons == [
        common_pb2.FINISH_REASON_STOP,
        common_pb2.FINISH_REASON_LENGTH,
    ]


@pytest.mark.parametrize(("cached", "written"), [(0, 112), (64, 48), (112, 0), (120, 0)])
def test_written_tokens_do_not_depend_on_which_engine_went_on(cached: int, written: int) -> None:
    """Of 120 prompt tokens, in 7 full blocks, the first engine had found 2 blocks."""
    delivered = Delivered(1)
    delivered.take(delta(0, token_ids=[1], cached_tokens=32))
    usage = engine_pb2.Usage(cached_tokens=cached, cache_write_tokens=written)
    last = delivered.take(delta(0, token_ids=[2], usage=usage))
    assert (last.usage.cached_tokens, last.usage.cache_write_tokens) == (32, 80)
