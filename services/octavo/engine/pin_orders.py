"""Prefixes on their way to being pinned: each is computed by an ordinary request without outputs.

Such a request waits, is preempted and fails like any other. When it has ended, and before the next
step can evict anything, the pins take its blocks. Driven like the core, by the stepping side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo.engine.core import EngineCore, Ticket
from octavo.engine.pins import Pin, Pins
from octavo.v1 import common_pb2, engine_pb2
from octavo.v1.block_hash import BlockHash, extend_chain, hash_root
from octavo.v1.errors import (
    DRAINING,
    INVALID_VALUE,
    REQUEST_FAILED,
    UNSUPPORTED_PARAMETER,
    OctavoError,
)
from octavo.v1.validation import validate_request

Outcome = engine_pb2.PinPrefixResponse | OctavoError


@dataclass(frozen=True, slots=True, kw_only=True)
class PinPrefix:
    """Compute a prefix and pin it; `done` gets the outcome on the stepping thread."""

    proto: engine_pb2.GenerateRequest
    """The prefix as token ids, and its salt."""
    ttl_s: float | None
    done: Callable[[Outcome], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinPrefix:
    """End a pin; `done` gets the outcome on the stepping thread."""

    pin_id: str
    done: Callable[[engine_pb2.UnpinPrefixResponse | OctavoError], None]


@dataclass(frozen=True, slots=True)
class ListPins:
    """Tell all pins to `done` on the stepping thread."""

    done: Callable[[engine_pb2.ListPinsResponse], None]


PinCommand = PinPrefix | UnpinPrefix | ListPins


@dataclass(slots=True, eq=False)
class _Order:
    """One prefix that is being computed, and who waits for it."""

    pin_id: str
    waiting: list[Callable[[Outcome], None]] = field(default_factory=list)

    def end(self, outcome: Outcome) -> None:
        for done in self.waiting:
            done(outcome)


class PinOrders:
    """Carries out what is asked of the pins.

    Args:
        core: computes prefixes.
        pins: keeps them.
    """

    def __init__(self, core: EngineCore, pins: Pins) -> None:
        self.pins = pins
        self._core = core
        self._open: dict[str, tuple[_Order, Ticket]] = {}

    @property
    def num_open(self) -> int:
        """Prefixes that are being computed."""
        return len(self._open)

    def handle(self, command: PinCommand, now: float) -> None:
        """Carries a command out, or begins to."""
        match command:
            case PinPrefix(proto=proto, ttl_s=ttl_s, done=done):
                try:
                    self._place(proto, ttl_s, done, now)
                except OctavoError as error:
                    done(error)
            case UnpinPrefix(pin_id=pin_id, done=done):
                try:
                    self.pins.drop(self.pins.find(pin_id))
                except OctavoError as error:
                    done(error)
                else:
                    done(engine_pb2.UnpinPrefixResponse())
            case ListPins(done=done):
                done(self._list(now))

    def pin_now(
        self, proto: engine_pb2.GenerateRequest, ttl_s: float | None, clock: Callable[[], float]
    ) -> engine_pb2.PinPrefixResponse:
        """Computes and pins a prefix while nobody else uses the engine; raises OctavoError."""
        outcomes: list[Outcome] = []
        self.handle(PinPrefix(proto=proto, ttl_s=ttl_s, done=outcomes.append), clock())
        while not outcomes:
            self.collect(self._core.step().deltas, clock())
        if isinstance(outcomes[0], OctavoError):
            raise outcomes[0]
        return outcomes[0]

    def collect(
        self, deltas: Iterable[tuple[Ticket, engine_pb2.Delta]], now: float
    ) -> list[tuple[Ticket, engine_pb2.Delta]]:
        """Takes the ends of its own requests out of what a step has told; returns the rest.

        Called after each step and before the next one.
        """
        others = []
        for ticket, delta in deltas:
            if isinstance(ticket.sink, _Order):
                self._end(ticket.sink, delta, now)
            else:
                others.append((ticket, delta))
        self.pins.tend(now)
        return others

    def cancel(self) -> None:
        """Ends all requests; the pins that are there stay."""
        for order, ticket in list(self._open.values()):
            for delta in self._core.abort(ticket):
                self._end(order, delta, 0.0)

    def _place(
        self,
        proto: engine_pb2.GenerateRequest,
        ttl_s: float | None,
        done: Callable[[Outcome], None],
        now: float,
    ) -> None:
        hashes = self._hashes(proto)
        is_new = not self.pins.knows(hashes)
        pin = self.pins.promise(hashes, ttl_s, now)
        if pin.is_whole:
            done(self._answer(pin, now))
        elif pin.id in self._open:
            self._open[pin.id][0].waiting.append(done)
        else:
            order = _Order(pin.id, [done])
            try:
                self._open[pin.id] = order, self._core.submit(proto, order)
            except OctavoError:
                if is_new:
                    self.pins.drop(pin)
                raise

    def _hashes(self, proto: engine_pb2.GenerateRequest) -> list[BlockHash]:
        """Cuts the request to what can be kept, and returns the hashes of that."""
        cache, model = self._core.scheduler.cache, self._core.model
        if not cache.enabled:
            reason = "the engine runs without prefix caching"
            raise OctavoError(UNSUPPORTED_PARAMETER, param="prefix", reason=reason)
        proto.score_only = True
        validate_request(proto, model.capacity)
        ids, size = proto.token_ids.ids, cache.block_tokens
        if len(ids) < size:
            reason = f"has {len(ids)} tokens; only full blocks of {size} can be kept"
            raise OctavoError(INVALID_VALUE, param="prefix", reason=reason)
        del ids[len(ids) - len(ids) % size :]
        hashes: list[BlockHash] = []
        extend_chain(hashes, hash_root(model.identity, proto.cache_salt), ids, size)
        return hashes

    def _end(self, order: _Order, delta: engine_pb2.Delta, now: float) -> None:
        del self._open[order.pin_id]
        try:
            pin = self.pins.find(order.pin_id)  # not so when it was unpinned meanwhile
        except OctavoError as error:
            order.end(error)
            return
        if delta.finish_reason == common_pb2.FINISH_REASON_LENGTH and self.pins.hold(pin, now):
            order.end(self._answer(pin, now))
            return
        self.pins.drop(pin)
        if delta.finish_reason == common_pb2.FINISH_REASON_ABORT:
            order.end(OctavoError(DRAINING, retry_after_ms=1000))
        elif delta.HasField("error"):
            order.end(OctavoError.from_proto(delta.error))
        else:
            order.end(OctavoError(REQUEST_FAILED))

    def _answer(self, pin: Pin, now: float) -> engine_pb2.PinPrefixResponse:
        return engine_pb2.PinPrefixResponse(
            pin=self._tell(pin, now),
            pinned_blocks=self.pins.num_blocks,
            budget_blocks=self.pins.budget,
        )

    def _list(self, now: float) -> engine_pb2.ListPinsResponse:
        return engine_pb2.ListPinsResponse(
            pins=[self._tell(pin, now) for pin in self.pins],
            pinned_blocks=self.pins.num_blocks,
            budget_blocks=self.pins.budget,
        )

    def _tell(self, pin: Pin, now: float) -> engine_pb2.PinnedPrefix:
        held = len(pin.blocks)
        told = engine_pb2.PinnedPrefix(
            pin_id=pin.id,
            num_tokens=held * self._core.scheduler.cache.block_tokens,
            num_blocks=held,
        )
        if pin.ttl_s is not None:
            left = pin.expires - now if pin.is_whole else pin.ttl_s
            told.ttl_ms = max(1, round(1e3 * left))
        return told
