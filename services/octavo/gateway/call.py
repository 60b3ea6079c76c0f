"""What a client asked for, in the engine's words."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.gateway.endpoints import ServedModel
from octavo.v1 import engine_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request for one prompt."""

    model: ServedModel
    request: engine_pb2.GenerateRequest
    """Prompt as token ids; never changed."""
    id: str = ""
    """Identifier to use; empty draws one. Must be unguessable: records are read by it."""
    client_label: str = ""
    ignored: tuple[str, ...] = ()
    clamped: bool = False
    endpoint: str = "chat"
    traceparent: str = ""
    waited_s: float = 0.0
    """How long ago it arrived: it was held until its service had an engine."""
