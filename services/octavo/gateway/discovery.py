"""The port to whatever knows where engines are: values, and news of all that there is now.

Each value is the whole truth of its moment, so whoever misses one has lost nothing with the next.
Knows no engine and no cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

Key = tuple[str, str]
"""Address and pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where one engine is."""

    address: str
    """HOST:PORT or unix:PATH."""
    uid: str = ""
    """Of its pod: another one at the same address is another engine."""
    pod: str = ""
    """NAMESPACE/NAME of its pod; empty when it runs in none."""
    service: str = ""
    """NAMESPACE/NAME of the service that it belongs to; empty when there are none."""
    terminating: bool = False
    """It takes no new attempts and keeps those that it has."""
    tls_name: str = ""
    """DNS name or IP address that its certificate must bear; empty: it speaks plaintext."""

    @property
    def key(self) -> Key:
        """What makes it another engine when it changes."""
        return self.address, self.uid

    @property
    def name(self) -> str:
        """Its name in records, metrics and headers."""
        return self.pod or self.address


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A model that somebody wants served, whether it has engines or not."""

    id: str
    """NAMESPACE/NAME."""
    names: tuple[str, ...]
    """Under which its namespace serves it; at least one."""
    created_unix_s: int = 0
    """Of two services that claim one name, the older one has it."""
    may_be_bare: bool = True
    """Whether it may be asked for by a served name without its namespace."""
    may_come: bool = True
    """Whether somebody starts engines when it has none, so that a request may wait for them."""

    @property
    def namespace(self) -> str:
        """Where it lives."""
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """All that there is."""

    endpoints: tuple[Endpoint, ...]
    services: tuple[Service, ...] | None = None
    """None: there are no services, and engines say themselves under which names they serve."""


class Discovery(Protocol):
    """Whatever knows where engines are."""

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """Tells what there is as soon as it is known, and whenever it has changed."""
        ...
