"""An engine whose prefixes can be pinned, driven as the stepper drives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engine.harness import Engine, generate

from octavo.engine.pin_orders import ListPins, Outcome, PinOrders, PinPrefix, UnpinPrefix
from octavo.engine.pins import Pins
from octavo.v1 import engine_pb2
from octavo.v1.errors import OctavoError


class PinningEngine(Engine):
    """Its time goes on with its steps, or when the test says so.

    Args:
        pin_blocks: what all pins may have.
        step_s: what a step takes.
        sizes: of the engine.
    """

    def __init__(self, *, pin_blocks: int, step_s: float = 1.0, **sizes: Any) -> None:
        self.now = 0.0
        self._step_s = step_s
        super().__init__(pin_blocks=pin_blocks, clock=lambda: self.now, **sizes)
        self.orders = PinOrders(self.core, Pins(self.cache, pin_blocks))

    def step(self) -> bool:
        """One step with its integrity check; returns whether anything ran."""
        self.now += self._step_s
        result = self.core.step()
        for ticket, delta in self.orders.collect(result.deltas, self.now):
            self.deltas[ticket].append(delta)
        self.scheduler.check_integrity()
        self.orders.pins.check_integrity()
        return result.ran

    def order(
        self, prompt: Sequence[int], ttl_s: float | None = None, salt: str = ""
    ) -> list[Outcome]:
        """Asks for a pin; the outcome appears in the list."""
        outcomes: list[Outcome] = []
        proto = generate(prompt, cache_salt=salt)
        command = PinPrefix(proto=proto, ttl_s=ttl_s, done=outcomes.append)
        self.orders.handle(command, self.now)
        return outcomes

    def unpin(self, pin_id: str) -> OctavoError | None:
        """Ends a pin; returns the refusal."""
        answers: list[engine_pb2.UnpinPrefixResponse | OctavoError] = []
        self.orders.handle(UnpinPrefix(pin_id=pin_id, done=answers.append), self.now)
        return answers[0] if isinstance(answers[0], OctavoError) else None

    def listed(self) -> engine_pb2.ListPinsResponse:
        """All pins as callers see them."""
        answers: list[engine_pb2.ListPinsResponse] = []
        self.orders.handle(ListPins(answers.append), self.now)
        return answers[0]
