"""A client's connection: uvicorn's protocol, with a bound on the time that a request's head takes.

Without it whoever connects and says nothing, or a letter now and then, holds a descriptor for ever.
Bodies are timed by `admission`, idle connections by uvicorn.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S: Final = 30.0
"""From the connection, or from a later request's first byte, to the end of its headers."""


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timer."""
        self._head_is_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begins to wait for the rest of a request's head."""
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Ends the wait."""
        self._head_is_here()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:  # an answer is on its way to a client that has begun to ask for the next one
            self._await_head()
