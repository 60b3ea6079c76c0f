from __future__ import annotations

import asyncio
import signal

import httpx
import pytest
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.script import Script
from tests.gateway.test_process import ready, serving, stream_to_end
from tests.ports import lasting_port


def test_it_shows_probes_metrics_and_state_and_nothing_else() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        port = lasting_port()
        flags = ("--status-listen", f"127.0.0.1:{port}")
        async with (
            serving(engine, flags=flags) as (_, client),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as watcher,
        ):
            await ready(client)
            assert (await watcher.get("/healthz", headers={"host": "10.1.2.3"})).status_code == 200
            assert (await watcher.get("/readyz")).json()["ready"] is True
            assert "octavo_gateway_requests_held 0.0" in (await watcher.get("/metrics")).text
            state = (await watcher.get("/state")).json()
            assert state["services"] == []
            [told] = state["engines"]
            assert (told["address"], told["routable"]) == (engine.address, True)
            assert len(state["gateway"]) == 32
            await asyncio.sleep(0.002)  # it is given in milliseconds
            again = (await watcher.get("/state")).json()
            assert 0 < state["uptime_s"] < again["uptime_s"]
            for path in ("/v1/models", "/v1/requests/x", "/", "/docs"):
                assert (await watcher.get(path)).status_code == 404
            assert (await client.get("/state")).status_code == 404, "not for clients"

    asyncio.run(scenario())


def test_it_answers_until_the_last_stream_has_ended() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.05, tokens=40)).start()
        port = lasting_port()
        async with (
            serving(engine, flags=("--status-listen", f"127.0.0.1:{port}")) as (process, client),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as watcher,
        ):
            await ready(client)
            streaming = asyncio.create_task(stream_to_end(client))
            while not engine.requests:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.4)
            answer = await watcher.get("/readyz")
            assert (answer.status_code, answer.json()["stage"]) == (503, "draining")
            assert (await watcher.get("/state")).json()["engines"][0]["in_flight"] == 1
            assert (await streaming).endswith("data: [DONE]\n\n")
            assert await asyncio.wait_for(process.wait(), 5) == 0
            log = await process.stderr.read() if process.stderr else b""
            assert b"Traceback" not in log
            with pytest.raises(httpx.HTTPError):
                await watcher.get("/healthz")

    asyncio.run(scenario())
