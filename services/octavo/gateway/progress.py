"""Where the attempts of one generation stand."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.v1.errors import OctavoError


@dataclass(slots=True, kw_only=True)
class Progress:
    """The attempts of one generation so far."""

    attempts: int = 0
    deaths: int = 0
    tried: set[tuple[str, int]] = field(default_factory=set)
    """Incarnations that refused it, did not answer or handed it over."""
    admitted: bool = False
    """Whether an engine has let it in."""
    last_error: OctavoError | None = None
    lost_at: float | None = None
    """When its engine was lost, until another one goes on."""
    delivered_by: str | None = None
    """Numerics id of the engine whose tokens were delivered; None: there are none."""
    numerics: str = ""
    """Of the engine that has the attempt."""
    unproven: set[int] = field(default_factory=set)
    """Choices of a suspect that have got no token from that engine; of a beam search the first one,
    until the engine says that it has begun."""
