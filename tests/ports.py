"""Loopback ports for servers under test."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Returns a port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port
