"""Requests for a service without an engine, through the app."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.gateway.api.scripted import Response, World, made_model, says
from tests.gateway.harness import until

from octavo.gateway.api import held as module

NAME = "team/asleep"


def world(**config: Any) -> World:
    made = World(says("Hello there"), models=[made_model(NAME)], heartbeat_s=0.1, **config)
    made.fleet.sleep(NAME)
    return made


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], **config: Any) -> None:
    asyncio.run(scenario(world(**config)))


async def chat(made: World, *, headers: dict[str, str] | None = None, **more: Any) -> Response:
    body = {"model": NAME, "messages": [{"role": "user", "content": "hi"}], **more}
    leaves = body.pop("leave_after_s", None)
    return await made.ask(
        "POST",
        "/v1/chat/completions",
        json.dumps(body).encode(),
        headers=headers,
        leave_after_s=leaves,
    )


def held(made: World) -> int:
    return made.fleet.demand.num_held


async def held_then_woken(made: World, count: int = 1, **more: Any) -> list[Response]:
    asking = [asyncio.create_task(chat(made, **more)) for _ in range(count)]
    await until(lambda: held(made) == count)
    assert made.dispatcher.calls == []
    made.fleet.wake(NAME)
    return list(await asyncio.gather(*asking))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_waits_for_the_engine_and_is_answered(stream: bool) -> None:
    async def scenario(made: World) -> None:
        [response] = await held_then_woken(made, stream=stream)
        assert response.status == 200
        assert "Hello" in response.body.decode()
        assert response.complete
        assert held(made) == 0
        [call] = made.dispatcher.calls
        assert call.waited_s > 0

    run(scenario)


def test_n_choices_and_several_prompts_wait_like_one_request() -> None:
    async def scenario(made: World) -> None:
        [response] = await held_then_woken(made, n=2)
        assert len(response.json["choices"]) == 2

    run(scenario)


def test_a_long_wait_of_a_stream_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.1)

    async def scenario(made: World) -> None:
        asking = asyncio.create_task(chat(made, stream=True))
        await asyncio.sleep(0.5)
        assert not asking.done()
        made.fleet.wake(NAME)
        response = await asking
        body = response.body.decode()
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-request-id"]
        assert body.startswith(": keep-alive\n\n")
        assert body.count(": keep-alive") >= 2
        assert body.endswith("data: [DONE]\n\n")
        assert f"chatcmpl-{response.headers['x-request-id']}" in body
        assert response.complete

    run(scenario)


def test_an_error_after_the_wait_is_an_event_of_the_stream_that_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.05)

    async def scenario(made: World) -> None:
        asking = asyncio.create_task(chat(made, stream=True, max_tokens=0))
        await asyncio.sleep(0.2)
        made.fleet.wake(NAME)
        response = await asking
        assert response.status == 200
        assert response.chunks[-1]["error"]["param"] == "max_tokens"
        assert b"[DONE]" not in response.body
        assert not response.complete

    run(scenario)


def test_what_is_wrong_with_the_body_is_told_at_once() -> None:
    async def scenario(made: World) -> None:
        response = await chat(made, n="two")
        assert (response.status, response.error["param"]) == (400, "n")
        assert held(made) == 0

    run(scenario)


def test_a_wait_that_is_too_long_ends_with_advice() -> None:
    async def scenario(made: World) -> None:
        made.fleet.loading = True
        response = await chat(made)
        assert (response.status, response.error["code"]) == (503, "model_loading")
        assert int(response.headers["retry-after"]) >= 1
        assert made.dispatcher.refusals[-1][0] == "model_loading"

    run(scenario, hold_s=0.1)


def test_too_many_get_429_with_advice() -> None:
    async def scenario(made: World) -> None:
        asking = asyncio.create_task(chat(made))
        await until(lambda: held(made) == 1)
        response = await chat(made)
        assert (response.status, response.error["code"]) == (429, "overloaded")
        assert int(response.headers["retry-after"]) >= 1
        made.fleet.wake(NAME)
        assert (await asking).status == 200

    run(scenario, max_held=1)


def test_a_client_that_leaves_frees_its_place_and_is_remembered() -> None:
    async def scenario(made: World) -> None:
        response = await chat(made, leave_after_s=0.1)
        assert response.status == 0
        assert held(made) == 0
        assert made.admission.num_open == 0
        figures = made.fleet.demand.figures(f"team/{NAME}")
        assert figures.wanted_age_s is not None
        assert figures.held == 0

    run(scenario)


@pytest.mark.parametrize(
    ("more", "headers", "status", "code"),
    [
        ({"max_queue_ms": 100}, {}, 503, "queue_timeout"),
        ({"max_queue_ms": 100, "stream": True}, {}, 503, "queue_timeout"),
        ({}, {"x-stainless-read-timeout": "0.1"}, 504, "deadline_exceeded"),
    ],
    ids=["queue", "queue of a stream", "deadline"],
)
def test_a_client_s_own_patience_counts(
    more: dict[str, Any], headers: dict[str, str], status: int, code: str
) -> None:
    async def scenario(made: World) -> None:
        response = await chat(made, headers=headers, **more)
        assert (response.status, response.error["code"]) == (status, code)
        assert "100 ms" in response.error["message"]
        assert held(made) == 0

    run(scenario)


def test_a_key_waits_too_and_its_answer_is_given_once() -> None:
    async def scenario(made: World) -> None:
        headers = {"idempotency-key": "k"}
        first, second = await held_then_woken(made, 2, headers=headers, stream=False)
        assert first.json["id"] == second.json["id"]
        assert len(made.dispatcher.calls) == 1

    run(scenario)


def test_the_id_of_a_keyed_answer_is_not_told_before_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "HOLD_S", 0.05)

    async def scenario(made: World) -> None:
        asking = asyncio.create_task(chat(made, headers={"idempotency-key": "k"}, stream=True))
        await asyncio.sleep(0.2)
        made.fleet.wake(NAME)
        response = await asking
        assert "x-request-id" not in response.headers
        assert response.body.endswith(b"data: [DONE]\n\n")

    run(scenario)


def test_a_gateway_that_shuts_down_holds_nobody() -> None:
    async def scenario(made: World) -> None:
        asking = asyncio.create_task(chat(made))
        await until(lambda: held(made) == 1)
        made.fleet.draining = True
        made.fleet.wake(NAME)
        response = await asking
        assert (response.status, response.error["code"]) == (503, "draining")
        assert int(response.headers["retry-after"]) >= 1

    run(scenario)


def test_names_that_no_service_has_are_not_held() -> None:
    async def scenario(made: World) -> None:
        for name in ("unknown", 7):
            response = await chat(made, model=name)
            assert response.status in (400, 404)

    run(scenario)
