"""Discovery of engines whose addresses are settings: they are there, whether they answer or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NoReturn

from octavo.gateway.discovery import Discovered, Endpoint


class StaticDiscovery:
    """Engines that never change.

    Args:
        addresses: HOST:PORT or unix:PATH of each.
        tls: whether those with a port take mTLS only, under the name by which they are called.
    """

    def __init__(self, addresses: Iterable[str], *, tls: bool = False) -> None:
        # An address that is given twice is one engine.
        self._endpoints = tuple(
            Endpoint(address=address, tls_name=_host(address) if tls else "")
            for address in dict.fromkeys(addresses)
        )

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """See Discovery."""
        on_found(Discovered(endpoints=self._endpoints))
        while True:
            await asyncio.Event().wait()


def _host(address: str) -> str:
    """Returns the host of HOST:PORT; empty for a path."""
    if address.startswith("unix:"):
        return ""
    return address.rpartition(":")[0].strip("[]")
