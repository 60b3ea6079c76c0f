from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api.scripted import STOP, Script, Step, World, says

from octavo.gateway.dispatch import Call
from octavo.v1 import engine_pb2

TEXT = 'ďábelské "quotes" \\ \n\t\x01 👋🏽 家 \u2028'


def pieces(*texts: str) -> Script:
    def script(call: Call) -> Iterable[Step]:
        for position, text in enumerate(texts):
            yield engine_pb2.Delta(text=text, token_ids=[5], position=position)
        yield engine_pb2.Delta(
            token_ids=[2],
            finish_reason=STOP,
            usage=engine_pb2.Usage(prompt_tokens=9, output_tokens=len(texts) + 1),
        )

    return script


@settings(max_examples=50)
@given(st.lists(st.text(max_size=20), max_size=6))
def test_the_parts_make_the_whole(texts: list[str]) -> None:
    script = pieces(*texts)
    whole = World(script).chat().json["choices"][0]["message"]["content"]
    chunks = World(script).chat(stream=True).chunks
    streamed = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert streamed == whole == "".join(texts)


def test_any_text_is_escaped_and_events_are_whole() -> None:
    response = World(pieces(TEXT, "b")).chat(stream=True)
    for part in response.parts:
        for event in part.decode().split("\n\n")[:-1]:
            data = event.removeprefix("data: ")
            assert data == "[DONE]" or json.loads(data)
    assert response.chunks[1]["choices"][0]["delta"]["content"] == TEXT


def test_deltas_without_text_make_no_chunks() -> None:
    response = World(pieces("", "", "a", "")).chat(stream=True)
    deltas = [c["choices"][0]["delta"] for c in response.chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": ""}]


def test_deltas_that_are_there_at_once_go_out_at_once() -> None:
    response = World(says("one two three four five six")).chat(stream=True)
    assert len([p for p in response.parts if p]) == 1


@pytest.mark.parametrize("asked", [False, True], ids=["not asked", "asked"])
def test_usage_is_one_chunk_without_choices_and_only_when_asked(asked: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
    response = World(says("Hello there", cached=4)).chat(stream=True, **options)
    with_usage = [c for c in response.chunks if c.get("usage")]
    assert len(with_usage) == int(asked)
    if asked:
        assert with_usage == [response.chunks[-1]]
        assert with_usage[0]["choices"] == []
        usage = with_usage[0]["usage"]
        assert usage["completion_tokens"] == 3
        assert usage["prompt_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
        assert with_usage[0]["metrics"]["prefill_ms"] == 20.25
    assert response.body.endswith(b"data: [DONE]\n\n")


def test_usage_in_every_chunk_only_when_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = World(says("Hello there")).chat(stream=True, stream_options=options)
    shown = [c["usage"] for c in response.chunks if c["choices"]]
    assert shown[0] is None  # the role's chunk
    assert [u["completion_tokens"] for u in shown[1:]] == [1, 2, 3]


def test_each_choice_has_one_last_chunk() -> None:
    response = World(says("Hi")).chat(stream=True, n=3)
    reasons: dict[int, list[str | None]] = {0: [], 1: [], 2: []}
    for chunk in response.chunks:
        (choice,) = chunk["choices"]
        reasons[choice["index"]].append(choice["finish_reason"])
    for seen in reasons.values():
        assert seen == [None] * (len(seen) - 1) + ["stop"]


def test_one_id_for_the_whole_stream() -> None:
    response = World().chat(stream=True)
    ids = {c["id"] for c in response.chunks}
    assert ids == {"chatcmpl-" + response.headers["x-request-id"]}
