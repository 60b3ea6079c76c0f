from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.gateway.api.scripted import World, candidates, says
from tests.runtime.smollm2_files import tokenizer

from octavo.gateway.api.logprobs import LegacyLogprobs, chat_logprobs, floored, token_name


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("top", [None, 0, 2])
def test_chat_has_an_entry_for_every_token(stream: bool, top: int | None) -> None:
    more: dict[str, Any] = {} if top is None else {"top_logprobs": top}
    response = World(says("Hello 👋🏽")).chat(logprobs=True, stream=stream, **more)
    answers = response.chunks if stream else [response.json]
    content = [
        entry
        for a in answers
        if a["choices"][0]["logprobs"]
        for entry in a["choices"][0]["logprobs"]["content"]
    ]
    ids = [*tokenizer().encode("Hello 👋🏽", allow_special=False), 2]
    assert [bytes(e["bytes"]) for e in content] == [tokenizer().token_bytes(i) for i in ids]
    assert all(len(e["top_logprobs"]) == (top or 0) for e in content)
    assert b"".join(bytes(e["bytes"]) for e in content).decode() == "Hello 👋🏽<|im_end|>"


def test_completions_name_half_characters_by_their_id() -> None:
    choice = World(says("👋🏽")).complete(logprobs=2).json["choices"][0]
    ids = [*tokenizer().encode("👋🏽", allow_special=False), 2]
    names = choice["logprobs"]["tokens"]
    assert names[0] == f"token_id:{ids[0]}"
    assert names[-1] == "<|im_end|>"
    assert set(choice["logprobs"]["top_logprobs"][0]) == {names[0], token_name(9, tokenizer())}


def test_without_alternatives_completions_still_name_the_chosen_token() -> None:
    logprobs = World(says("Hi")).complete(logprobs=0).json["choices"][0]["logprobs"]
    assert logprobs["top_logprobs"] == [{t: -0.25} for t in logprobs["tokens"]]


def test_the_chosen_token_is_not_listed_twice() -> None:
    position = candidates((5, -2.0), (6, -0.5), (5, -2.0))
    (entry,) = chat_logprobs([position], tokenizer(), alternatives=5)
    assert [t["logprob"] for t in entry["top_logprobs"]] == [-0.5, -2.0]  # type: ignore[attr-defined]


def test_alternatives_are_the_most_probable_ones() -> None:
    position = candidates((5, -9.0), (6, -0.5), (7, -1.0))
    (entry,) = chat_logprobs([position], tokenizer(), alternatives=2)
    assert [t["logprob"] for t in entry["top_logprobs"]] == [-0.5, -1.0]  # type: ignore[attr-defined]
    legacy = LegacyLogprobs()
    legacy.extend([position], tokenizer(), alternatives=2, offset=0)
    assert sorted((legacy.top_logprobs[0] or {}).values()) == [-9.0, -1.0, -0.5]


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e5])
def test_json_has_no_infinity(value: float) -> None:
    assert floored(value) == -9999.0
    (entry,) = chat_logprobs([candidates((5, value), (6, value))], tokenizer(), alternatives=2)
    assert json.loads(json.dumps(entry, allow_nan=False))["logprob"] == -9999.0


def test_names_of_tokens() -> None:
    whole = tokenizer().encode("Hi", allow_special=False)[0]
    assert token_name(whole, tokenizer()) == "Hi"
    assert token_name(2, tokenizer()) == "<|im_end|>"
