"""An API server of a few lines, over HTTP: discovery, lists and watches, and how these break."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from octavo.operator.kinds import Kind, Manifest


class ApiStandIn:
    """Serves lists and watches of the kinds it is given; each change is told by hand.

    Args:
        kinds: what it serves.
    """

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds
        self.token = "first"
        self.items: dict[Kind, list[Manifest]] = {kind: [] for kind in kinds}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.url = ""
        self._streams: dict[Kind, set[asyncio.Queue[bytes | None]]] = {k: set() for k in kinds}
        self._streaming = asyncio.Condition()
        self._written = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ApiStandIn]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = site.name
        try:
            yield self
        finally:
            self.drop()
            await runner.cleanup()

    def serve(self, kind: Kind) -> None:
        """Serves one more kind from now on."""
        self.kinds = (*self.kinds, kind)
        self.items[kind] = []
        self._streams[kind] = set()

    async def written(self) -> None:
        """Waits until somebody tries to write."""
        await self._written.wait()

    def tell(self, kind: Kind, event: str, manifest: Manifest) -> None:
        """Sends an event to all who watch a kind."""
        manifest = {"apiVersion": kind.api_version, "kind": kind.name} | manifest
        line = json.dumps({"type": event, "object": manifest}).encode() + b"\n"
        for stream in self._streams[kind]:
            stream.put_nowait(line)

    def drop(self) -> None:
        """Ends all streams."""
        for streams in self._streams.values():
            for stream in streams:
                stream.put_nowait(None)

    async def watched(self, *kinds: Kind) -> None:
        """Waits until the kinds are being watched."""
        async with self._streaming:
            await self._streaming.wait_for(lambda: all(self._streams[kind] for kind in kinds))

    async def unwatched(self) -> None:
        """Waits until nothing is being watched."""
        async with self._streaming:
            await self._streaming.wait_for(lambda: not any(self._streams.values()))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, dict(request.query)))
        if request.method != "GET":
            self._written.set()
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            status = {"kind": "Status", "message": "Unauthorized", "code": 401}
            return web.json_response(status, status=401)
        if (found := self._discovery(request.path)) is not None:
            return web.json_response(found)
        plural = request.path.rsplit("/", 1)[1]
        kind = next((k for k in self.kinds if k.plural == plural), None)
        if kind is None or request.method != "GET":
            return web.json_response({"kind": "Status", "code": 404}, status=404)
        if request.query.get("watch") == "true":
            return await self._stream(request, kind)
        listed = {"kind": f"{kind.name}List", "apiVersion": kind.api_version}
        items = {"metadata": {"resourceVersion": "100"}, "items": self.items[kind]}
        return web.json_response(listed | items)

    async def _stream(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        await self._change(kind, add=queue)
        try:
            while (line := await queue.get()) is not None:
                await response.write(line)
        finally:
            await self._change(kind, remove=queue)
        return response

    async def _change(
        self,
        kind: Kind,
        *,
        add: asyncio.Queue[bytes | None] | None = None,
        remove: asyncio.Queue[bytes | None] | None = None,
    ) -> None:
        async with self._streaming:
            self._streams[kind] -= {remove}
            self._streams[kind] |= {add} - {None}  # type: ignore[arg-type]
            self._streaming.notify_all()

    def _discovery(self, path: str) -> object:
        groups: dict[str, set[str]] = {}
        for kind in self.kinds:
            groups.setdefault(kind.group, set()).add(kind.version)
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            return {
                "groups": [
                    {
                        "name": group,
                        "preferredVersion": {"version": min(versions)},
                        "versions": [{"version": version} for version in sorted(versions)],
                    }
                    for group, versions in groups.items()
                    if group
                ]
            }
        named = path.removeprefix("/apis/").removeprefix("/api/")
        kinds = [kind for kind in self.kinds if kind.api_version == named]
        if not kinds:
            return None
        named_things = [(kind.plural, kind.name) for kind in kinds]
        if named == "v1":
            # kopf begins when it has found them, though it looks at none.
            named_things.append(("namespaces", "Namespace"))
        resources = [
            {
                "name": plural,
                "singularName": name.lower(),
                "kind": name,
                "namespaced": name != "Namespace",
                "verbs": ["get", "list", "watch", "patch"],
            }
            for plural, name in named_things
        ]
        return {"resources": resources}
