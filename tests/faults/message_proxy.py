"""A proxy that reads octavo.v1: loses, repeats and reorders whole messages between two parts.

It is a gRPC server that passes bytes on to a real engine through the gateway's own link; each
State message goes through `on_state`, which returns what is told instead of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

import grpc.aio

from octavo.gateway.grpc_link import GrpcLink
from octavo.gateway.link import Inbound, LinkLostError
from octavo.v1 import engine_pb2

OnState: TypeAlias = Callable[[engine_pb2.StateUpdate], Sequence[engine_pb2.StateUpdate]]
_Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


def unchanged(update: engine_pb2.StateUpdate) -> Sequence[engine_pb2.StateUpdate]:
    """Tells what it is told."""
    return [update]


class MessageProxy:
    """An async context in front of one engine.

    Args:
        target: the engine's address.
        port: where to listen.
    """

    def __init__(self, target: str, port: int) -> None:
        self.on_state: OnState = unchanged
        self.num_state_streams = 0
        self.port = port
        self._link = GrpcLink(target)
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session),
            "State": grpc.unary_stream_rpc_method_handler(self._state),
            "Card": grpc.unary_stream_rpc_method_handler(self._card),
        }
        generic = grpc.method_handlers_generic_handler("octavo.v1.Engine", handlers)
        self._server.add_generic_rpc_handlers((generic,))

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> MessageProxy:
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)
        await self._link.close()

    async def _session(
        self, requests: AsyncIterator[bytes], context: _Context
    ) -> AsyncIterator[bytes]:
        stream = self._link.open_session()

        async def up() -> None:
            async for data in requests:
                await stream.send(data)

        sending = asyncio.create_task(up())
        try:
            async for data in _messages(stream):
                yield data
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _state(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        self.num_state_streams += 1
        async for message in _messages(self._link.open_state()):
            for update in self.on_state(engine_pb2.StateUpdate.FromString(message)):
                yield update.SerializeToString()

    async def _card(self, data: bytes, context: _Context) -> AsyncIterator[bytes]:
        async for message in _messages(self._link.fetch_card()):
            yield message


async def _messages(stream: Inbound) -> AsyncIterator[bytes]:
    """Yields until either side ends; a lost link ends it."""
    try:
        while (data := await stream.recv()) is not None:
            yield data
    except LinkLostError:
        return
    finally:
        stream.close()
