"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A bug in one place of production."""

    name: str
    finds: tuple[str, ...]
    """Invariants of which one must be violated."""
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    """From what is there to what is wrong."""


def mutant(
    table: list[Mutant], owner: Any, attribute: str, *finds: str
) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Decorates the maker of a bug, whose name it gets, and puts it into a table."""

    def add(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        table.append(
            Mutant(name=make.__name__, finds=finds, owner=owner, attribute=attribute, make=make)
        )
        return make

    return add
