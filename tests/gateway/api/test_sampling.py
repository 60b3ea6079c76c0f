from __future__ import annotations

import math
from typing import Any

import pytest
from tests.gateway.api.scripted import LENGTH, World, made_model, says
from tests.runtime.smollm2_files import tokenizer

from octavo.v1 import engine_pb2


def test_every_sampling_field_reaches_the_engine() -> None:
    world = World()
    response = world.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        seed=7,
        logit_bias={"5": 200, "6": -1.5},
        bad_words=["spam"],
        allowed_token_ids=[1, 2, 3],
        stop="END",
        stop_token_ids=[9],
        include_stop_str_in_output=True,
        ignore_eos=True,
        min_tokens=2,
        max_tokens=20,
        n=2,
        best_of=2,
        priority=-3,
        cache_salt="s",
        fairness_key="f",
        max_queue_ms=500,
        logprobs=True,
        top_logprobs=3,
    )
    assert response.status == 200
    request = world.request
    sampling = request.sampling
    assert math.isclose(sampling.temperature, 0.5)
    assert math.isclose(sampling.top_p, 0.9, rel_tol=1e-6)
    assert sampling.top_k == 40
    assert math.isclose(sampling.min_p, 0.05, rel_tol=1e-6)
    assert math.isclose(sampling.repetition_penalty, 1.1, rel_tol=1e-6)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert sampling.seed == 7
    assert [(b.token_id, b.bias) for b in sampling.logit_bias] == [(5, 100.0), (6, -1.5)]
    words = [tokenizer().decode(list(w.ids), skip_special=True) for w in sampling.bad_words]
    assert words == ["spam", " spam"]
    assert list(sampling.allowed_token_ids) == [1, 2, 3]
    assert list(request.stop.strings) == ["END"]
    assert list(request.stop.token_ids) == [9]
    assert request.stop.include_in_output
    assert request.stop.ignore_eos
    assert (request.min_tokens, request.max_tokens, request.n) == (2, 20, 2)
    assert (request.priority, request.cache_salt, request.max_queue_ms) == (-3, "s", 500)
    assert request.fairness_key == "f"
    assert request.logprobs == 3
    assert request.model == "smollm2"
    assert len(response.json["choices"]) == 2


def test_silence_means_the_models_defaults_and_then_openais() -> None:
    world = World()
    world.chat()
    assert not world.request.sampling.HasField("temperature")
    assert not world.request.sampling.HasField("seed")
    defaults = engine_pb2.Sampling(temperature=0.2, top_p=0.9, top_k=20)
    world = World(models=[made_model(default_sampling=defaults)])
    world.chat(top_k=5)
    sampling = world.request.sampling
    assert math.isclose(sampling.temperature, 0.2, rel_tol=1e-6)
    assert sampling.top_k == 5
    assert not sampling.HasField("repetition_penalty")
    shown = world.get("/v1/models").json["data"][0]["default_sampling"]
    assert shown == {"temperature": 0.2, "top_p": 0.9, "top_k": 20.0}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"logit_bias": {"191222": -100}}, "logit_bias"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0663": 1}}, "logit_bias"),
        ({"stop": ""}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [49152]}, "stop_token_ids"),
        ({"allowed_token_ids": [10**12]}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"n": 9}, "n"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        (
            {"continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
    ],
    ids=str,
)
def test_values_out_of_range(body: dict[str, Any], param: str) -> None:
    world = World()
    response = world.chat(**body)
    assert (response.status, response.error["param"]) == (400, param)
    assert world.chat().status == 200


def test_no_seed_is_null_or_minus_one() -> None:
    world = World()
    world.chat(seed=-1)
    assert not world.request.sampling.HasField("seed")


def test_max_tokens_is_an_upper_bound() -> None:
    world = World(says("Hello there", finish=LENGTH))
    response = world.chat(max_tokens=128_000)
    room = 512 - len(world.request.token_ids.ids)
    assert world.request.max_tokens == room
    assert response.headers["x-octavo-clamped"] == f"max_tokens={room}"
    assert world.dispatcher.calls[0].clamped
    assert response.json["choices"][0]["finish_reason"] == "length"


def test_the_engines_quota_bounds_the_room() -> None:
    world = World(models=[made_model(max_output_tokens=20)])
    assert world.chat(max_tokens=9).headers.get("x-octavo-clamped") is None
    assert world.chat(max_tokens=21).headers["x-octavo-clamped"] == "max_tokens=20"
    assert world.chat().headers.get("x-octavo-clamped") is None
    assert world.request.max_tokens == 20


def test_without_max_tokens_there_is_the_room_that_is_left() -> None:
    world = World()
    response = world.chat()
    assert world.request.max_tokens == 512 - len(world.request.token_ids.ids)
    assert "x-octavo-clamped" not in response.headers


@pytest.mark.parametrize(
    "body",
    [
        {"logit_bias": {f"no id {i}": 0 for i in range(1025)}},
        {"bad_words": ["a" * 100_000]},
        {"bad_words": ["a"] * 1025},
        {"stop_token_ids": [-1] * 257},
        {"allowed_token_ids": [-1] * 50_000},
    ],
    ids=["logit_bias", "a long bad word", "many bad words", "stop ids", "allowed ids"],
)
def test_lists_that_are_too_long_are_refused_before_their_entries(body: dict[str, Any]) -> None:
    response = World().chat(**body)
    assert (response.status, response.error["param"]) == (400, next(iter(body)))
    words = response.error["message"]
    assert "at most" in words or "characters" in words


@pytest.mark.parametrize(
    ("body", "width", "penalty", "early"),
    [
        ({"n": 2}, 2, 1.0, engine_pb2.EARLY_STOPPING_UNSPECIFIED),
        ({"best_of": 3, "early_stopping": True}, 3, 1.0, engine_pb2.EARLY_STOPPING_WHEN_FULL),
        ({"beam_width": 4, "n": 2, "length_penalty": 0}, 4, 0.0, 0),
        (
            {"beam_width": 3, "best_of": 3, "early_stopping": "never", "length_penalty": 2},
            3,
            2.0,
            engine_pb2.EARLY_STOPPING_NEVER,
        ),
    ],
    ids=str,
)
def test_beam_search_reaches_the_engine_from_both_endpoints(
    body: dict[str, Any], width: int, penalty: float, early: int
) -> None:
    world = World()
    for ask in (world.chat, world.complete):
        assert ask(use_beam_search=True, max_tokens=20, **body).status == 200
        beam = world.request.beam
        assert (beam.width, beam.length_penalty, beam.early_stopping) == (width, penalty, early)
        assert world.request.n == body.get("n", 1)


def test_beam_search_takes_of_the_models_defaults_what_is_no_draw() -> None:
    defaults = engine_pb2.Sampling(temperature=0.2, top_p=0.9, top_k=20, repetition_penalty=1.1)
    world = World(models=[made_model(default_sampling=defaults)])
    body: dict[str, Any] = {"use_beam_search": True, "beam_width": 2, "max_tokens": 20}
    assert world.chat(**body, logit_bias={"5": 1}, min_tokens=2).status == 200
    assert world.request.sampling == engine_pb2.Sampling(
        repetition_penalty=defaults.repetition_penalty,
        logit_bias=[engine_pb2.LogitBias(token_id=5, bias=1.0)],
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"beam_width": 4}, "beam_width"),
        ({"length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True}, "beam_width"),
        ({"use_beam_search": True, "beam_width": 9}, "beam_width"),
        ({"use_beam_search": True, "beam_width": 2, "n": 3}, "n"),
        ({"use_beam_search": True, "beam_width": 2, "best_of": 3}, "best_of"),
        ({"use_beam_search": True, "n": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": True, "n": 2, "length_penalty": 1e300}, "length_penalty"),
        ({"use_beam_search": True, "n": 2, "temperature": 0.7}, "temperature"),
        ({"use_beam_search": True, "n": 2, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "n": 2, "logprobs": True}, "logprobs"),
        ({"use_beam_search": True, "n": 2, "prompt_logprobs": 1}, "prompt_logprobs"),
    ],
    ids=str,
)
def test_beam_search_refuses_what_it_cannot_mean(body: dict[str, Any], param: str) -> None:
    response = World().chat(max_tokens=20, **body)
    assert (response.status, response.error["param"]) == (400, param)


def test_parameters_of_beam_search_without_it_may_have_their_defaults() -> None:
    world = World()
    body: dict[str, Any] = {
        "use_beam_search": False,
        "length_penalty": 1,
        "early_stopping": False,
    }
    assert world.chat(**body).status == 200
    assert not world.request.HasField("beam")
