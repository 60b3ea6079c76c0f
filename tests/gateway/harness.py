"""A gateway without HTTP in front of fake engines: what the tests of this folder share."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from prometheus_client import CollectorRegistry
from tests.bounds import EVENTUALLY_S
from tests.gateway.fake_engine import FakeEngine

from octavo.gateway.demand import Demand
from octavo.gateway.discovery import Discovered, Discovery, Endpoint, Service
from octavo.gateway.dispatch import Call, Dispatcher, Generation, ResumePolicy
from octavo.gateway.fleet import Fleet
from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.metrics import GatewayMetrics
from octavo.gateway.model_card import ModelLoader
from octavo.gateway.records import Records
from octavo.gateway.replica import Replica
from octavo.gateway.static_discovery import StaticDiscovery
from octavo.gateway.store import Store
from octavo.runtime import telemetry
from octavo.runtime.env import SystemEnv
from octavo.v1 import engine_pb2

NO_WAIT = ResumePolicy(wait_s=0.0)
"""An engine that is not there will not come."""

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The parts of a gateway."""

    fleet: Fleet
    dispatcher: Dispatcher
    records: Records
    metrics: GatewayMetrics

    @property
    def replicas(self) -> list[Replica]:
        """The engines, in the order in which they were found."""
        return self.fleet.replicas

    async def open(self, request: engine_pb2.GenerateRequest) -> Generation:
        """Starts a request for the model "tiny"."""
        return await self.dispatcher.open(Call(model=self.fleet.model("tiny"), request=request))

    async def text(self, request: engine_pb2.GenerateRequest) -> str:
        """Returns the whole answer of choice 0."""
        generation = await self.open(request)
        return "".join([d.text async for d in generation if d.choice == 0])

    def metric(self, name: str, **labels: str) -> float:
        """Returns a sample; zero when it does not exist yet."""
        value = self.metrics.registry.get_sample_value(f"octavo_gateway_{name}", labels)
        return value or 0.0

    def check_idle(self) -> None:
        """Asserts that nothing is counted as running anywhere."""
        assert self.dispatcher.num_open == 0
        assert self.records.num_open == 0
        for replica in self.replicas:
            assert replica.table.in_flight == 0
            assert replica.table.unreported_tokens == 0
            assert replica.index.num_promised() == 0
            replica.table.check_integrity()


def prompt(text: str, **fields: object) -> engine_pb2.GenerateRequest:
    """A request whose prompt is a text in bytes."""
    ids = engine_pb2.TokenIds(ids=list(text.encode()))
    return engine_pb2.GenerateRequest(token_ids=ids, **fields)  # type: ignore[arg-type]


async def until(condition: Callable[[], bool], timeout_s: float = EVENTUALLY_S) -> None:
    """Waits until a condition holds; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


class Cluster:
    """A discovery that finds what a test says, and the engines that the test starts."""

    def __init__(self) -> None:
        self._engines: list[FakeEngine] = []
        self._found: Discovered | None = None
        self._news = asyncio.Event()

    async def start(self, engine: FakeEngine) -> FakeEngine:
        """Starts an engine, which ends with the gateway."""
        self._engines.append(engine)
        return await engine.start()

    async def close(self) -> None:
        """Ends the engines."""
        for engine in self._engines:
            await engine.kill()

    def tell(self, *endpoints: Endpoint, services: Iterable[Service] = ()) -> None:
        """Says what there is from now on."""
        self._found = Discovered(endpoints=endpoints, services=tuple(services))
        self._news.set()

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """See Discovery."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._found is not None:
                on_found(self._found)


@asynccontextmanager
async def gateway(
    *engines: FakeEngine | str,
    store: Store | None = None,
    wait: bool = True,
    resume: ResumePolicy = NO_WAIT,
) -> AsyncIterator[Gateway]:
    """Runs a gateway in front of engines, which are started unless they are addresses.

    Args:
        wait: return when every engine is ready.
    """
    started = [e for e in engines if isinstance(e, FakeEngine)]
    for engine in started:
        await engine.start()
    addresses = [e if isinstance(e, str) else e.address for e in engines]
    try:
        async with running(StaticDiscovery(addresses), store=store, resume=resume) as gw:
            await until(lambda: len(gw.replicas) == len(addresses))
            if wait:
                await until(lambda: all(r.ready for r in gw.replicas))
            yield gw
    finally:
        for engine in started:
            await engine.kill()


@asynccontextmanager
async def running(
    discovery: Discovery,
    *,
    store: Store | None = None,
    resume: ResumePolicy = NO_WAIT,
    proves: bool = False,
    hold_s: float = 5.0,
    max_held: int = 8,
) -> AsyncIterator[Gateway]:
    """Runs a gateway in front of whatever is discovered."""
    env = SystemEnv()
    metrics = GatewayMetrics(CollectorRegistry())
    loader = ModelLoader(env)

    def connect(endpoint: Endpoint, on_ready: Callable[[], None]) -> Replica:
        return Replica(
            endpoint,
            GrpcLink(endpoint.address, name=endpoint.tls_name),
            loader=loader,
            metrics=metrics,
            env=env,
            on_ready=on_ready,
            proves=proves,
        )

    demand = Demand(hold_s=hold_s, max_held=max_held, metrics=metrics)
    fleet = Fleet(discovery, connect, demand=demand, metrics=metrics)
    records = Records(store, metrics=metrics, ttl_s=60)
    dispatcher = Dispatcher(
        fleet=fleet,
        records=records,
        metrics=metrics,
        env=env,
        tracer=telemetry.tracer(),
        resume=resume,
    )
    tasks = [asyncio.create_task(fleet.run()), asyncio.create_task(records.run())]
    try:
        yield Gateway(fleet=fleet, dispatcher=dispatcher, records=records, metrics=metrics)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def clustered(**settings: Any) -> AsyncIterator[tuple[Gateway, Cluster]]:
    """Runs a gateway with a cluster; see `running`."""
    cluster = Cluster()
    try:
        async with running(cluster, **settings) as gw:
            yield gw, cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def engine_process() -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A fake engine in a process of its own, and its address."""
    paths = [ROOT, *(ROOT / folder for folder in ("services", "operator", "kernels", "proto"))]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "tests/gateway/fake_engine.py"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": ":".join(map(str, paths))},
    )
    assert process.stdout is not None
    address = (await process.stdout.readline()).decode().strip()
    try:
        yield address, process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
