"""A client's connection: uvicorn's protocol, with a bound on the time that a request's head takes.

Without it whoever connects and says nothing, or a letter now and then, holds a descriptor for ever.
Bodies are timed by `admission`, idle connections by uvicorn. At a shutdown no connection is closed
that its client may believe to last.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S: Final = 30.0
"""From the connection, or from a later request's first byte, to the end of its headers."""


LAST_REQUEST_S: Final = 2
"""How long a client may take to ask again whose answer has not said that its connection ends."""


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

    def shutdown(self) -> None:
        """Ends the connection when its client knows: after an answer that says so, or a silence.

        An answer that has begun can say so no more. Were the connection closed at its end, the
        client's next request could be on its way, and it could not know whether it was done.
        """
        answer = self.cycle
        if answer is None or answer.response_complete or not answer.response_started:
            super().shutdown()
        elif answer.keep_alive:
            self.timeout_keep_alive = LAST_REQUEST_S

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
