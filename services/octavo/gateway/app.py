"""The ASGI application: guards, routes on the path only, and answers every error in one shape.

App              host and origin, path, ids, errors
├ hot paths    chat and completions: plan, then answer
└ Router       everything else, by starlette
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from octavo.gateway.api.answer import answer
from octavo.gateway.api.body import (
    ClientGoneError,
    Message,
    Receive,
    Send,
    parse_object,
    read_body,
)
from octavo.gateway.api.chat import plan_chat
from octavo.gateway.api.completions import plan_completion
from octavo.gateway.api.cors import Origins, cors_headers, preflight_headers
from octavo.gateway.api.errors import (
    error_body,
    error_headers,
    from_starlette,
    method_not_allowed,
)
from octavo.gateway.api.headers import Headers, Scope, id_headers, is_strict
from octavo.gateway.api.models import Models
from octavo.gateway.api.parameters import Endpoint, sort_out
from octavo.gateway.api.plan import Context, Plan
from octavo.gateway.api.status import Status
from octavo.gateway.api.tokenization import Tokenization
from octavo.gateway.config import GatewayConfig
from octavo.gateway.dispatch import Dispatcher
from octavo.gateway.fleet import Fleet
from octavo.gateway.records import Records
from octavo.runtime.env import Env
from octavo.v1.errors import DRAINING, INTERNAL, OctavoError

log = structlog.get_logger(__name__)

Planner = Callable[[dict[str, Any], Fleet, Context], Plan]

HOT: Final[dict[str, tuple[Endpoint, Planner]]] = {
    "/v1/chat/completions": ("chat", plan_chat),
    "/v1/completions": ("completions", plan_completion),
}

_SLASHES: Final = re.compile("/{2,}")


def build_app(
    *,
    config: GatewayConfig,
    fleet: Fleet,
    dispatcher: Dispatcher,
    records: Records,
    env: Env,
) -> App:
    """Returns the application.

    Args:
        config: limits, heartbeat, hosts and origins.
        fleet: what is served.
        dispatcher: runs generations.
        records: what became of them.
        env: ids and wall time.
    """
    return App(config=config, fleet=fleet, dispatcher=dispatcher, records=records, env=env)


class App:
    """The application; see `build_app`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        fleet: Fleet,
        dispatcher: Dispatcher,
        records: Records,
        env: Env,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._env = env
        self._origins = Origins(
            host=config.host, allowed_hosts=config.allowed_host, cors_origins=config.cors_origin
        )
        self._router = _router(fleet, records, max_body_bytes=config.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request."""
        if scope["type"] != "http":
            return
        state = _Sending(send)
        request_id = self._env.new_id()
        try:
            origin = self._origins.check(scope)
            if origin:
                state.extra = cors_headers(origin)
            await self._route(scope, receive, state.send, request_id)
        except ClientGoneError:
            return
        except OctavoError as error:
            await self._fail(state, error, request_id)
        except asyncio.CancelledError:
            if not self._fleet.draining:
                raise
            # The server gives up what outlasted its drain, such as a body that never ends.
            await self._fail(state, OctavoError(DRAINING), request_id)
        except Exception:
            log.exception("request_crashed", id=request_id)
            await self._fail(state, OctavoError(INTERNAL, id=request_id), request_id)

    async def _route(self, scope: Scope, receive: Receive, send: Send, id: str) -> None:
        path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        if scope["method"] == "OPTIONS":
            headers = preflight_headers(scope) + id_headers(id)
            await send({"type": "http.response.start", "status": 204, "headers": headers})
            await send({"type": "http.response.body"})
            return
        hot = HOT.get(path)
        if hot is not None:
            await self._generate(*hot, scope, receive, send, id)
            return
        try:
            inner = {**scope, "path": path, "app": self}
            await self._router(inner, receive, partial(_with_id, send, id))
        except HTTPException as error:
            raise from_starlette(error, path=path, method=scope["method"]) from error

    async def _generate(
        self,
        endpoint: Endpoint,
        planner: Planner,
        scope: Scope,
        receive: Receive,
        send: Send,
        id: str,
    ) -> None:
        try:
            plan = await self._plan(endpoint, planner, scope, receive, id)
        except OctavoError as error:
            self._dispatcher.refused(error, id=id, endpoint=endpoint)
            raise
        await answer(plan, self._dispatcher, receive, send, heartbeat_s=self._config.heartbeat_s)

    async def _plan(
        self, endpoint: Endpoint, planner: Planner, scope: Scope, receive: Receive, id: str
    ) -> Plan:
        if scope["method"] != "POST":
            raise method_not_allowed(path=scope["path"], method=scope["method"], allowed="POST")
        data = await read_body(scope, receive, limit=self._config.max_body_bytes)
        honoured, ignored = sort_out(parse_object(data), endpoint, strict=is_strict(scope))
        context = Context.of(scope, id=id, created=int(self._env.wall()), ignored=ignored)
        return planner(honoured, self._fleet, context)

    async def _fail(self, state: _Sending, error: OctavoError, id: str) -> None:
        if state.started:  # an answer that has begun is left incomplete
            return
        body = error_body(error)
        headers = [
            *error_headers(error),
            (b"content-length", str(len(body)).encode()),
            *id_headers(id),
        ]
        status = error.kind.status
        await state.send({"type": "http.response.start", "status": status, "headers": headers})
        await state.send({"type": "http.response.body", "body": body})


class _Sending:
    """Knows whether an answer has begun, and adds headers to it."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.extra: Headers = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if self.extra:
                message = {**message, "headers": [*message["headers"], *self.extra]}
        await self._send(message)


async def _with_id(send: Send, id: str, message: Message) -> None:
    if message["type"] == "http.response.start":
        message = {**message, "headers": [*message["headers"], *id_headers(id)]}
    await send(message)


def _router(fleet: Fleet, records: Records, *, max_body_bytes: int) -> Router:
    models = Models(fleet)
    tokenization = Tokenization(fleet, max_body_bytes=max_body_bytes)
    paths: list[str] = list(HOT)
    status = Status(fleet, records, endpoints=paths)
    routes = [
        Route("/v1/models", models.index),
        Route("/v1/models/{id:path}", models.show),
        Route("/v1/requests/{id}", status.record),
        Route("/tokenize", tokenization.tokenize, methods=["POST"]),
        Route("/detokenize", tokenization.detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenization.info),
        Route("/health", status.health),
        Route("/healthz", status.health),
        Route("/readyz", status.ready),
        Route("/metrics", status.metrics),
        Route("/", status.root),
    ]
    paths += [route.path for route in routes if route.path != "/"]
    return Router(routes, redirect_slashes=False)
