"""Loopback ports for servers under test."""

from __future__ import annotations

import os
import random
import socket

from octavo.cli.network import check_port
from octavo.v1.errors import OctavoError

_FIRST = 10_000
"""Below those that `octavo serve` takes and below the kernel's own."""
_EACH = 1_000
_given: set[int] = set()


def lasting_port() -> int:
    """Returns a port that nothing else takes, also while its server is away.

    No connection gets it, no other server of this process, and none of another pytest-xdist worker.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = _FIRST + worker % 10 * _EACH
    for port in random.sample(range(first, first + _EACH), _EACH):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    raise RuntimeError(f"no port is left of {first} to {first + _EACH}")


def _is_free(port: int) -> bool:
    try:
        check_port("127.0.0.1", port)
    except OctavoError:
        return False
    return True


def loopbacks() -> list[str]:
    """Returns the loopback addresses that this machine has: those of IPv4 and, mostly, IPv6."""
    found = []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            socket.create_server((host, 0), family=family).close()
        except OSError:
            continue
        found.append(host)
    return found


def reached_by(port: int) -> list[str]:
    """Returns the loopback addresses at which something listens on that port."""
    found = []
    for host in loopbacks():
        try:
            socket.create_connection((host, port)).close()
        except ConnectionRefusedError:
            continue
        found.append(host)
    return found
