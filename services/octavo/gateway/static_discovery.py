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
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        # An address that is given twice is one engine.
        self._endpoints = tuple(Endpoint(address=a) for a in dict.fromkeys(addresses))

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """See Discovery."""
        on_found(Discovered(endpoints=self._endpoints))
        while True:
            await asyncio.Event().wait()
