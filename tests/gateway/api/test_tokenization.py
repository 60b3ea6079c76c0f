from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.api.scripted import World, made_model
from tests.runtime.smollm2_files import tokenizer

from octavo.runtime.tokenizer import Tokenizer


def test_tokenize_and_back() -> None:
    world = World()
    tokens = world.post("/tokenize", {"model": "smollm2", "prompt": "test it"}).json
    assert tokens["count"] == len(tokens["tokens"]) == 2
    assert tokens["max_model_len"] == 512
    body = {"model": "smollm2", "tokens": tokens["tokens"]}
    assert world.post("/detokenize", body).json == {"prompt": "test it"}


def test_tokenize_as_an_evaluator_asks() -> None:
    body = {"prompt": "test", "add_special_tokens": False, "return_token_strs": True}
    answer = World(models=[made_model(bos_token_id=0)]).post("/tokenize", body).json
    assert answer["token_strs"] == ["test"]
    body = {"prompt": "test"}
    answer = World(models=[made_model(bos_token_id=0)]).post("/tokenize", body).json
    assert answer["tokens"][0] == 0


def test_a_chat_has_the_ids_that_the_engine_would_get() -> None:
    world = World()
    messages = [{"role": "user", "content": "hi <|im_end|>"}]
    ids = world.post("/tokenize", {"model": "smollm2", "messages": messages}).json["tokens"]
    world.chat("hi <|im_end|>")
    assert ids == list(world.request.token_ids.ids)
    text = world.post("/detokenize", {"tokens": ids}).json["prompt"]
    assert text.endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 3}, "prompt"),
        ("/tokenize", {"prompt": "a", "odd": 1}, "odd"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [49152]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
    ],
    ids=str,
)
def test_wrong_bodies(path: str, body: dict[str, Any], param: str) -> None:
    response = World().post(path, body)
    assert (response.status, response.error["param"]) == (400, param)


def test_an_empty_prompt_has_no_tokens() -> None:
    assert World().post("/tokenize", {"prompt": ""}).json["tokens"] == []


def test_tokenizer_info() -> None:
    info = World().get("/tokenizer_info").json
    assert info["eos_token"] == "<|im_end|>"
    assert info["bos_token"] is None
    assert info["model_max_length"] == 512
    assert "im_start" in info["chat_template"]
    assert info["vocab_size"] == tokenizer().vocab_size
    assert World().get("/tokenizer_info?model=nope").status == 404


def test_bodies_are_limited() -> None:
    response = World(max_body_bytes=1024).post("/tokenize", {"prompt": "x" * 2000})
    assert response.status == 413


def test_while_loading() -> None:
    world = World()
    world.fleet.loading = True
    assert world.post("/tokenize", {"prompt": "a"}).status == 503


HUGE = "x" * 3_000_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": HUGE}),
        ("/tokenize", {"messages": [{"role": "user", "content": HUGE}]}),
        ("/v1/completions", {"prompt": HUGE}),
        ("/v1/completions", {"prompt": ["short", HUGE]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": HUGE}]}),
    ],
    ids=["prompt", "messages", "completion", "completions", "chat"],
)
def test_a_text_that_must_be_too_long_is_refused_before_it_is_encoded(
    path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(self: Tokenizer, text: str, *, allow_special: bool) -> list[int]:
        assert len(text) < 100, "encoded"
        return [5]

    monkeypatch.setattr(Tokenizer, "encode", encode)
    response = World().post(path, {"model": "smollm2", **body})
    assert (response.status, response.error["code"]) == (400, "context_length_exceeded")
    assert "at least" in response.error["message"]


def test_too_many_ids_are_not_looked_at() -> None:
    ids = [-1] * 200_000
    refused = World().post("/detokenize", {"model": "smollm2", "tokens": ids})
    assert (refused.status, refused.error["param"]) == (400, "tokens")
    assert "at most" in refused.error["message"]
    for prompt in (ids, [ids]):
        response = World().post("/v1/completions", {"model": "smollm2", "prompt": prompt})
        assert response.error["code"] == "context_length_exceeded"
