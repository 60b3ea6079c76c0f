"""Which pages and host names may talk to the gateway: a browser must not reach it for a stranger.

Host names are checked against DNS rebinding, origins against foreign pages. Requests without an
Origin do not come from another page's script.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from octavo.gateway.api.headers import EXPOSED, Headers, Scope, header
from octavo.v1.errors import ORIGIN_NOT_ALLOWED, OctavoError

MAX_AGE_S: Final = 600
METHODS: Final = b"GET, HEAD, POST, OPTIONS"


class Origins:
    """The rules of one gateway.

    Args:
        host: the address it listens on, a name of its own unless it is a wildcard.
        allowed_hosts: further host names; `*` stands for all.
        cors_origins: origins besides loopback ones; `*` stands for all.
    """

    def __init__(
        self, *, host: str, allowed_hosts: Sequence[str], cors_origins: Sequence[str]
    ) -> None:
        self._hosts = {h.lower() for h in (*allowed_hosts, host)} - {"0.0.0.0", "::", ""}
        self._origins = {o.lower().rstrip("/") for o in cors_origins}

    def check(self, scope: Scope) -> bytes:
        """Returns the allowed Origin, empty without one.

        Raises:
            OctavoError: ORIGIN_NOT_ALLOWED for a foreign Host or Origin.
        """
        for name, value in scope["headers"]:
            if name == b"host" and not self._knows_host(value.decode("latin-1")):
                raise _refused("Host", value)
        origin = header(scope, b"origin")
        if origin and not self._knows_origin(origin):
            raise _refused("Origin", origin.encode("latin-1"))
        return origin.encode("latin-1")

    def _knows_host(self, host: str) -> bool:
        if "*" in self._hosts:
            return True
        name = _host_name(f"//{host}")
        return is_loopback(name) or name in self._hosts or host.lower() in self._hosts

    def _knows_origin(self, origin: str) -> bool:
        if "*" in self._origins or origin.lower() in self._origins:
            return True
        return origin.startswith(("http://", "https://")) and is_loopback(_host_name(origin))


def is_loopback(name: str) -> bool:
    """Tells whether a host name means this machine to every browser."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def cors_headers(origin: bytes) -> Headers:
    """Returns what lets a page of an allowed origin read the answer, our headers included."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", ", ".join(EXPOSED).encode()),
        (b"vary", b"Origin"),
    ]


def preflight_headers(scope: Scope) -> Headers:
    """Returns what lets the page send its request with whatever headers it asks for."""
    wanted = header(scope, b"access-control-request-headers") or "*"
    return [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-allow-headers", wanted.encode("latin-1")),
        (b"access-control-max-age", str(MAX_AGE_S).encode()),
        (b"allow", METHODS),
    ]


def _host_name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower().rstrip(".")
    except ValueError:  # a bracket without its partner
        return ""


def _refused(name: str, value: bytes) -> OctavoError:
    return OctavoError(ORIGIN_NOT_ALLOWED, header=name, value=value.decode("latin-1")[:200])
