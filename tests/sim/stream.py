"""Byte streams for asyncio protocols over connections of the simulated net."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

from tests.sim.conn import HIGH_WATER, Conn, Receiver


class StreamTransport(asyncio.Transport, Receiver):
    """A byte stream for an asyncio protocol."""

    def __init__(self, conn: Conn, protocol: asyncio.BaseProtocol) -> None:
        peer, here = (conn.remote, conn.port), (conn.local, 0)
        super().__init__({"peername": peer, "sockname": here})
        self._conn = conn
        self._protocol = cast("asyncio.Protocol", protocol)
        self._closing = False
        self._reading = True
        self._full = False
        conn.net.loop.call_soon(protocol.connection_made, self)
        conn.attach(self)

    def wants_data(self) -> bool:
        return self._reading

    def on_data(self, data: bytes) -> None:
        self._protocol.data_received(data)

    def on_room(self) -> None:
        if self._full:
            self._full = False
            self._protocol.resume_writing()

    def on_eof(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def on_end(self, error: OSError | None) -> None:
        self._protocol.connection_lost(None if self._closing else error)
        self._closing = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        with contextlib.suppress(ConnectionError):  # connection_lost is on its way
            self._conn.push(bytes(data))
        if not self._full and self._conn.unread >= HIGH_WATER:
            self._full = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return self._conn.unread

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True
        self._conn.close()

    def abort(self) -> None:
        self._closing = True
        self._conn.abort()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._conn.attach(self)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)
