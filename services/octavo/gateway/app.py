"""The ASGI application: guards, routes on the path only, and answers every error in one shape.

App              host and origin, path, ids, errors
├ hot paths    chat and completions: plan, then answer
└ Router       everything else, by starlette
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from octavo.gateway.admission import Admission
from octavo.gateway.api.answer import answer
from octavo.gateway.api.body import (
    ClientGoneError,
    JsonObject,
    Message,
    Receive,
    Send,
    parse_body,
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
from octavo.gateway.api.events import error_event
from octavo.gateway.api.headers import (
    STREAM,
    Headers,
    Scope,
    id_headers,
    idempotency_key,
    is_strict,
)
from octavo.gateway.api.held import Waiting
from octavo.gateway.api.models import Models
from octavo.gateway.api.parameters import Endpoint, sort_out
from octavo.gateway.api.plan import Context, Plan
from octavo.gateway.api.running import Open
from octavo.gateway.api.status import Status
from octavo.gateway.api.tokenization import Tokenization
from octavo.gateway.catalogue import DEFAULT_RETRY_MS
from octavo.gateway.config import GatewayConfig
from octavo.gateway.dispatch import Dispatcher
from octavo.gateway.fleet import Fleet
from octavo.gateway.idempotency import fingerprint_of, key_digest
from octavo.gateway.once import Once
from octavo.gateway.records import Records
from octavo.gateway.time_bounds import TimeBounds
from octavo.runtime.env import Env
from octavo.v1.errors import DRAINING, INTERNAL, OctavoError

log = structlog.get_logger(__name__)

Planner = Callable[[dict[str, Any], Fleet, Context], Awaitable[Plan]]

HOT: Final[dict[str, tuple[Endpoint, Planner]]] = {
    "/v1/chat/completions": ("chat", plan_chat),
    "/v1/completions": ("completions", plan_completion),
}

_SLASHES: Final = re.compile("/{2,}")


def build_app(
    *,
    config: GatewayConfig,
    admission: Admission,
    fleet: Fleet,
    dispatcher: Dispatcher,
    once: Once,
    records: Records,
    env: Env,
) -> App:
    """Returns the application.

    Args:
        config: limits, heartbeat, hosts and origins.
        admission: who comes in.
        fleet: what is served.
        dispatcher: runs generations.
        once: runs those with an idempotency key.
        records: what became of them.
        env: ids and wall time.
    """
    return App(
        config=config,
        admission=admission,
        fleet=fleet,
        dispatcher=dispatcher,
        once=once,
        records=records,
        env=env,
    )


class App:
    """The application; see `build_app`."""

    def __init__(
        self,
        *,
        config: GatewayConfig,
        admission: Admission,
        fleet: Fleet,
        dispatcher: Dispatcher,
        once: Once,
        records: Records,
        env: Env,
    ) -> None:
        self._config = config
        self._admission = admission
        self._fleet = fleet
        self._dispatcher = dispatcher
        self._once = once
        self._env = env
        self._waiting = Waiting(fleet, heartbeat_s=config.heartbeat_s)
        hosts = config.allowed_host
        if not hosts and config.discover == "kubernetes":
            hosts = ("*",)  # it cannot know under which names it is reached
        self._origins = Origins(
            host=config.host, allowed_hosts=hosts, cors_origins=config.cors_origin
        )
        self._router = _router(fleet, records, max_body_bytes=config.max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one HTTP request."""
        if scope["type"] != "http":
            return
        state = _Sending(send, self._env.new_id())
        try:
            origin = self._origins.check(scope)
            if origin:
                state.extra = cors_headers(origin)
            await self._route(scope, receive, state)
        except ClientGoneError:
            return
        except OctavoError as error:
            await self._fail(state, error)
        except asyncio.CancelledError:
            if not self._fleet.draining:
                raise
            # The server gives up what outlasted its drain, such as a body that never ends.
            await self._fail(state, OctavoError(DRAINING, retry_after_ms=DEFAULT_RETRY_MS))
        except Exception:
            log.exception("request_crashed", id=state.id)
            await self._fail(state, OctavoError(INTERNAL, id=state.id))

    async def _route(self, scope: Scope, receive: Receive, state: _Sending) -> None:
        path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
        if scope["method"] == "OPTIONS":
            headers = preflight_headers(scope) + id_headers(state.id)
            await state.send({"type": "http.response.start", "status": 204, "headers": headers})
            await state.send({"type": "http.response.body"})
            return
        hot = HOT.get(path)
        if hot is not None:
            await self._generate(*hot, scope, receive, state)
            return
        try:
            inner = {**scope, "path": path, "app": self}
            await self._look_up(inner, receive, partial(_with_id, state.send, state.id))
        except HTTPException as error:
            raise from_starlette(error, path=path, method=scope["method"]) from error

    async def _look_up(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":  # health and metrics must answer whatever happens
            await self._router(scope, receive, send)
            return
        with self._admission.upload(receive) as upload:
            await self._router(scope, upload.receive, send)

    async def _generate(
        self,
        endpoint: Endpoint,
        planner: Planner,
        scope: Scope,
        receive: Receive,
        state: _Sending,
    ) -> None:
        with ExitStack() as inside:
            try:
                key = idempotency_key(scope)
                body = await self._body(scope, receive)
                honoured, ignored = sort_out(body, endpoint, strict=is_strict(scope))
                hold = inside.enter_context(self._admission.request(low=_is_low(honoured)))
                # With a key it is not known yet under which id the answer is given.
                headers = STREAM if key else STREAM + id_headers(state.id)
                waited_s = await self._waiting.engine(
                    endpoint, honoured, scope, receive, state.send_comment, headers=headers
                )
                context = self._context(scope, state.id, ignored, waited_s)
                plan = await planner(honoured, self._fleet, context)
                now = asyncio.get_running_loop().time()
                bounds = TimeBounds(plan.calls[0].request, now - waited_s)
                plan, opener = await self._opener(plan, key, body, bounds, inside)
            except OctavoError as error:
                self._dispatcher.refused(error, id=state.id, endpoint=endpoint)
                raise
            state.id = plan.context.id
            begun, state.only_comments = state.only_comments, False
            del body, honoured
            await answer(
                plan,
                opener,
                receive,
                state.send,
                bounds=bounds,
                heartbeat_s=self._config.heartbeat_s,
                begun=begun,
                on_running=hold,
            )

    def _context(self, scope: Scope, id: str, ignored: tuple[str, ...], waited_s: float) -> Context:
        created = int(self._env.wall())
        return Context.of(scope, id=id, created=created, ignored=ignored, waited_s=waited_s)

    async def _body(self, scope: Scope, receive: Receive) -> JsonObject:
        if scope["method"] != "POST":
            raise method_not_allowed(path=scope["path"], method=scope["method"], allowed="POST")
        with self._admission.upload(receive) as upload:
            data = await read_body(scope, upload.receive, limit=self._config.max_body_bytes)
            return await parse_body(data)

    async def _opener(
        self,
        plan: Plan,
        key: str,
        body: JsonObject,
        bounds: TimeBounds,
        inside: ExitStack,
    ) -> tuple[Plan, Open]:
        """Returns the plan, or that of the key's first request, and how to read its answer."""
        if not key:
            return plan, lambda prompt: self._dispatcher.open(plan.calls[prompt])
        context = plan.context
        fingerprint = fingerprint_of(plan.endpoint, body, num_prompts=len(plan.calls))
        digest = key_digest("", key)
        try:
            async with asyncio.timeout_at(bounds.late_at):
                joined = await self._once.join(
                    digest, fingerprint, plan.calls, id=context.id, created=context.created
                )
        except TimeoutError as error:
            raise bounds.exceeded() from error
        inside.callback(joined.close)
        first = joined.identity
        plan = plan.under(id=first.id, created=first.created, replayed=joined.replayed)
        return plan, joined.open

    async def _fail(self, state: _Sending, error: OctavoError) -> None:
        if state.only_comments:
            body = error_event(error)
            await state.send({"type": "http.response.body", "body": body, "more_body": True})
        if state.started:  # an answer that has begun is left incomplete
            return
        body = error_body(error)
        headers = [
            *error_headers(error),
            (b"content-length", str(len(body)).encode()),
            *id_headers(state.id),
        ]
        status = error.kind.status
        await state.send({"type": "http.response.start", "status": status, "headers": headers})
        await state.send({"type": "http.response.body", "body": body})


class _Sending:
    """Knows whether an answer has begun, and adds headers to it."""

    def __init__(self, send: Send, id: str) -> None:
        self._send = send
        self.id = id
        """Of the request, or of the one whose answer it gets by its idempotency key."""
        self.started = False
        self.only_comments = False
        """It is a stream that has nothing but comments so far."""
        self.extra: Headers = []

    async def send_comment(self, message: Message) -> None:
        """Sends a part of a stream that has nothing to say yet."""
        self.only_comments = True
        await self.send(message)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            if self.extra:
                message = {**message, "headers": [*message["headers"], *self.extra]}
        await self._send(message)


def _is_low(honoured: dict[str, Any]) -> bool:
    """Tells whether a request is of the lowest class; what is no number is refused later."""
    priority = honoured.get("priority")
    return isinstance(priority, int) and priority > 0


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
