from __future__ import annotations

import asyncio

import pytest
from bench.answer import read_answer
from bench.client import Endpoint, PromptForm, drive, first_model
from bench.workloads import Prompt, WorkItem, Workload
from tests.bench.stand_in import DONE, StandIn, served, text_event

ANSWER = (text_event("one"), text_event(" two"), DONE)


def workload(count: int, *, concurrency: int | None, gap_s: float = 0.0) -> Workload:
    items = (
        WorkItem(
            shared=Prompt(ids=(7,), text=" all"),
            own=Prompt(ids=(number,), text=f" own{number}"),
            max_tokens=2,
            arrival_s=number * gap_s,
        )
        for number in range(count)
    )
    return Workload(name="W", items=tuple(items), concurrency=concurrency)


def test_text_is_stamped_when_it_comes_not_when_the_stream_ends() -> None:
    with served(StandIn(ANSWER, pause_s=0.1)) as server:
        work = workload(1, concurrency=1)
        [exchange] = asyncio.run(drive(Endpoint(url=server.url, model="m"), work))
    answer = read_answer(exchange, work.items[0])
    assert answer.error == ""
    first, second = answer.text_times
    assert first - answer.begin >= 0.09
    assert 0.05 < second - first < answer.end - first


@pytest.mark.parametrize(("concurrency", "most"), [(1, 1), (3, 3), (None, 6)])
def test_as_many_requests_are_under_way_as_the_workload_says(
    concurrency: int | None, most: int
) -> None:
    with served(StandIn(ANSWER, hold_until=most)) as server:
        work = workload(6, concurrency=concurrency)
        endpoint = Endpoint(url=server.url, model="m", timeout_s=20)
        exchanges = asyncio.run(drive(endpoint, work))
    assert server.most_under_way == most
    assert [exchange.status for exchange in exchanges] == [200] * 6


def test_open_loop_clocks_each_request_from_when_it_was_due() -> None:
    with served(StandIn(ANSWER)) as server:
        work = workload(3, concurrency=None, gap_s=0.1)
        exchanges = asyncio.run(drive(Endpoint(url=server.url, model="m"), work))
    begins = [exchange.begin for exchange in exchanges]
    assert begins[1] - begins[0] == pytest.approx(0.1)
    assert begins[2] - begins[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("form", "path", "field", "value"),
    [
        (PromptForm.IDS, "/v1/completions", "prompt", [7, 0]),
        (PromptForm.TEXT, "/v1/completions", "prompt", " all own0"),
        (
            PromptForm.CHAT,
            "/v1/chat/completions",
            "messages",
            [{"role": "system", "content": " all"}, {"role": "user", "content": " own0"}],
        ),
    ],
)
def test_request_asks_for_a_greedy_stream_of_fixed_length(
    form: PromptForm, path: str, field: str, value: object
) -> None:
    with served(StandIn(ANSWER)) as server:
        endpoint = Endpoint(url=server.url, model="m", form=form)
        asyncio.run(drive(endpoint, workload(1, concurrency=1)))
    [(asked_path, body)] = server.asked
    assert asked_path == path
    assert body.pop(field) == value
    assert body == {
        "model": "m",
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_server_that_is_not_there_is_a_failure_of_each_request() -> None:
    work = workload(2, concurrency=2)
    exchanges = asyncio.run(drive(Endpoint(url="http://127.0.0.1:1", model="m"), work))
    assert [exchange.status for exchange in exchanges] == [0, 0]
    assert all("Connect" in exchange.failure for exchange in exchanges)


def test_request_that_takes_too_long_is_a_failure() -> None:
    with served(StandIn(ANSWER, pause_s=0.3)) as server:
        endpoint = Endpoint(url=server.url, model="m", timeout_s=0.1)
        [exchange] = asyncio.run(drive(endpoint, workload(1, concurrency=1)))
    assert "Timeout" in exchange.failure


def test_model_is_the_first_that_the_server_lists() -> None:
    with served(StandIn(ANSWER)) as server:
        assert asyncio.run(first_model(server.url)) == "stand-in"
