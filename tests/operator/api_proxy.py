"""A proxy before the API server that breaks what it is told to: answers, streams, or its client.

It speaks plain HTTP to one operator on loopback and TLS to the API server, on a thread of its own.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web
from tests.cluster.kubernetes import Kubernetes

CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of the operator."""

    method: str
    path: str
    is_watch: bool

    @property
    def is_write(self) -> bool:
        return self.method not in ("GET", "HEAD")

    def is_about(self, plural: str) -> bool:
        return plural in self.path.split("/")


@dataclass(slots=True, kw_only=True)
class Fault:
    """What happens to requests that it matches, while it lasts."""

    matches: Callable[[Asked], bool]
    status: int
    times: int
    """How often it happens still."""
    late: bool = False
    """Whether the request takes effect all the same."""
    retry_after_s: int | None = None


class ApiProxy:
    """The proxy; `before` and `after` are told of each write, on the proxy's thread.

    Args:
        cluster: whose API server is behind it.
    """

    def __init__(self, cluster: Kubernetes) -> None:
        kubeconfig = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
        (behind,) = kubeconfig["clusters"]
        self._server = str(behind["cluster"]["server"])
        authority = behind["cluster"]["certificate-authority"]
        self._tls = ssl.create_default_context(cafile=authority)
        self.url = ""
        self.asked: list[Asked] = []
        self.faults: list[Fault] = []
        self.rewritten: dict[str, str] = {}
        """What is put in the place of what, in all answers but those of watches."""
        self.num_failed = 0
        self.before: Callable[[Asked], None] = _nothing
        self.after: Callable[[Asked], None] = _nothing
        self._is_held: Callable[[Asked], bool] = _nobody
        self._streams: set[web.StreamResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-proxy")

    def fail(
        self,
        matches: Callable[[Asked], bool],
        status: int,
        *,
        times: int = 1,
        late: bool = False,
        retry_after_s: int | None = None,
    ) -> None:
        """Lets requests fail from now on."""
        fault = Fault(
            matches=matches, status=status, times=times, late=late, retry_after_s=retry_after_s
        )
        self.faults.append(fault)

    def hold(self, plural: str = "") -> None:
        """Holds back from now on what watches say, of one kind or of all; their streams go on."""
        self._is_held = lambda asked: not plural or asked.is_about(plural)

    def let_go(self) -> None:
        """Lets watches say all that was held back, and what comes."""
        self._is_held = _nobody

    def expire(self) -> None:
        """Tells all watches that what they go on from is too old."""
        self._tell(410, "Expired")

    def upset(self) -> None:
        """Tells all watches that something is wrong, after which kopf gives up."""
        self._tell(500, "InternalError")

    def _tell(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "code": code, "reason": reason, "message": "injected"}
        line = json.dumps({"type": "ERROR", "object": status}).encode() + b"\n"
        self._run(self._say(line)).result(10)

    def drop(self) -> None:
        """Cuts all watches off."""
        self._run(self._cut()).result(10)

    @property
    def num_watches(self) -> int:
        return len(self._streams)

    async def _say(self, line: bytes) -> None:
        for stream in tuple(self._streams):
            await stream.write(line)

    async def _cut(self) -> None:
        for stream in tuple(self._streams):
            transport = stream._req.transport if stream._req is not None else None
            if transport is not None:
                transport.abort()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_watch = request.query.get("watch") == "true"
        asked = Asked(request.method, request.path, is_watch)
        self.asked.append(asked)
        if asked.is_write:
            self.before(asked)
        fault = next((f for f in self.faults if f.times > 0 and f.matches(asked)), None)
        if fault is not None:
            fault.times -= 1
            self.num_failed += 1
            if not fault.late:
                return _failure(fault)
        headers = {k: v for k, v in request.headers.items() if k not in ("Host", "Content-Length")}
        sending = self._session.request(
            request.method,
            self._server + request.raw_path,
            headers=headers,
            data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        async with sending as answer:
            if is_watch and answer.status == 200:
                return await self._stream(request, answer, asked)
            body = await answer.read()
        for old, new in self.rewritten.items():
            body = body.replace(old.encode(), new.encode())
        if asked.is_write:
            self.after(asked)
        if fault is not None:
            return _failure(fault)
        kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Retry-After")}
        return web.Response(status=answer.status, body=body, headers=kept)

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse, asked: Asked
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        self._streams.add(response)
        try:
            async for chunk in answer.content.iter_any():
                while self._is_held(asked):
                    await asyncio.sleep(0.05)
                await response.write(chunk)
        except ConnectionError:
            pass  # the operator is gone, or the API server
        finally:
            self._streams.discard(response)
        return response

    def _run(self, coroutine: object) -> Future[None]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)  # type: ignore[arg-type]

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        app = web.Application(client_max_size=2**24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = site.name

    async def _stop(self) -> None:
        await self._runner.cleanup()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0.1)  # transports close in later rounds of the loop, and tell nobody

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._start()).result(10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._stop()).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def _failure(fault: Fault) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "code": fault.status, "message": "injected"}
    headers = {"Retry-After": str(fault.retry_after_s)} if fault.retry_after_s is not None else {}
    return web.json_response(status, status=fault.status, headers=headers)


def _nothing(_asked: Asked) -> None:
    """Is told and does nothing."""


def _nobody(_asked: Asked) -> bool:
    """Tells that nobody is held back."""
    return False
