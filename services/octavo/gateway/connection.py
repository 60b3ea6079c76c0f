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
"""How long a client is waited for at a shutdown that was not told that its connection ends."""


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _head_timer: asyncio.TimerHandle | None = None
    _silent_since = 0.0
    """When the client could begin, or began, a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._silent_since = self.loop.time()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the timer."""
        self._head_is_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        """Begins to wait for the rest of a request's head."""
        super().on_message_begin()
        self._silent_since = self.loop.time()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Ends the wait."""
        self._head_is_here()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request."""
        super().on_response_complete()
        self._silent_since = self.loop.time()

    def shutdown(self) -> None:
        """Ends the connection when its client knows: after an answer that says so, or a silence.

        An answer that has begun can say so no more. Were the connection closed at its end, the
        client's next request could be on its way, and it could not know whether it was done.
        """
        answer = self.cycle
        if answer is not None and not answer.response_complete:
            if answer.response_started:
                self.timeout_keep_alive = LAST_REQUEST_S
            else:
                super().shutdown()
            return
        left_s = self._silent_since + LAST_REQUEST_S - self.loop.time()
        if left_s <= 0:
            super().shutdown()
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)

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
