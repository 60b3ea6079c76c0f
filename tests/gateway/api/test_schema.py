from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.api.scripted import World

from octavo.gateway.api.parameters import PARAMETERS

WRONG: list[tuple[str, Any, str]] = [
    ("temperature", "hot", "temperature"),
    ("temperature", True, "temperature"),
    ("max_tokens", "5", "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 10**30, "max_tokens"),
    ("max_tokens", 0, "max_tokens"),
    ("top_k", 10**12, "top_k"),
    ("stop", 3, "stop"),
    ("stop", ["a", 1], "stop[1]"),
    ("n", True, "n"),
    ("n", 0, "n"),
    ("n", 10**9, "n"),
    ("seed", -2, "seed"),
    ("seed", 2**63, "seed"),
    ("priority", 2**31, "priority"),
    ("stream", "yes", "stream"),
    ("stream_options", [], "stream_options"),
    ("logprobs", 3, "logprobs"),
    ("top_logprobs", 21, "logprobs"),
    ("messages", "hi", "messages"),
    ("messages", [1], "messages[0]"),
    ("messages", [], "messages"),
    ("logit_bias", [1], "logit_bias"),
    ("cache_salt", "x" * 257, "cache_salt"),
    ("max_queue_ms", -1, "max_queue_ms"),
]


@pytest.mark.parametrize(("name", "value", "param"), WRONG, ids=lambda v: repr(v)[:30])
def test_a_wrong_value_is_named(name: str, value: Any, param: str) -> None:
    more = {"logprobs": True} if name == "top_logprobs" else {}
    response = World().chat(**{**more, name: value})
    assert response.status == 400
    assert response.error["code"] == "invalid_value"
    assert response.error["param"] == param


def test_missing_fields_are_named() -> None:
    response = World().post("/v1/chat/completions", {"model": "smollm2"})
    assert response.error["param"] == "messages"
    assert World().post("/v1/completions", {"model": "smollm2"}).error["param"] == "prompt"


def test_unknown_stream_options_are_refused() -> None:
    response = World().chat(stream=True, stream_options={"include_usages": True})
    assert (response.status, response.error["param"]) == (400, "stream_options.include_usages")


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


NAMES = sorted({*PARAMETERS["chat"], *PARAMETERS["completions"]})


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(NAMES), ANY, max_size=4))
def test_no_body_is_a_server_error(body: dict[str, Any]) -> None:
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}]}
    world = World()
    assert world.post("/v1/chat/completions", {**chat, **body}).status in (200, 400, 404)
    text = {"model": "smollm2", "prompt": "hi"}
    assert world.post("/v1/completions", {**text, **body}).status in (200, 400, 404)


@settings(max_examples=100)
@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), ANY)))
def test_no_message_is_a_server_error(messages: list[Any]) -> None:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": "a"}, *messages]}
    assert World().post("/v1/chat/completions", body).status in (200, 400)
