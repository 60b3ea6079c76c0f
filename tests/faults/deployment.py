"""Engines, gateways and Valkey as real processes on loopback, with a tiny real model."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import grpc.aio
from tests.faults.child_process import ChildProcess
from tests.faults.stream_client import Answer, ask
from tests.faults.tiny_llama import MODEL
from tests.faults.workload import Body
from tests.ports import lasting_port

from octavo.v1 import engine_pb2, engine_pb2_grpc


class Engine(ChildProcess):
    """`python -m octavo.engine`."""

    def __init__(
        self,
        name: str,
        model: Path,
        *,
        folder: Path,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.port, metrics_port = lasting_port(), lasting_port()
        self._host = host
        command = [
            "-m", "octavo.engine", "--model", str(model), "--served-name", MODEL, "--threads", "1",
            "--listen", self.address, "--kv-bytes", "16000000",
            "--metrics-listen", f"127.0.0.1:{metrics_port}", *flags,
        ]  # fmt: skip
        super().__init__(name, command, folder=folder, metrics_port=metrics_port, env=env)

    @property
    def address(self) -> str:
        """Of its gRPC server; the same in all its lives."""
        return f"{self._host}:{self.port}"

    async def ready(self) -> None:
        """Waits until it serves."""
        await self.logged('"stage": "ready"')

    async def idle(self) -> bool:
        """Tells whether nothing runs, waits, or holds a block."""
        rows = await self.metrics()
        busy = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(
            value
            for name, value in rows.items()
            if name.startswith(tuple(f"vllm:{b}" for b in busy))
        )

    async def blocks_free(self) -> float:
        """Waits until no block is held and returns the time; empties the prefix cache thereby.

        Metrics follow up to half a second later; this asks the stepping thread itself.
        """
        async with grpc.aio.insecure_channel(self.address) as channel:
            control = engine_pb2_grpc.ControlStub(channel)
            while not (await control.ResetCache(engine_pb2.ResetCacheRequest())).done:
                await asyncio.sleep(0.001)
            return time.perf_counter()


class Gateway(ChildProcess):
    """`python -m octavo.gateway`."""

    def __init__(
        self,
        name: str,
        engines: Sequence[str],
        *,
        folder: Path,
        redis: str = "",
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.port = lasting_port()
        command = [
            "-m", "octavo.gateway", "--port", str(self.port), "--engines", ",".join(engines),
            "--redis", redis, "--log-json", *flags,
        ]  # fmt: skip
        super().__init__(name, command, folder=folder, metrics_port=self.port, env=env)

    @property
    def url(self) -> str:
        """Of its API."""
        return f"http://127.0.0.1:{self.port}"

    async def engines(self, state: str, count: int, timeout_s: float = 120.0) -> None:
        """Waits until it counts so many engines in a state."""
        name = f'octavo_gateway_engines{{state="{state}"}}'
        found = -1.0
        try:
            async with asyncio.timeout(timeout_s):
                while found != count:
                    await asyncio.sleep(0.02)
                    assert self.alive, f"{self.name} ended:\n{self.log[-3000:]}"
                    with contextlib.suppress(aiohttp.ClientConnectorError):  # it starts
                        found = (await self.metrics()).get(name, 0.0)
                # It is counted by its own word; a moment later it is connected.
                while state == "ready" and count and not await self._takes_requests():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{found:g} engines {state}, not {count}:\n{self.log}") from None

    async def _takes_requests(self) -> bool:
        async with aiohttp.ClientSession() as session, session.get(self.url + "/readyz") as answer:
            return answer.status == 200


class Deployment:
    """Some engines and gateways; an async context from their start to their end.

    Args:
        folder: for the logs.
        model: folder of the checkpoint; None: there are no engines of its own.
        engines: how many.
        gateways: how many; each knows all engines.
        redis: address of the store; empty for none.
        engine_flags: for all engines.
        engine_env: more variables for all engines.
        gateway_flags: for all gateways.
        through: addresses that gateways use instead of the engines' own, such as proxies'.
        own: engines instead of those that it would make.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: Path | None = None,
        engines: int = 2,
        gateways: int = 1,
        redis: str = "",
        engine_flags: Sequence[str] = (),
        engine_env: Mapping[str, str] | None = None,
        gateway_flags: Sequence[str] = (),
        through: Sequence[str] = (),
        own: Sequence[Engine] = (),
    ) -> None:
        self.engines = list(own) or [
            Engine(f"engine-{i}", model, folder=folder, flags=engine_flags, env=engine_env)
            for i in range(engines)
            if model is not None
        ]
        addresses = through or [engine.address for engine in self.engines]
        self._num_addresses = len(addresses)
        self.gateways = [
            Gateway(f"gateway-{i}", addresses, folder=folder, redis=redis, flags=gateway_flags)
            for i in range(gateways)
        ]
        self.session: aiohttp.ClientSession
        self._open: dict[object, Answer] = {}

    @property
    def gateway(self) -> Gateway:
        """The first one."""
        return self.gateways[0]

    async def __aenter__(self) -> Deployment:
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120)
        )
        try:
            for process in (*self.gateways, *self.engines):
                process.start()
            for engine in self.engines:
                await engine.ready()
            for gateway in self.gateways:
                await gateway.logged("gateway_listening")
                await gateway.engines("ready", self._num_addresses)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()
        if error is not None:
            for process in (*self.gateways, *self.engines):
                sys.stdout.write(f"--- {process.name}\n{process.log[-3000:]}\n")

    async def _end(self) -> None:
        for process in (*self.gateways, *self.engines):
            process.kill()
        await self.session.close()

    async def ask(
        self,
        body: Body,
        headers: Mapping[str, str] | None = None,
        *,
        gateway: int = 0,
        on_first: Callable[[Answer], None] = lambda _: None,
    ) -> Answer:
        """Sends one request and reads its answer to the end; see `stream_client.ask`."""
        url = self.gateways[gateway].url
        key = object()

        def on_begin(answer: Answer) -> None:
            self._open[key] = answer
            on_first(answer)

        try:
            return await ask(self.session, url, body, headers, on_first=on_begin)
        finally:
            self._open.pop(key, None)

    def busiest(self) -> Engine:
        """Returns the engine on which most of the answers that go on began."""
        begun = Counter(answer.route[0] for answer in self._open.values() if answer.status == 200)
        return max(self.engines, key=lambda engine: begun[engine.address])

    async def get(self, path: str, *, gateway: int = 0) -> tuple[int, Any]:
        """Returns the status and the JSON of a page of a gateway."""
        async with self.session.get(self.gateways[gateway].url + path) as answer:
            return answer.status, await answer.json()

    async def ask_all(self, bodies: Sequence[Body]) -> list[Answer]:
        """Sends all at once."""
        return await asyncio.gather(*map(self.ask, bodies))

    async def restart(self, *engines: Engine) -> None:
        """Starts engines again at their addresses and waits until all gateways have them."""
        for engine in engines:
            engine.kill()
            engine.start()
        for engine in engines:
            await engine.ready()
        alive = sum(engine.alive for engine in self.engines)
        for gateway in self.gateways:
            await gateway.engines("ready", alive)

    async def idle(self, timeout_s: float = 10.0) -> None:
        """Waits until nothing is open anywhere; fails when something leaks."""
        busy: list[str] = []
        try:
            async with asyncio.timeout(timeout_s):
                while busy := await self._busy():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"still busy after {timeout_s:g} s: {busy}") from None

    async def _busy(self) -> list[str]:
        engines = [e.name for e in self.engines if e.alive and not await e.idle()]
        name = "octavo_gateway_requests_in_flight"
        return engines + [g.name for g in self.gateways if g.alive and await g.metric(name)]

    def stop(self, engine: Engine) -> None:
        """SIGSTOP: the process hangs, its kernel does not."""
        engine.send(signal.SIGSTOP)

    def resume(self, engine: Engine) -> None:
        """SIGCONT."""
        engine.send(signal.SIGCONT)
