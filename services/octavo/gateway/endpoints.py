"""What the gateway knows of models and of readiness, as values."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.runtime.chat_template import ChatTemplate
from octavo.runtime.tokenizer import Tokenizer
from octavo.v1 import engine_pb2
from octavo.v1.validation import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model under one of its names, with all that is needed to make requests for it."""

    name: str
    """The name that was asked for."""
    card: engine_pb2.ModelCard
    """Shared and never changed."""
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None when the model has no chat template."""
    capacity: Capacity
    service: str = ""
    """NAMESPACE/NAME of the service whose engines serve it; empty when there are none."""

    @property
    def engine_name(self) -> str:
        """A name by which its engines know it: that of a service is not theirs."""
        known = self.card.served_names or [self.card.model]
        return self.name if self.name in known else known[0]

    @property
    def identity(self) -> bytes:
        """What binds the model's prompts to the engines that may serve them."""
        return self.card.identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether requests can be served, and if not, why and for how long."""

    ready: bool
    stage: str
    """In words: "ready", "loading: weights", "draining", …"""
    eta_ms: int = 0
    """Zero: unknown, or ready."""
