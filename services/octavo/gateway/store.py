"""The port to the store of soft state: what the gateway needs, not what Redis can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class StoreUnavailableError(Exception):
    """The store did not answer in time, or is being left alone after it did not."""


@dataclass(frozen=True, slots=True)
class Item:
    """A value to keep for a while."""

    key: str
    value: bytes
    ttl_s: int
    """At least one second: nothing is kept for ever."""


class Store(Protocol):
    """Keeps values under keys. Every call answers within its deadline or raises."""

    async def put_many(self, items: Sequence[Item]) -> None:
        """Writes all; may be repeated. Raises StoreUnavailableError, some then written."""
        ...

    async def get(self, key: str, *, patient: bool = False) -> bytes | None:
        """Returns a value; None when there is none. Raises StoreUnavailableError.

        Args:
            key: what it was put under.
            patient: let it wait longer for its turn; for what is decided on it more depends.
        """
        ...

    async def put_if_absent(self, item: Item) -> bool:
        """Writes unless there is a value; tells whether it did. Raises StoreUnavailableError."""
        ...

    async def renew(self, key: str, ttl_s: int) -> bool:
        """Gives a value new time to live; False: there is none. Raises StoreUnavailableError."""
        ...

    async def close(self) -> None:
        """Gives the connections back."""
        ...
