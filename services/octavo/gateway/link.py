"""The port to an engine: streams of bytes of octavo.v1, nothing more.

Sessions, heartbeats and fencing lie above it, so that a simulation can put its own links below
them. Knows no message and no transport.
"""

from __future__ import annotations

from typing import Protocol


class LinkLostError(Exception):
    """The stream broke, could not be opened, or carried what no engine sends."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class UntrustedError(LinkLostError):
    """The stream could not be opened because one side does not trust the other's certificate.

    Args:
        reason: in words that clients may read.
        detail: what the transport says, for the log.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class Inbound(Protocol):
    """A stream that only the engine writes."""

    async def recv(self) -> bytes | None:
        """Returns the next message, None at a clean end; raises LinkLostError.

        One reader at a time. Cancelling it closes the stream.
        """
        ...

    def close(self) -> None:
        """Ends the stream at once; a pending recv raises LinkLostError. Idempotent."""
        ...


class Duplex(Inbound, Protocol):
    """A stream that both sides write."""

    async def send(self, data: bytes) -> None:
        """Hands one message to the transport, waiting while it is full; raises LinkLostError."""
        ...


class EngineLink(Protocol):
    """The way to one engine. Opening never waits and never fails: the first recv tells."""

    def open_session(self) -> Duplex:
        """SessionRequest out, SessionUpdate in."""
        ...

    def open_state(self) -> Inbound:
        """StateUpdate in."""
        ...

    def fetch_card(self) -> Inbound:
        """CardChunk in; LinkLostError while the engine is not ready."""
        ...

    async def close(self) -> None:
        """Ends every stream and the connection."""
        ...
