"""EngineLink over grpc.aio: the only module of the gateway that knows gRPC.

Messages pass as bytes. A broken peer shows within seconds: HTTP/2 pings every 2 s must be answered
within 4 s, also by a process that is stopped while the kernel still acknowledges. Judging a slow
engine is not the transport's business (on a crowded machine a ping can take a second): that is
what `heartbeat` is for, and it knows when the gateway itself was slow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from octavo.gateway.distrust import distrust
from octavo.gateway.link import Duplex, Inbound, LinkLostError, UntrustedError
from octavo.runtime.tls_folder import Identity, TlsFolder
from octavo.v1.errors import OctavoError

CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Without it a stopped process is noticed after a minute, with it within seconds (measured).
    ("grpc.http2.ping_timeout_ms", 4000),
    # Who is sent where is decided above; a hidden second attempt would run a request twice.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Each link has its own connection, so that closing one never touches another.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


class _Stream:
    """One call, read and written as bytes.

    Args:
        call: owned from here on.
        on_close: called once.
        lost: what an error of the call is called.
    """

    def __init__(
        self, call: Any, *, on_close: Callable[[], None], lost: Callable[[Exception], LinkLostError]
    ) -> None:
        self._call = call
        self._on_close: Callable[[], None] | None = on_close
        self._lost = lost

    async def recv(self) -> bytes | None:
        """See Inbound."""
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except asyncio.CancelledError:
            # grpc.aio reports a call that was closed here like a cancelled reader.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkLostError("closed") from None
        return None if message is grpc.aio.EOF else bytes(message)

    async def send(self, data: bytes) -> None:
        """See Duplex."""
        try:
            await self._call.write(data)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._lost(error) from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkLostError("closed") from None

    def close(self) -> None:
        """See Inbound."""
        self._call.cancel()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


class _NoStream:
    """A stream that could not be opened."""

    def __init__(self, error: LinkLostError) -> None:
        self._error = error

    async def recv(self) -> bytes | None:
        """See Inbound."""
        raise self._error

    async def send(self, data: bytes) -> None:  # noqa: ARG002
        """See Duplex."""
        raise self._error

    def close(self) -> None:
        """See Inbound."""


class _Connection:
    """A channel, which ends with the last of its streams once it is left.

    Args:
        channel: owned from here on.
        shown: with what it convinces the engine; None: it speaks plaintext.
        lost: what an error of a call is called.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        shown: Identity | None,
        lost: Callable[[Exception], LinkLostError],
    ) -> None:
        self.shown = shown
        self._channel = channel
        self._lost = lost
        self._num_streams = 0
        self._is_left = False
        self._ending: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it was left and has no stream any more."""
        return self._is_left and not self._num_streams

    def open(self, method: str, request: bytes | None = None) -> _Stream:
        """Opens a stream that the engine writes, and without a request the gateway, too."""
        path = f"/octavo.v1.Engine/{method}"
        channel: Any = self._channel  # whose types do not know that messages may be bytes
        if request is None:
            call = channel.stream_stream(path)()
        else:
            call = channel.unary_stream(path)(request)
        self._num_streams += 1
        return _Stream(call, on_close=self._closed, lost=self._lost)

    def leave(self) -> None:
        """Opens nothing any more."""
        self._is_left = True
        self._end_if_over()

    async def close(self) -> None:
        """Ends it at once."""
        await self._channel.close()

    def _closed(self) -> None:
        self._num_streams -= 1
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.is_over:
            self._ending = asyncio.get_running_loop().create_task(self._channel.close())


class GrpcLink:
    """The way to the engine at one address.

    What is shown to an engine with TLS is read anew whenever a stream is opened. When it has
    changed, this stream and later ones get another connection, and those that are open keep theirs.

    Args:
        address: HOST:PORT or unix:PATH.
        name: that the engine's certificate must bear; empty: it speaks plaintext.
        tls: what is shown to it, and whom it is believed; None: there is nothing to show.
    """

    def __init__(self, address: str, *, name: str = "", tls: TlsFolder | None = None) -> None:
        self._address = address
        self._name = name
        self._tls = tls
        self._connections: list[_Connection] = []
        """The last one is that of new streams."""

    def open_session(self) -> Duplex:
        """See EngineLink."""
        return self._open("Session")

    def open_state(self) -> Inbound:
        """See EngineLink."""
        return self._open("State", b"")

    def fetch_card(self) -> Inbound:
        """See EngineLink."""
        return self._open("Card", b"")

    async def close(self) -> None:
        """See EngineLink."""
        for connection in self._connections:
            await connection.close()

    def _open(self, method: str, request: bytes | None = None) -> Duplex:
        try:
            return self._connection().open(method, request)
        except UntrustedError as error:
            return _NoStream(error)

    def _connection(self) -> _Connection:
        """Returns the connection of new streams; raises UntrustedError."""
        shown = self._identity() if self._name else None
        if self._connections and self._connections[-1].shown is shown:
            return self._connections[-1]
        for former in self._connections:
            former.leave()
        made = _Connection(self._channel(shown), shown, self._lost)
        self._connections = [*(c for c in self._connections if not c.is_over), made]
        return made

    def _identity(self) -> Identity:
        if self._tls is None:
            raise UntrustedError("the engine takes mTLS only, and the gateway has no certificate")
        try:
            return self._tls.read()
        except OctavoError as error:
            reason = f"the gateway has no certificate: {self._tls.problem()}"
            raise UntrustedError(reason, error.message) from error

    def _channel(self, shown: Identity | None) -> grpc.aio.Channel:
        if shown is None:
            return grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS)
        # Pods are called by their address, and their certificate names their Service.
        options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", self._name))
        credentials = grpc.ssl_channel_credentials(
            shown.authorities, private_key=shown.key, certificate_chain=shown.certificate
        )
        return grpc.aio.secure_channel(self._address, credentials, options=options)

    def _lost(self, error: Exception) -> LinkLostError:
        if not isinstance(error, grpc.aio.AioRpcError):
            return LinkLostError(str(error))
        reason = f"{error.code().name}: {error.details() or ''}".rstrip(": ")
        if self._tls is not None and self._name:
            why = distrust(reason, self._tls.problem())
            if why:
                return UntrustedError(why, reason)
        return LinkLostError(reason)
