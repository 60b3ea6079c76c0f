"""The namespaces that an operator serves, and which of them it may not read just now.

A namespace that was deleted has taken its Role with it, so the API server refuses to list it. That
concerns nobody but its own services: it is closed, told once, and tried again with each listing.
Knows neither who lists nor what follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog

log = structlog.get_logger(__name__)


class Scopes:
    """What an operator serves: named namespaces, or all of them, which are one scope.

    Args:
        all: the scopes; None stands for all namespaces.
    """

    def __init__(self, all: Sequence[str | None]) -> None:
        self.all = tuple(all)
        self.changed = asyncio.Event()
        """Set when one closes or opens; whoever goes by what is open clears it."""
        self._closed: set[str] = set()
        self._may_list: dict[tuple[str, ...], float] = {}

    @property
    def open(self) -> tuple[str, ...]:
        """The namespaces that may be read; empty stands for all, for at least one may be."""
        return tuple(scope for scope in self.all if scope is not None and self.is_open(scope))

    def is_open(self, namespace: str) -> bool:
        """Tells whether what is known of a namespace is all that there is."""
        return namespace not in self._closed

    def update(self, refused: Mapping[str, str]) -> set[str]:
        """Takes in which namespaces a listing was refused; returns those that are open again.

        Where all are refused, that is all that changes: with none open nothing could be watched.

        Args:
            refused: by namespace, what the API server said.
        """
        named = [scope for scope in self.all if scope is not None]
        self._may_list = {(scope,): scope not in refused for scope in named}
        if not any(self._may_list.values()):
            return set()
        closed, opened = refused.keys() - self._closed, self._closed - refused.keys()
        for namespace in sorted(closed):
            log.warning("namespace_refused", namespace=namespace, reason=refused[namespace])
        for namespace in sorted(opened):
            log.info("namespace_is_back", namespace=namespace)
        if closed or opened:
            self._closed = set(refused)
            self.changed.set()
        return opened

    def states(self) -> dict[tuple[str, ...], float]:
        """Returns, by named namespace, whether the last listing was allowed; nothing before one."""
        return self._may_list
