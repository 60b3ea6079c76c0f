"""Ports for servers that end and start again at the same address."""

from __future__ import annotations

import random

from octavo.cli.network import free_ports

_given: set[int] = set()


def lasting_port() -> int:
    """Returns a port that nothing else takes while its server is away.

    It lies below the kernel's own range, so no connection and no server of another test gets it.
    """
    port = next(p for p in free_ports(len(_given) + 1, random.Random()) if p not in _given)
    _given.add(port)
    return port
