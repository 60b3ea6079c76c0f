"""Ports and the few bytes of HTTP and RESP that `octavo serve` speaks to its own children."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from urllib.parse import SplitResult, urlsplit

from octavo.runtime.settings import MASK
from octavo.v1.errors import BAD_SETTING, PORT_IN_USE, STORE_UNREACHABLE, OctavoError

_PORTS = range(20_000, 32_000)
"""Below the kernel's own range: no outgoing connection takes one before a child binds it."""
_ANSWER_S = 2.0
_CONNECT_S = 3.0


def check_port(host: str, port: int) -> None:
    """Raises PORT_IN_USE, or BAD_SETTING for a host that is not this machine's."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OctavoError(PORT_IN_USE, port=port, host=host) from error
        reason = error.strerror or str(error)
        raise OctavoError(
            BAD_SETTING, key="host", value=f"{host}:{port}", origin="bind", reason=reason
        ) from error


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Returns ports of the loopback interface on which nothing listens."""
    found: list[int] = []
    for port in rng.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        try:
            check_port("127.0.0.1", port)
        except OctavoError:
            continue
        found.append(port)
    return found


def reachable_host(host: str) -> str:
    """Returns the address at which this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)


def url_of(host: str, port: int) -> str:
    """Returns the base URL of what listens there."""
    name = reachable_host(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


async def http_get(host: str, port: int, path: str) -> tuple[int, bytes]:
    """Returns status and body of a GET; status 0 when nothing answers."""
    try:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection(reachable_host(host), port)
            try:
                # HTTP/1.0: the answer is not chunked and ends with the connection.
                writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                return int(head.split()[1]), body
            finally:
                writer.close()
    except (OSError, TimeoutError, IndexError, ValueError):
        return 0, b""


async def check_redis(url: str, *, origin: str) -> None:
    """Raises unless something accepts connections at the URL.

    Raises:
        OctavoError: BAD_SETTING for what is no URL of a Redis, else STORE_UNREACHABLE.
    """
    parts = _redis_parts(url, origin)
    host, port = parts.hostname or "", parts.port or 6379
    is_socket = parts.scheme == "unix"
    where = parts.path if is_socket else f"{host}:{port}"  # not the URL: it may hold a password
    try:
        async with asyncio.timeout(_CONNECT_S):
            if is_socket:
                _, writer = await asyncio.open_unix_connection(parts.path)
            else:
                _, writer = await asyncio.open_connection(host, port)
        writer.close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or f"no answer in {_CONNECT_S:g} s"
        raise OctavoError(STORE_UNREACHABLE, url=where, reason=reason) from error


def _redis_parts(url: str, origin: str) -> SplitResult:
    """Splits the URL; no reason repeats a part of it, for any may belong to a password."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is no number
    except ValueError:
        reason = "not a URL; in a password, special characters are written as %XX"
    else:
        tail = parts.path + parts.query + parts.fragment
        if parts.scheme not in ("redis", "rediss", "unix"):
            reason = "must begin with redis://, rediss:// or unix://"
        elif not (parts.path if parts.scheme == "unix" else parts.hostname):
            reason = "names no host" if parts.scheme != "unix" else "names no socket"
        elif parts.scheme != "unix" and "@" in tail:
            reason = "in a password, special characters are written as %XX"
        else:
            return parts
    raise OctavoError(BAD_SETTING, key="redis", value=MASK, origin=origin, reason=reason) from None
