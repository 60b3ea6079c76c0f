"""The sockets on which a gateway listens."""

from __future__ import annotations

import errno
import socket
import sys
from typing import Final

from octavo.v1.errors import PORT_IN_USE, OctavoError

PEER_TIMEOUT_S: Final = 30.0
"""How long a client may acknowledge nothing, or keep its window shut, before it is gone."""

KEEP_ALIVE_PROBE_S: Final = 10
"""Silence after which the kernel asks whether the peer is still there, and between questions."""

SOCKET_BYTES: Final = 256 * 1024
"""Kernel buffer of a connection each way: 2 MB/s at 100 ms. Left to the kernel it grows to several
megabytes for a client that does not read, and the process's own memory does not show that."""


def listen(host: str, port: int, *, peer_timeout_s: float = PEER_TIMEOUT_S) -> socket.socket:
    """Opens the listening socket, whose connections inherit its options; raises PORT_IN_USE.

    `::` is all addresses of both families, or of the fourth where the kernel lacks the sixth.
    """
    is_dual = host == "::" and socket.has_dualstack_ipv6()
    if host == "::" and not is_dual:
        host = "0.0.0.0"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server(
            (host, port), family=family, backlog=2048, dualstack_ipv6=is_dual
        )
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise OctavoError(PORT_IN_USE, port=port, host=host) from error
    for option, value in (
        (socket.SO_KEEPALIVE, 1),
        (socket.SO_SNDBUF, SOCKET_BYTES),
        (socket.SO_RCVBUF, SOCKET_BYTES),
    ):
        listener.setsockopt(socket.SOL_SOCKET, option, value)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEP_ALIVE_PROBE_S),
            (socket.TCP_KEEPINTVL, KEEP_ALIVE_PROBE_S),
            (socket.TCP_USER_TIMEOUT, int(peer_timeout_s * 1000)),
        ):
            listener.setsockopt(socket.IPPROTO_TCP, option, value)
    return listener
