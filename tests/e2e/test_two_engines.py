"""Two engines behind one gateway: prefixes meet their cache, and a death is survived."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator

import httpx
import pytest
from tests.serving import Serving

MODEL = "smollm2"
PREFIX = "The binder sews the gatherings in order, and each page has its number. " * 20


@pytest.fixture
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    running = Serving(tmp_path_factory.mktemp("logs"), "--replicas", "2")
    with httpx.Client(base_url=running.url) as client:
        wait_for_engines(client, 2)
    yield running
    running.end(signal.SIGTERM)


def wait_for_engines(client: httpx.Client, count: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready = [
            line
            for line in client.get("/metrics").text.splitlines()
            if line.startswith('octavo_gateway_engines{state="ready"}')
        ]
        if ready and float(ready[0].split()[-1]) == count:
            return
        time.sleep(0.1)
    raise AssertionError(f"not {count} engines within a minute")


def complete(client: httpx.Client, prompt: str, tokens: int = 2) -> tuple[str, int]:
    """Returns which engine answered and how much of the prompt was cached."""
    answer = client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    engine = answer.headers["x-octavo-route"].split(";")[0]
    return engine, answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prefix_goes_where_it_is_cached_unless_that_engine_is_busy(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url) as client:
        warm, cached = complete(client, PREFIX + "First.")
        assert cached == 0
        for i in range(3):
            engine, cached = complete(client, PREFIX + f"Question {i}.")
            assert engine == warm
            assert cached >= 256

    async def load_the_warm_one() -> tuple[str, int]:
        async with httpx.AsyncClient(base_url=serving.url, timeout=60) as client:
            body = {
                "model": MODEL, "max_tokens": 300, "ignore_eos": True, "temperature": 0,
                "prompt": PREFIX + "A long story: ",
            }  # fmt: skip
            sending = [client.post("/v1/completions", json=body) for _ in range(24)]
            busy = [asyncio.create_task(s) for s in sending]
            await asyncio.sleep(0.5)
            engines = []
            for i in range(4):
                short = body | {"prompt": PREFIX + f"Short {i}.", "max_tokens": 1}
                answer = await client.post("/v1/completions", json=short)
                engines.append(answer.headers["x-octavo-route"].split(";")[0])
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)
            return warm, sum(e != warm for e in engines)

    _, elsewhere = asyncio.run(load_the_warm_one())
    assert elsewhere >= 1


def test_killing_an_engine_under_load_leaves_nobody_without_an_answer(serving: Serving) -> None:
    """kill -9: every client gets an answer or an error event within 10 s, the others go on."""

    async def one(client: httpx.AsyncClient, i: int) -> tuple[str, str, str, int]:
        body = {
            "model": MODEL, "prompt": f"Request {i}: " + PREFIX[: 40 * (i % 7)], "stream": True,
            "max_tokens": 250, "ignore_eos": True, "temperature": 0,
        }  # fmt: skip
        events, end = [], "clean"
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            engine = answer.headers.get("x-octavo-route", "").split(";")[0]
            request_id = answer.headers["x-request-id"]
            try:
                async for line in answer.aiter_lines():
                    if line.startswith("data: "):
                        events.append(line.removeprefix("data: "))  # noqa: PERF401 - may raise
            except httpx.RemoteProtocolError:
                end = "cut"
        if answer.status_code != 200:
            return request_id, engine, "refused", 0
        if events[-1] == "[DONE]":
            tokens = sum(1 for e in events[:-1] if json.loads(e)["choices"])
            return request_id, engine, "done", tokens
        error = json.loads(events[-1])["error"]
        assert error["code"] == "engine_failure"
        assert end == "cut", "a stream that failed must not end as if it were whole"
        return request_id, engine, "error", len(events)

    async def check() -> None:
        async with httpx.AsyncClient(base_url=serving.url, timeout=60) as client:
            tasks = [asyncio.create_task(one(client, i)) for i in range(16)]
            await asyncio.sleep(2.0)
            victim = serving.pids("octavo.engine")[0]
            killed = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            failed_after = []

            def note(task: asyncio.Task[tuple[str, str, str, int]]) -> None:
                if task.result()[2] != "done":
                    failed_after.append(time.monotonic() - killed)

            for task in tasks:
                task.add_done_callback(note)
            answers = await asyncio.gather(*tasks)
            outcomes = [a[2] for a in answers]
            assert outcomes.count("done") >= 1, "the other engine's streams go on"
            assert outcomes.count("error") >= 1, "something ran on the killed engine"
            assert outcomes.count("refused") == 0
            assert max(failed_after) < 10
            by_engine: dict[str, set[str]] = {}
            for _, engine, outcome, _ in answers:
                by_engine.setdefault(engine, set()).add(outcome)
            assert {"done"} in by_engine.values()
            states = []
            for request_id, *_ in answers:
                record = (await client.get(f"/v1/requests/{request_id}")).json()
                states.append(record["state"])
            assert set(states) == {"finished", "failed"}
            assert states.count("failed") == outcomes.count("error")

    asyncio.run(check())
    with httpx.Client(base_url=serving.url) as client:
        complete(client, "Still there?")
        wait_for_engines(client, 2)
