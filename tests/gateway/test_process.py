import asyncio
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.bounds import EVENTUALLY_S
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.script import Script
from tests.ports import lasting_port

from octavo.gateway.config import GatewayConfig
from octavo.gateway.process import run
from octavo.v1.errors import BAD_SETTING, OctavoError

ROOT = Path(__file__).parents[2]
MAX_RSS_BYTES = 200 * 1024 * 1024


async def start(*flags: str, environ: Mapping[str, str] | None = None) -> Process:
    roots = [ROOT / folder for folder in ("services", "operator", "kernels", "proto")]
    inherited = {"PATH": os.environ["PATH"], "PYTHONPATH": ":".join(map(str, roots))}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo.gateway", "--redis", "", *flags),
        stderr=PIPE,
        env=inherited | dict(environ or {}),
        cwd=ROOT,
    )


@asynccontextmanager
async def serving(
    *engines: FakeEngine | str,
    flags: tuple[str, ...] = (),
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[tuple[Process, httpx.AsyncClient]]:
    """A gateway process and a client of it, as soon as it listens."""
    port = lasting_port()
    addresses = ",".join(e if isinstance(e, str) else e.address for e in engines)
    process = await start("--port", str(port), "--engines", addresses, *flags, environ=environ)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            await answering(client)
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        for engine in engines:
            if isinstance(engine, FakeEngine):
                await engine.kill()


async def answering(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while True:
            try:
                await client.get("/healthz")
            except httpx.ConnectError:
                await asyncio.sleep(0.05)
            else:
                return


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(EVENTUALLY_S):
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)


def chat(**fields: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "hi"}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8, **fields}


async def stream_to_end(client: httpx.AsyncClient) -> str:
    body = ""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as answer:
            async for piece in answer.aiter_text():
                body += piece
    except httpx.RemoteProtocolError:
        body += "(broken off)"
    return body


async def endless_body(client: httpx.AsyncClient) -> httpx.Response:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(5)

    return await client.post("/v1/chat/completions", content=pieces())


def test_a_taken_port_is_one_clear_line_and_its_own_exit_code() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            process = await start("--port", str(port))
            _, stderr = await process.communicate()
        assert process.returncode == 3
        assert f"error[OCT-1201]: port {port} on 127.0.0.1 is taken" in stderr.decode()
        assert "Traceback" not in stderr.decode()

    asyncio.run(scenario())


def test_it_listens_while_nothing_is_ready_and_serves_once_an_engine_is() -> None:
    async def scenario() -> None:
        engine = FakeEngine()
        port = lasting_port()
        async with serving(f"127.0.0.1:{port}") as (_, client):
            assert (await client.get("/readyz")).status_code == 503
            refused = await client.post("/v1/chat/completions", json=chat())
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            await engine.start(port)
            await ready(client)
            answer = await client.post("/v1/chat/completions", json=chat())
            assert answer.status_code == 200
            assert "octavo_gateway_requests_total" in (await client.get("/metrics")).text
            await engine.kill()

    asyncio.run(scenario())


def test_sigterm_finishes_streams_and_then_ends() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.05, tokens=30)).start()
        async with serving(engine) as (process, client):
            await ready(client)
            streaming = asyncio.create_task(stream_to_end(client))
            while not engine.requests:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.4)
            with pytest.raises(httpx.ConnectError):
                await client.get("/healthz")
            assert (await streaming).endswith("data: [DONE]\n\n")
            assert await asyncio.wait_for(process.wait(), 5) == 0

    asyncio.run(scenario())


def test_one_that_leaves_serves_each_client_once_more() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        async with serving(engine, flags=("--leave-s", "1")) as (process, client):
            await ready(client)
            before = await client.post("/v1/chat/completions", json=chat())
            assert "connection" not in before.headers
            process.send_signal(signal.SIGTERM)
            while (await client.get("/readyz")).status_code != 503:
                await asyncio.sleep(0.01)
            last = await client.post("/v1/chat/completions", json=chat())
            assert (last.status_code, last.headers["connection"]) == (200, "close")
            assert await asyncio.wait_for(process.wait(), 5) == 0
            with pytest.raises(httpx.ConnectError):
                await client.get("/healthz")

    asyncio.run(scenario())


def test_a_client_whose_stream_began_before_the_end_was_near_is_served_once_more() -> None:
    """It was not told that its connection ends, and asks again the moment its stream is over."""

    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.05, tokens=80)).start()
        async with serving(engine, flags=("--leave-s", "0.1")) as (process, client):
            await ready(client)
            streaming = asyncio.create_task(stream_to_end(client))
            while not engine.requests:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            async with httpx.AsyncClient(base_url=client.base_url) as stranger:
                while not await is_refused(stranger):
                    await asyncio.sleep(0.01)
            assert (await streaming).endswith("data: [DONE]\n\n")
            last = await client.post("/v1/chat/completions", json=chat())
            assert (last.status_code, last.headers["connection"]) == (200, "close")
            assert await asyncio.wait_for(process.wait(), 5) == 0

    asyncio.run(scenario())


async def is_refused(client: httpx.AsyncClient) -> bool:
    """Tells whether nobody listens any more."""
    try:
        await client.get("/healthz")
    except httpx.ConnectError:
        return True
    return False


def test_what_outlasts_the_drain_ends_with_an_error_and_never_cleanly() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.05, tokens=4000)).start()
        async with serving(engine, flags=("--drain-s", "0.5")) as (process, client):
            await ready(client)
            streaming = asyncio.create_task(stream_to_end(client))
            waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
            uploading = asyncio.create_task(endless_body(client))
            while len(engine.requests) < 2:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 6) == 0
            body = await streaming
            assert body.endswith("(broken off)")
            assert body.count('"code":"draining"') == 1
            assert "[DONE]" not in body
            for answer in (await waiting, await uploading):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "draining")
            assert process.stderr is not None
            log = (await process.stderr.read()).decode()
            assert "Traceback" not in log
            assert log.count("finish=OCT-2005") == 2
            while engine.num_running:
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_second_signal_ends_it_at_once() -> None:
    async def scenario() -> None:
        engine = await FakeEngine(script=lambda _: Script(delay_s=0.05, tokens=4000)).start()
        async with serving(engine) as (process, client):
            await ready(client)
            streaming = asyncio.create_task(stream_to_end(client))
            while not engine.requests:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.3)
            assert process.returncode is None
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 2) == 128 + signal.SIGINT
            await streaming

    asyncio.run(scenario())


@pytest.mark.parametrize("resume", ["exact", "never"])
def test_a_lost_engine_under_load_leaves_nobody_waiting(resume: str) -> None:
    async def scenario() -> None:
        def script(_: object) -> Script:
            return Script(delay_s=0.02, tokens=100)

        doomed = await FakeEngine(script=script).start()
        healthy = await FakeEngine(script=script).start()
        async with serving(doomed, healthy, flags=("--resume", resume)) as (_, client):
            await ready(client)
            streams = [asyncio.create_task(stream_to_end(client)) for _ in range(20)]
            while len(doomed.requests) + len(healthy.requests) < 20:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)
            started = time.monotonic()
            await doomed.kill()
            bodies = await asyncio.gather(*streams)
            assert time.monotonic() - started < 10
            failed = [b for b in bodies if '"engine_failure"' in b]
            whole = [b for b in bodies if b.endswith("data: [DONE]\n\n")]
            assert len(doomed.requests) > 0
            assert len(failed) == (len(doomed.requests) if resume == "never" else 0)
            assert len(whole) == 20 - len(failed)
            assert not any("[DONE]" in b for b in failed)

    asyncio.run(scenario())


def test_the_process_stays_small_and_never_loads_torch() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        async with serving(engine) as (process, client):
            await ready(client)
            for _ in range(200):
                answer = await client.post("/v1/chat/completions", json=chat())
                assert answer.status_code == 200
            info = psutil.Process(process.pid)
            assert info.memory_info().rss < MAX_RSS_BYTES
            mapped = {Path(m.path).name for m in info.memory_maps()}
            assert not [name for name in mapped if "torch" in name or "numpy" in name]

    asyncio.run(scenario())


def test_each_request_ends_with_one_line_of_log() -> None:
    async def scenario() -> None:
        engine = await FakeEngine().start()
        async with serving(engine, flags=("--log-json",)) as (process, client):
            await ready(client)
            secret = "a secret nobody may log"
            body = chat(messages=[{"role": "user", "content": secret}])
            answer = await client.post("/v1/chat/completions", json=body)
            await engine.restart()
            await ready(client)
            process.send_signal(signal.SIGTERM)
            stderr = await process.stderr.read() if process.stderr else b""
            lines = [json.loads(line) for line in stderr.decode().splitlines()]
            [line] = [one for one in lines if one["event"] == "request_finished"]
            assert answer.json()["id"].endswith(line["id"])
            assert line["finish"] == "length"
            assert secret not in stderr.decode()
            assert "healthz" not in stderr.decode()

    asyncio.run(scenario())


def test_a_host_that_others_reach_needs_a_word() -> None:
    with pytest.raises(OctavoError, match="--no-auth allows it") as caught:
        run(GatewayConfig(host="0.0.0.0"), {})
    assert caught.value.kind is BAD_SETTING


def test_no_cluster_to_look_for_engines_in_is_one_clear_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        environ = {"KUBECONFIG": str(tmp_path / "nothing")}
        process = await start("--port", "0", "--discover", "kubernetes", environ=environ)
        _, stderr = await process.communicate()
        assert process.returncode == 2
        assert "error[OCT-1205]: discover = 'kubernetes'" in stderr.decode()
        assert "Traceback" not in stderr.decode()

    asyncio.run(scenario())


def test_engines_beyond_this_machine_are_refused() -> None:
    config = GatewayConfig(engines=("127.0.0.1:1", "10.0.0.7:50051"))
    with pytest.raises(OctavoError) as caught:
        run(config, {})
    assert caught.value.kind is BAD_SETTING
    assert "10.0.0.7:50051" in caught.value.message
    assert "--engine-tls-dir allows others" in caught.value.message
