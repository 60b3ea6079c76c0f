from __future__ import annotations

import itertools
from typing import Any

import pytest
from tests.gateway.api.scripted import World, made_model, says
from tests.runtime.smollm2_files import tokenizer


def prompts(world: World) -> list[list[int]]:
    return [list(c.request.token_ids.ids) for c in world.dispatcher.calls]


def ids(*parts: str | int) -> list[int]:
    """The tokens of texts, and those that are given as such."""
    found = (
        [p] if isinstance(p, int) else tokenizer().encode(p, allow_special=True) for p in parts
    )
    return list(itertools.chain.from_iterable(found))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once", [["Once"]]),
        (["Once", "Then"], [["Once"], ["Then"]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ([5], [[5]]),
        (["Once", [5]], [["Once"], [5]]),
        ("<|im_start|>user", [[1, "user"]]),
    ],
    ids=str,
)
def test_shapes_of_prompts(prompt: Any, expected: list[list[str | int]]) -> None:
    world = World()
    assert world.complete(prompt).status == 200
    assert prompts(world) == [ids(*parts) for parts in expected]


@pytest.mark.parametrize(
    ("prompt", "param", "words"),
    [
        ([-1], "prompt", "out of vocabulary"),
        ([5279552648203111001], "prompt", "out of vocabulary"),
        ([49152], "prompt", "out of vocabulary"),
        ([[5], [49152]], "prompt[1]", "out of vocabulary"),
        ([True], "prompt", "integers"),
        ([5, "a"], "prompt[0]", "text or a list"),
        ([[5, 1.5]], "prompt[0]", "integers"),
        ([], "prompt", "is empty"),
        ([[]], "prompt", "is empty"),
        ("", "prompt", "is empty"),
        ({}, "prompt", "Expected"),
        ([["a"]], "prompt[0]", "integers"),
        ([[1]] * 1025, "prompt", "more than 1024"),
    ],
    ids=lambda v: repr(v)[:30],
)
def test_what_is_no_prompt(prompt: Any, param: str, words: str) -> None:
    world = World()
    response = world.complete(prompt)
    assert (response.status, response.error["param"]) == (400, param)
    assert words in response.error["message"]
    assert world.complete().status == 200


def test_choices_of_several_prompts_are_numbered_through() -> None:
    world = World(says("Hi", cached=4))
    answer = world.complete(["Once", "Then"], n=2).json
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(ids("Once")) + len(ids("Then"))
    assert usage["completion_tokens"] == 2 * 2 * 2
    assert usage["prompt_tokens_details"]["cached_tokens"] == 8


def test_of_several_prompts_none_starts_unless_all_are_sound() -> None:
    world = World()
    response = world.complete([[5], [5] * 600])
    assert response.error["code"] == "context_length_exceeded"
    assert world.dispatcher.calls == []


def test_several_prompts_stream_together() -> None:
    response = World(says("Hi")).complete(["Once", "Then"], stream=True, n=2)
    texts = dict.fromkeys(range(4), "")
    for chunk in response.chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == dict.fromkeys(range(4), "Hi")
    assert response.body.count(b"[DONE]") == 1


def test_the_default_length_is_openais() -> None:
    world = World()
    world.complete()
    assert world.request.max_tokens == 16
    assert World().complete(max_tokens=0).status == 400


def test_a_plain_prompt_begins_with_the_token_that_the_model_wants() -> None:
    model = made_model(bos_token_id=0)
    world = World(models=[model])
    world.complete("Once")
    world.complete("Once", add_special_tokens=False)
    world.complete([5])
    assert prompts(world) == [[0, *ids("Once")], ids("Once"), [5]]


def test_exactly_full_prompts() -> None:
    response = World().complete([5] * 512)
    assert response.error["code"] == "context_length_exceeded"
    assert World().complete([5] * 511).status == 200


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_echo_repeats_the_prompt(stream: bool) -> None:
    for prompt in ("Once upon", [ids("Once upon")]):
        response = World().complete(prompt, echo=True, stream=stream)
        answers = response.chunks if stream else [response.json]
        assert "".join(a["choices"][0]["text"] for a in answers) == "Once uponHello there"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_scoring_gives_the_prompts_logprobs_and_no_tokens(stream: bool) -> None:
    world = World()
    response = world.complete(
        "Once upon a time",
        echo=True,
        max_tokens=0,
        logprobs=1,
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream else {}),
    )
    assert world.request.score_only
    answer = response.chunks[0] if stream else response.json
    logprobs = answer["choices"][0]["logprobs"]
    count = len(ids("Once upon a time"))
    assert answer["choices"][0]["text"] == "Once upon a time"
    assert "".join(logprobs["tokens"]) == "Once upon a time"
    assert logprobs["token_logprobs"] == [None] + [-1.5] * (count - 1)
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["text_offset"][:2] == [0, len(logprobs["tokens"][0])]
    usage = (response.chunks[-1] if stream else answer)["usage"]
    assert usage["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_echo_and_logprobs_cover_prompt_and_answer(stream: bool) -> None:
    response = World().complete("Once upon", echo=True, logprobs=1, max_tokens=3, stream=stream)
    merged: dict[str, list[Any]] = {}
    for answer in response.chunks if stream else [response.json]:
        for name, values in (answer["choices"][0]["logprobs"] or {}).items():
            merged.setdefault(name, []).extend(values)
    expected = ids("Once upon") + ids("Hello there") + [2]
    assert len(merged["tokens"]) == len(merged["text_offset"]) == len(expected)
    text = "Once uponHello there<|im_end|>"
    assert "".join(merged["tokens"]) == text
    for token, offset in zip(merged["tokens"], merged["text_offset"], strict=True):
        assert text[offset:].startswith(token)


def test_prompt_logprobs_in_the_shape_of_vllm() -> None:
    answer = World().complete("Once upon", prompt_logprobs=1).json
    first, second = answer["choices"][0]["prompt_logprobs"]
    token = str(ids("Once upon")[1])
    assert first is None
    assert second[token] == {"logprob": -1.5, "rank": 1, "decoded_token": " upon"}
    chat = World().chat(prompt_logprobs=0).json
    assert chat["prompt_logprobs"][0] is None
