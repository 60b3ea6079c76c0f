"""The unmodified openai client against the whole of it: gateway, engine, Valkey, real model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import httpx
import openai
import pytest
from tests.serving import Serving

MODEL = "smollm2"
QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    running = Serving(tmp_path_factory.mktemp("logs"))
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.fixture
def client(serving: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert MODEL in [m.id for m in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0)
    assert answer.choices[0].message.role == "assistant"
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, seed=5, max_tokens=30)
    parts, reasons, usage = "", [], None
    for chunk in client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        seed=5,
        max_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    ):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            parts += choice.delta.content or ""
            reasons.append(choice.finish_reason)
    assert parts == whole.choices[0].message.content
    assert [r for r in reasons if r] == [whole.choices[0].finish_reason]
    assert usage is not None
    assert whole.usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_completions_take_text_lists_and_ids(client: openai.OpenAI) -> None:
    def ask(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0, max_tokens=4)
        return [c.text for c in answer.choices]

    one = ask("The capital of France is")
    assert one[0].startswith(" Paris")
    assert ask(["The capital of France is", "The capital of Italy is"])[0] == one[0]
    tokens = httpx.post(
        str(client.base_url.join("/tokenize")),
        json={"model": MODEL, "prompt": "The capital of France is"},
    ).json()["tokens"]
    assert ask(tokens) == one
    assert ask([tokens, tokens]) == one * 2


def test_beam_search_gives_the_best_sequences_whole_or_as_a_stream(client: openai.OpenAI) -> None:
    search = {"use_beam_search": True, "beam_width": 4, "length_penalty": 0.5}
    prompt = "The three largest cities of France are"
    whole = client.completions.create(
        model=MODEL, prompt=prompt, n=3, max_tokens=12, extra_body=search
    )
    best = [choice.text for choice in whole.choices]
    assert len(set(best)) == 3
    assert "Paris" in best[0]
    assert whole.usage is not None
    assert 3 < whole.usage.completion_tokens <= 36
    texts = ["", "", ""]
    for chunk in client.completions.create(
        model=MODEL, prompt=prompt, n=3, max_tokens=12, stream=True, extra_body=search
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == best
    with pytest.raises(openai.BadRequestError, match="beam search") as refused:
        client.completions.create(
            model=MODEL, prompt=prompt, n=2, temperature=0.7, extra_body={"use_beam_search": True}
        )
    assert refused.value.param == "temperature"


def test_choices_use_consecutive_seeds(client: openai.OpenAI) -> None:
    def ask(seed: int, n: int) -> list[str | None]:
        answer = client.chat.completions.create(
            model=MODEL, messages=QUESTION, seed=seed, n=n, max_tokens=12, temperature=1
        )
        return [c.message.content for c in answer.choices]

    assert ask(7, 3) == ask(7, 1) + ask(8, 1) + ask(9, 1)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_seeds_differ_and_repeat(client: openai.OpenAI, api: str) -> None:
    """Case 9 of the engines' public bug list."""

    def ask(seed: int) -> str | None:
        if api == "chat":
            chat = client.chat.completions.create(
                model=MODEL, messages=QUESTION, seed=seed, max_tokens=8, temperature=1
            )
            return chat.choices[0].message.content
        return (
            client.completions.create(
                model=MODEL, prompt="Once", seed=seed, max_tokens=8, temperature=1
            )
            .choices[0]
            .text
        )

    answers = [ask(seed) for seed in range(1, 6)]
    assert len(set(answers)) == 5
    assert [ask(seed) for seed in range(1, 6)] == answers


def test_logprobs_have_an_entry_a_token(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert answer.usage is not None
    assert len(logprobs.content) == answer.usage.completion_tokens
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert bytes(entry.bytes or []).decode() == entry.token
        assert [t.logprob for t in entry.top_logprobs] == sorted(
            (t.logprob for t in entry.top_logprobs), reverse=True
        )


def test_logprobs_without_alternatives_are_empty_lists(client: openai.OpenAI) -> None:
    """Case 19."""
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=3, logprobs=True
    )
    assert answer.choices[0].logprobs is not None
    for entry in answer.choices[0].logprobs.content or []:
        assert entry.top_logprobs == []
        assert entry.bytes is not None


def test_echo_scores_the_prompt(client: openai.OpenAI) -> None:
    """Cases 15 and lm-eval's loglikelihood."""
    answer = client.completions.create(
        model=MODEL, prompt="Paris is a city", echo=True, max_tokens=0, logprobs=1
    )
    logprobs = answer.choices[0].logprobs
    assert answer.choices[0].text == "Paris is a city"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    assert logprobs is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert all(p < 0 for p in logprobs.token_logprobs[1:])
    assert len(logprobs.token_logprobs) == answer.usage.prompt_tokens


def test_stop_strings_are_never_sent(client: openai.OpenAI) -> None:
    """Case 1: the stop is longer than the tokens that complete it."""
    chunks = client.completions.create(
        model=MODEL,
        prompt="Here is the English alphabet: ABC",
        stop=["DEFGHIJ"],
        temperature=0,
        max_tokens=30,
        stream=True,
    )
    texts, reason = [], None
    for chunk in chunks:
        texts.append(chunk.choices[0].text)
        reason = chunk.choices[0].finish_reason or reason
    assert not any(set(t) & set("DEFGHIJ") for t in texts[:1])
    assert "DEFGHIJ" not in "".join(texts)


def test_characters_of_many_bytes_arrive_whole(client: openai.OpenAI) -> None:
    """Case 6."""
    text = "ďábelské 👋🏽 家 ďábelské 👋🏽 家 ďábelské 👋🏽"
    arguments = {"model": MODEL, "prompt": text, "temperature": 0, "max_tokens": 24}
    whole = client.completions.create(**arguments).choices[0].text  # type: ignore[call-overload]
    parts = [
        c.choices[0].text
        for c in client.completions.create(**arguments, stream=True)  # type: ignore[call-overload]
    ]
    assert "".join(parts) == whole
    assert not any("�" in p for p in parts[:-1])


def test_a_seeded_request_is_the_same_beside_others(serving: Serving) -> None:
    """Case 8."""

    async def ask(client: openai.AsyncOpenAI, seed: int | None) -> str | None:
        answer = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=12, temperature=1, seed=seed
        )
        return answer.choices[0].message.content

    async def check() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{serving.url}/v1", api_key="none", max_retries=0
        ) as client:
            seeded = set()
            for _ in range(4):
                pair = await asyncio.gather(ask(client, 42), ask(client, None))
                seeded.add(pair[0])
            assert len(seeded) == 1

    asyncio.run(check())


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-9", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="word " * 3000)
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in str(long.value)
    with pytest.raises(openai.BadRequestError) as greedy:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, n=2)
    assert greedy.value.param == "n"


BAD = {
    "bias beyond the vocabulary": {"logit_bias": {"191222": -100}},
    "bias by name": {"logit_bias": {"AI": -100}},
    "negative id": {"prompt": [-1]},
    "huge id": {"prompt": [5279552648203111001]},
    "id = vocabulary": {"prompt": [49152]},
    "usage without a stream": {"stream_options": {"include_usage": True}},
    "temperature": {"temperature": 3},
    "nan": {"temperature": "NaN"},
    "negative max_tokens": {"max_tokens": -1},
    "empty stop": {"stop": [""]},
    "nothing": {"prompt": []},
    "nested tools": {"tools": json.loads("[" * 60 + "]" * 60)},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
def test_bad_input_is_a_400_and_the_next_request_is_served(
    client: openai.OpenAI, fields: dict[str, object]
) -> None:
    """Cases 11, 12, 14, 34 and their kind."""
    body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2} | fields
    answer = httpx.post(f"{client.base_url}completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    alive = client.completions.create(model=MODEL, prompt="Hello", max_tokens=2)
    assert alive.usage is not None


def test_top_p_and_logprobs_go_together(client: openai.OpenAI) -> None:
    """Case 17: masked tokens are floored, the JSON is valid."""
    answer = client.completions.create(
        model=MODEL, prompt="Hello", logprobs=5, temperature=0.01, top_p=0.3, max_tokens=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert len(logprobs.token_logprobs or []) == 3


def test_the_same_request_id_twice_is_two_requests(client: openai.OpenAI) -> None:
    """Case 21."""
    ids = set()
    for _ in range(2):
        answer = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=QUESTION, max_tokens=2, extra_headers={"x-request-id": "mine"}
        )
        ids.add(answer.headers["x-request-id"])
    assert len(ids) == 2


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "whole"])
def test_a_client_that_leaves_frees_the_engine(serving: Serving, stream: bool) -> None:
    """Case 24, and 11 and 12 of the gateways' list."""
    body = {
        "model": MODEL, "prompt": "Count:", "max_tokens": 900, "ignore_eos": True, "stream": stream,
    }  # fmt: skip

    async def check() -> None:
        async with httpx.AsyncClient(base_url=serving.url) as client:
            asking = asyncio.create_task(client.post("/v1/completions", json=body))
            await asyncio.sleep(1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            async with asyncio.timeout(5):
                while True:
                    metrics = (await client.get("/metrics")).text
                    (line,) = [
                        x
                        for x in metrics.splitlines()
                        if x.startswith("octavo_gateway_requests_in_flight ")
                    ]
                    if float(line.split()[-1]) == 0:
                        return
                    await asyncio.sleep(0.05)

    asyncio.run(check())


def test_a_request_can_be_looked_up_by_its_id(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url) as client:
        answer = client.post(
            "/v1/completions", json={"model": MODEL, "prompt": "Hello there", "max_tokens": 3}
        )
        record = client.get(f"/v1/requests/{answer.headers['x-request-id']}").json()
    assert record["state"] == "finished"
    assert record["output_tokens"] == 3
    assert record["engine"]
