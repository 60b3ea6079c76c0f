"""Pumps one Session stream: attempts out, what the engine says in.

Requests that arrive in one turn of the loop leave in one message. Ends with LinkLostError, whoever
ended it; the caller decides what that means for the attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from octavo.gateway.attempts import AttemptTable
from octavo.gateway.link import Duplex, LinkLostError
from octavo.v1 import engine_pb2


class EngineSession:
    """One life of the session with one engine.

    Args:
        stream: the open stream; owned from here on.
        table: the attempts of that engine.
        epoch: the life of the engine that the stream must come from.
        on_message: called with each message, before it is delivered.
    """

    def __init__(
        self,
        stream: Duplex,
        table: AttemptTable,
        *,
        epoch: int,
        on_message: Callable[[engine_pb2.SessionUpdate], None],
    ) -> None:
        self._stream = stream
        self._table = table
        self._epoch = epoch
        self._on_message = on_message
        self._outgoing = asyncio.Event()

    def notify(self) -> None:
        """Says that the table has something to send."""
        self._outgoing.set()

    def close(self) -> None:
        """Ends the session; `run` raises LinkLostError."""
        self._stream.close()

    async def run(self) -> None:
        """Pumps until the stream ends; always raises LinkLostError or is cancelled."""
        writer = asyncio.create_task(self._write())
        try:
            while (data := await self._stream.recv()) is not None:
                self._take(data)
            raise LinkLostError("the engine closed the session")
        finally:
            writer.cancel()
            self._stream.close()
            await asyncio.gather(writer, return_exceptions=True)

    def _take(self, data: bytes) -> None:
        try:
            update = engine_pb2.SessionUpdate.FromString(data)
        except DecodeError as error:
            raise LinkLostError("a session message cannot be read") from error
        if update.epoch != self._epoch:
            raise LinkLostError("another engine process answers")
        self._on_message(update)
        self._table.apply(update)

    async def _write(self) -> None:
        try:
            while True:
                await self._outgoing.wait()
                self._outgoing.clear()
                while message := self._table.take_outgoing():
                    await self._stream.send(message.SerializeToString())
        except LinkLostError:
            self._stream.close()
