from __future__ import annotations

import pytest
from bench.answer import events, read_answer
from bench.client import Exchange
from bench.workloads import Prompt, WorkItem
from tests.bench.stand_in import DONE, event, text_event, usage_event

ITEM = WorkItem(own=Prompt(ids=(1, 2, 3), text=" a b c"), max_tokens=2)


def exchange(*pieces: bytes, status: int = 200, failure: str = "") -> Exchange:
    reads = tuple((float(second), piece) for second, piece in enumerate(pieces, start=1))
    return Exchange(begin=0.0, end=9.0, status=status, reads=reads, failure=failure)


def test_event_has_the_time_of_the_read_that_completed_it() -> None:
    reads = [(1.0, b"data: a"), (2.0, b"b\n\ndata: c\n\n: note\n"), (3.0, b"\ndata: d\r\n\r\n")]
    assert list(events(reads)) == [(2.0, b"ab"), (2.0, b"c"), (3.0, b"d")]


def test_whole_answer_has_times_of_text_and_the_servers_counts() -> None:
    pieces = (event({"choices": [{"text": ""}]}), text_event("x"), text_event("y"))
    answer = read_answer(exchange(*pieces, usage_event(3, 2, 1), DONE), ITEM)
    assert answer.error == ""
    assert answer.text_times == (2.0, 3.0)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (3, 2, 1)
    assert not answer.is_short


def test_chat_deltas_count_as_text_but_the_role_does_not() -> None:
    role = event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    thought = event({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    said = event({"choices": [{"delta": {"content": "x"}}]})
    answer = read_answer(exchange(role, thought, said, DONE), ITEM)
    assert answer.text_times == (2.0, 3.0)


def test_without_usage_the_tokens_asked_for_are_taken() -> None:
    answer = read_answer(exchange(text_event("x"), DONE), ITEM)
    assert (answer.prompt_tokens, answer.output_tokens, answer.cached_tokens) == (3, 2, 0)


def test_answer_with_fewer_tokens_than_asked_for_is_short() -> None:
    assert read_answer(exchange(text_event("x"), usage_event(3, 1, 0), DONE), ITEM).is_short


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        pytest.param(
            exchange(b"no such model", status=404), "HTTP 404: no such model", id="status"
        ),
        pytest.param(exchange(text_event("x"), failure="cut"), "cut", id="transport"),
        pytest.param(exchange(text_event("x")), "without [DONE]", id="open-end"),
        pytest.param(exchange(b"data: {\n\n"), "unreadable event", id="not-json"),
        pytest.param(exchange(DONE), "no text", id="empty"),
        pytest.param(
            exchange(text_event("x"), event({"error": {"message": "lost"}}), DONE),
            "lost",
            id="event",
        ),
    ],
)
def test_answer_that_is_not_whole_says_why(broken: Exchange, reason: str) -> None:
    assert reason in read_answer(broken, ITEM).error
