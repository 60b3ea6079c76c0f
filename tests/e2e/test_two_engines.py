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
from tests.bounds import EVENTUALLY_S
from tests.serving import Serving

from octavo.runtime import failpoint

MODEL = "smollm2"
PREFIX = "The binder sews the gatherings in order, and each page has its number. " * 40


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        # Streams have to be open while something happens, and leave the cores to others.
        patch.setenv(failpoint.VARIABLE, "engine.step=sleep(0.05)")
        running = Serving(tmp_path_factory.mktemp("logs"), "--replicas", "2")
    with httpx.Client(base_url=running.url) as client:
        wait_for_engines(client, 2)
    yield running
    running.end(signal.SIGTERM)


def wait_for_engines(client: httpx.Client, count: int) -> None:
    deadline = time.monotonic() + EVENTUALLY_S
    while time.monotonic() < deadline:
        ready = [
            line
            for line in client.get("/metrics").text.splitlines()
            if line.startswith('octavo_gateway_engines{state="ready"}')
        ]
        if ready and float(ready[0].split()[-1]) == count:
            return
        time.sleep(0.1)
    raise AssertionError(f"not {count} engines within {EVENTUALLY_S:g} s")


def complete(client: httpx.Client, prompt: str, tokens: int = 2) -> tuple[str, int]:
    """Returns which engine answered and why, and how much of the prompt was cached."""
    answer = client.post(
        "/v1/completions",
        json={"model": MODEL, "prompt": prompt, "max_tokens": tokens, "temperature": 0},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer.headers["x-octavo-route"], cached


def test_a_prefix_goes_where_it_is_cached_unless_that_engine_is_busy(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url) as client:
        route, cached = complete(client, PREFIX + "First.")
        warm = route.split(";")[0]
        assert cached == 0
        time.sleep(2.0)  # until the gateway has heard of the blocks, on a busy machine, too
        for i in range(3):
            route, cached = complete(client, PREFIX + f"Question {i}.")
            assert route.startswith(f"{warm};"), route
            assert cached >= 512

        assert set(routes(client)) == {warm}
        asyncio.run(load(serving.url))
        assert set(routes(client)) > {warm}, "the other one takes a part of the load"


async def load(url: str) -> None:
    """Sends more at once, all with the cached prefix, than one engine should take."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        body = {
            "model": MODEL, "max_tokens": 200, "ignore_eos": True, "temperature": 0,
            "prompt": PREFIX + "A long story: ",
        }  # fmt: skip
        busy = [asyncio.create_task(client.post("/v1/completions", json=body)) for _ in range(40)]
        await asyncio.sleep(1.0)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


def routes(client: httpx.Client) -> list[str]:
    """Returns the engines that requests were sent to."""
    name = 'octavo_gateway_routes_total{engine="'
    lines = client.get("/metrics").text.splitlines()
    return [line.removeprefix(name).split('"')[0] for line in lines if line.startswith(name)]


def test_an_engine_that_is_killed_under_load_costs_nobody_a_token(serving: Serving) -> None:
    """kill -9: every answer is that of an undisturbed run, and no record says "running"."""
    served: list[str] = []

    async def one(client: httpx.AsyncClient, i: int) -> tuple[str, str, list[int]]:
        body = {
            "model": MODEL, "prompt": f"Request {i}: " + PREFIX[: 40 * (i % 7)], "stream": True,
            "max_tokens": 40, "ignore_eos": True, "return_token_ids": True,
            "temperature": 0.8 * (i % 2), "seed": i,
        }  # fmt: skip
        text, ids = "", list[int]()
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            served.append(answer.headers["x-octavo-route"].split(";")[0])
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    text += choice["text"]
                    ids += choice.get("token_ids") or []
        assert line == "" or line == "data: [DONE]"
        return answer.headers["x-request-id"], text, ids

    async def check() -> None:
        async with httpx.AsyncClient(base_url=serving.url, timeout=100) as client:
            undisturbed = await asyncio.gather(*(one(client, i) for i in range(8)))
            served.clear()
            tasks = [asyncio.create_task(one(client, i)) for i in range(8)]
            while len(served) < 4:
                await asyncio.sleep(0.05)
            busiest = max(served, key=served.count)
            (engine,) = serving.pids(f"--listen {busiest}")
            os.kill(engine, signal.SIGKILL)
            answers = await asyncio.gather(*tasks)
            assert [a[1:] for a in answers] == [a[1:] for a in undisturbed]
            records = [
                (await client.get(f"/v1/requests/{request_id}")).json()
                for request_id, *_ in answers
            ]
            assert {r["state"] for r in records} == {"finished"}
            assert sum(r["resumes"] for r in records) >= 1, "something ran on the killed engine"

    asyncio.run(check())
    with httpx.Client(base_url=serving.url) as client:
        complete(client, "Still there?")
        wait_for_engines(client, 2)
