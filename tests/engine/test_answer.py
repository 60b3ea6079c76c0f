"""What a token, or a found sequence, means for a choice's answer."""

from __future__ import annotations

import pytest
from tests.engine.harness import new_detokenizer
from tests.fakes import EOS

from octavo.engine import answer
from octavo.engine.beam_search import Hypothesis
from octavo.engine.request import FinishReason, Request, RequestId, SamplingParams, StopParams
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash


def request(**stop: object) -> Request:
    fields: dict[str, object] = {"max_tokens": 5, "eos_token_ids": frozenset({EOS})}
    return Request(
        id=RequestId(1),
        prompt_ids=(65, 66),
        sampling=SamplingParams(),
        stop=StopParams(**(fields | stop)),  # type: ignore[arg-type]
        arrival=0.0,
        hash_root=BlockHash(bytes(16)),
    )


@pytest.mark.parametrize(
    ("text", "stop", "reason", "stop_reason", "shown"),
    [
        ([*b"abc", EOS], {}, FinishReason.STOP, None, "abc"),
        ([*b"abcde"], {}, FinishReason.LENGTH, None, "abcde"),
        ([*b"abcd", EOS], {}, FinishReason.STOP, None, "abcd"),
        ([*b"abc"], {"stop_token_ids": frozenset(b"c")}, FinishReason.STOP, ord("c"), "ab"),
        (
            [*b"abc"],
            {"stop_token_ids": frozenset(b"c"), "include_in_output": True},
            FinishReason.STOP,
            ord("c"),
            "abc",
        ),
        ([*"äé".encode()][:3], {"max_tokens": 3}, FinishReason.LENGTH, None, "ä\ufffd"),
    ],
    ids=["eos", "length", "eos at the length", "stop id", "stop id shown", "half a character"],
)
def test_a_sequence_at_once_ends_as_its_tokens_one_by_one(
    text: list[int],
    stop: dict[str, object],
    reason: FinishReason,
    stop_reason: int | None,
    shown: str,
) -> None:
    single, whole = request(**stop), request(**stop)
    told = [engine_pb2.Delta(), engine_pb2.Delta()]
    detokenizer = new_detokenizer(single, chars_sent=0)
    for i, token in enumerate(text):
        end = answer.append(single, detokenizer, token, told[0], max_tokens=100)
        assert (end is None) == (i < len(text) - 1)
    assert end is reason
    found = Hypothesis(score=0.0, token_ids=tuple(text))
    assert answer.fill(whole, new_detokenizer(whole, chars_sent=0), found, told[1]) is reason
    assert told[0] == told[1]
    assert told[1].text == shown
    assert single.output_ids == whole.output_ids == text
    assert single.stop_reason == whole.stop_reason == stop_reason


def test_a_stop_string_ends_a_choice_where_it_is_complete() -> None:
    one, delta = request(stop_strings=("bc",)), engine_pb2.Delta()
    detokenizer = new_detokenizer(one, chars_sent=0)
    ends = [answer.append(one, detokenizer, t, delta, max_tokens=100) for t in b"abc"]
    assert ends == [None, None, FinishReason.STOP]
    assert (one.stop_reason, delta.text) == ("bc", "a")


def test_a_choice_ends_where_the_model_does() -> None:
    one, delta = request(), engine_pb2.Delta()
    detokenizer = new_detokenizer(one, chars_sent=0)
    ends = [answer.append(one, detokenizer, t, delta, max_tokens=4) for t in b"ab"]
    assert ends == [None, FinishReason.LENGTH]
