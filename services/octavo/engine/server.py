"""The gRPC adapter of the engine: bytes of octavo.v1 between the transport and the shell.

With `callers` the only module of the engine that knows grpc. Channel settings follow from
measurements of what the transport does by itself (docs/architecture.md): it must allow frequent
pings, and it notices a vanished gateway within ten seconds; one that was killed shows at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from octavo.engine.callers import CallersCheck
from octavo.engine.session import EngineShell
from octavo.runtime.loopback import require_loopback
from octavo.runtime.tls_folder import Identity, TlsFolder
from octavo.v1 import engine_pb2
from octavo.v1.errors import (
    INVALID_VALUE,
    PORT_IN_USE,
    QUEUE_FULL,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)

log = structlog.get_logger(__name__)

ENGINE_SERVICE: Final = "octavo.v1.Engine"
CONTROL_SERVICE: Final = "octavo.v1.Control"
ERROR_METADATA: Final = "octavo-error-bin"
"""Trailing metadata with a serialised octavo.v1.Error."""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
)

_STATUS: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}


def status_of(error: OctavoError) -> grpc.StatusCode:
    """Returns the gRPC status of a catalogue error."""
    if error.kind is UNSUPPORTED_PARAMETER:
        return grpc.StatusCode.UNIMPLEMENTED
    if error.kind is QUEUE_FULL:  # the engine is there, so another call is no remedy
        return grpc.StatusCode.RESOURCE_EXHAUSTED
    return _STATUS.get(error.kind.status, grpc.StatusCode.UNKNOWN)


_Context = grpc.aio.ServicerContext[bytes, bytes]
_Request = TypeVar("_Request", bound=Message)


class EngineServer:
    """Serves one shell.

    Args:
        shell: the engine's shell.
        new_id: names requests of direct callers.
        tls: what it shows, and whom it trusts; None: it speaks plaintext.
        caller: name that the certificate of whoever calls must bear, where there is one.
    """

    def __init__(
        self,
        shell: EngineShell,
        new_id: Callable[[], str],
        *,
        tls: TlsFolder | None = None,
        caller: str = "",
    ) -> None:
        self._shell = shell
        self._new_id = new_id
        self._tls = tls
        self._health = health.aio.HealthServicer()
        checks = [CallersCheck(caller)] if tls is not None else []
        self._server = grpc.aio.server(options=_OPTIONS, interceptors=checks)
        self._server.add_generic_rpc_handlers((self._engine_handlers(), self._control_handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (ENGINE_SERVICE, CONTROL_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, listen: str, *, plaintext: bool = False) -> int:
        """Binds and serves; returns the port (zero for a socket path).

        Args:
            listen: HOST:PORT or unix:PATH.
            plaintext: the address may be one that others reach.

        Raises:
            OctavoError: PORT_IN_USE, or BAD_SETTING for an address that others reach, or for a
                folder without a certificate.
        """
        if not plaintext and self._tls is None:
            unless = "--tls-dir or --plaintext"
            require_loopback(listen, key="listen", origin="engine", unless=unless)
        await self.set_serving(serving=False)
        port = self._bind(listen)
        await self._server.start()
        return port

    def _bind(self, listen: str) -> int:
        credentials = None if self._tls is None else _credentials(self._tls)
        try:
            if credentials is None:
                return self._server.add_insecure_port(listen)
            return self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            host, _, number = listen.rpartition(":")
            raise OctavoError(PORT_IN_USE, port=number, host=host) from error

    async def set_serving(self, *, serving: bool) -> None:
        """Sets the health service's answer for the server and the Engine service."""
        answers = health_pb2.HealthCheckResponse
        value = answers.SERVING if serving else answers.NOT_SERVING
        for name in ("", ENGINE_SERVICE):
            await self._health.set(name, value)

    async def stop(self) -> None:
        """Ends what still runs and closes the port."""
        await self._server.stop(grace=0.5)

    def _engine_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            ENGINE_SERVICE,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(self._generate),
                "Session": grpc.stream_stream_rpc_method_handler(self._session),
                "State": grpc.unary_stream_rpc_method_handler(self._state),
                "Card": grpc.unary_stream_rpc_method_handler(self._card),
            },
        )

    def _control_handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            CONTROL_SERVICE,
            {
                "Drain": grpc.unary_stream_rpc_method_handler(self._drain),
                "ResetCache": grpc.unary_unary_rpc_method_handler(self._reset_cache),
                "PinPrefix": grpc.unary_unary_rpc_method_handler(self._pin_prefix),
                "UnpinPrefix": grpc.unary_unary_rpc_method_handler(self._unpin_prefix),
                "ListPins": grpc.unary_unary_rpc_method_handler(self._list_pins),
            },
        )

    async def _session(
        self, requests: AsyncIterator[bytes], context: _Context
    ) -> AsyncIterator[bytes]:
        async for update in self._shell.session(requests):
            yield update

    async def _generate(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        try:
            proto = engine_pb2.GenerateRequest.FromString(data)
            async for delta in self._shell.generate(proto, self._new_id()):
                yield delta.SerializeToString()
        except DecodeError:
            reason = "is not an octavo.v1.GenerateRequest"
            await _abort(context, OctavoError(INVALID_VALUE, param="message", reason=reason))
        except OctavoError as error:
            await _abort(context, error)

    async def _state(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        async for update in self._shell.feed.subscribe():
            yield update.SerializeToString()

    async def _card(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        try:
            for chunk in self._shell.card():
                yield chunk.SerializeToString()
        except OctavoError as error:
            await _abort(context, error)

    async def _drain(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        grace_ms = engine_pb2.DrainRequest.FromString(data).grace_ms
        await self.set_serving(serving=False)
        async for remaining in self._shell.drain(grace_ms / 1e3 if grace_ms else None):
            yield engine_pb2.DrainUpdate(remaining=remaining).SerializeToString()

    async def _reset_cache(self, data: bytes, context: _Context) -> bytes:
        try:
            done = await self._shell.reset_cache()
        except OctavoError as error:
            await _abort(context, error)
        return engine_pb2.ResetCacheResponse(done=done).SerializeToString()

    async def _pin_prefix(self, data: bytes, context: _Context) -> bytes:
        return await _answer(context, engine_pb2.PinPrefixRequest, data, self._shell.pin)

    async def _unpin_prefix(self, data: bytes, context: _Context) -> bytes:
        return await _answer(context, engine_pb2.UnpinPrefixRequest, data, self._shell.unpin)

    async def _list_pins(self, data: bytes, context: _Context) -> bytes:
        return await _answer(context, engine_pb2.ListPinsRequest, data, self._shell.list_pins)


def _credentials(tls: TlsFolder) -> grpc.ServerCredentials:
    """Returns credentials that follow the folder: gRPC asks before each handshake, on its thread.

    Connections that are open stay as they are.
    """

    def configured(identity: Identity) -> grpc.ServerCertificateConfiguration:
        pairs = [(identity.key, identity.certificate)]
        return grpc.ssl_server_certificate_configuration(pairs, identity.authorities)

    shown = tls.read()

    def changed() -> Any:  # None: nothing has; gRPC's types do not know that
        nonlocal shown
        before, shown = shown, tls.read()
        return None if shown is before else configured(shown)

    return grpc.dynamic_ssl_server_credentials(
        configured(shown), changed, require_client_authentication=True
    )


async def _answer(
    context: _Context,
    kind: type[_Request],
    data: bytes,
    work: Callable[[_Request], Awaitable[Message]],
) -> bytes:
    """Returns the answer to a call of one message; an error of the catalogue ends it."""
    error: OctavoError
    try:
        return (await work(kind.FromString(data))).SerializeToString()
    except DecodeError:
        reason = f"is not an octavo.v1.{kind.DESCRIPTOR.name}"
        error = OctavoError(INVALID_VALUE, param="message", reason=reason)
    except OctavoError as refusal:
        error = refusal
    await _abort(context, error)
    return b""  # not reached: abort raises


async def _abort(context: _Context, error: OctavoError) -> None:
    metadata = ((ERROR_METADATA, error.to_proto().SerializeToString()),)
    await context.abort(status_of(error), str(error), trailing_metadata=metadata)
