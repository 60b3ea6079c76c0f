from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.api.scripted import World

from octavo.gateway.api.parameters import _ROWS, PARAMETERS, Endpoint
from octavo.gateway.api.schema import RawChat, RawCompletion

SHAPES: dict[Endpoint, Any] = {"chat": RawChat, "completions": RawCompletion}


def test_what_the_table_honours_is_what_the_schema_reads() -> None:
    for endpoint, shape in SHAPES.items():
        rows = PARAMETERS[endpoint].values()
        honoured = {row.name for row in rows if row.kind == "honoured"}
        assert honoured == set(shape.__struct_fields__)


def test_every_refusal_says_why_and_no_name_is_listed_twice() -> None:
    for endpoint in SHAPES:
        names = [row.name for row in _ROWS if endpoint in row.endpoints]
        assert len(names) == len(set(names))
    assert all(row.note for row in _ROWS if row.kind == "refused")


HARMLESS: list[tuple[str, Any]] = [
    ("user", "me"),
    ("store", False),
    ("store", None),
    ("metadata", {"a": "b"}),
    ("service_tier", "auto"),
    ("reasoning_effort", "low"),
    ("thinking", {"type": "adaptive"}),
    ("prompt_cache_key", "k"),
    ("parallel_tool_calls", False),
    ("tools", []),
    ("tools", None),
    ("tool_choice", "none"),
    ("tool_choice", "auto"),
    ("response_format", {"type": "text"}),
    ("skip_special_tokens", True),
    ("typical_p", 1.0),
    ("chat_template", None),
]


@pytest.mark.parametrize(("name", "value"), HARMLESS, ids=repr)
def test_harmless_parameters_are_listed(name: str, value: Any) -> None:
    world = World()
    response = world.chat(**{name: value})
    assert response.status == 200
    assert response.headers["x-octavo-ignored"] == name
    assert world.dispatcher.calls[0].ignored == (name,)


def test_unknown_names_without_a_value_are_not_repeated() -> None:
    world = World()
    foreign: dict[str, Any] = {f"name_{i}": None for i in range(5000)}
    response = world.chat(user="me", **foreign)
    assert response.status == 200
    assert response.headers["x-octavo-ignored"] == "user"
    assert world.dispatcher.calls[0].ignored == ("user",)


REFUSED: list[tuple[str, Any]] = [
    ("store", True),
    ("store", 0),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "f"}}),
    ("functions", [{"name": "f"}]),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
    ("structured_outputs", {"regex": "a"}),
    ("guided_json", {"type": "object"}),
    ("guided_choice", ["a"]),
    ("previous_response_id", "r"),
    ("chat_template", "{{ ''.__class__ }}"),
    ("skip_special_tokens", False),
    ("typical_p", 0.5),
    ("truncate_prompt_tokens", 4),
    ("suffix", "x"),
    ("echo", True),
    ("prompt", "x"),
    ("max_token", 5),
    ("__class__", 1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=repr)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_would_change_the_answer_is_refused(name: str, value: Any, stream: bool) -> None:
    response = World().chat(stream=stream, **{name: value})
    assert response.status == 400
    assert response.error["code"] == "unsupported_parameter"
    assert response.error["param"] == name


def test_a_misspelling_gets_a_hint() -> None:
    assert "did you mean max_tokens?" in World().chat(max_token=5).error["message"]


def test_tools_are_ignored_when_none_may_be_called() -> None:
    response = World().chat(tools=[{"type": "function"}], tool_choice="none")
    assert response.headers["x-octavo-ignored"] == "tools,tool_choice"


@pytest.mark.parametrize("how", ["header", "query"])
def test_strictness_refuses_what_has_no_effect(how: str) -> None:
    body: dict[str, Any] = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "hi"}],
        "user": "me",
    }
    headers = {"x-octavo-strict": "1"} if how == "header" else {}
    path = "/v1/chat/completions" + ("?strict=1" if how == "query" else "")
    response = World().post(path, body, headers=headers)
    assert (response.status, response.error["param"]) == (400, "user")
    body.update(user=None, store=False)
    assert World().post(path, body, headers=headers).status == 200


@pytest.mark.parametrize("name", ["seed", "stop", "logit_bias", "n", "max_tokens", "logprobs"])
def test_null_means_absent_and_is_not_called_ignored(name: str) -> None:
    null: dict[str, Any] = {name: None}
    for response in (World().chat(**null), World().complete(**null)):
        assert response.status == 200
        assert "x-octavo-ignored" not in response.headers
