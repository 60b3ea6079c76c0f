"""The one place where the core is driven: commands in, one bundle of results out per turn.

`put` may be called from any thread; `turn` only from the one that steps (the engine's thread, or
the loop of a simulation). The stepping side never waits for a reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.engine.core import EngineCore, Ticket
from octavo.engine.pin_orders import ListPins, PinCommand, PinOrders, PinPrefix, UnpinPrefix
from octavo.engine.pins import Pins
from octavo.runtime.failpoint import failpoint
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import DRAINING, INVALID_VALUE, QUEUE_FULL, OctavoError

HEARTBEAT_S = 0.5
"""A bundle goes out at least this often, so that a silent engine is a stuck engine."""
WORD_S = 0.005
"""What a message takes to leave a busy process; only suspects cost it."""
LOAD_S = 0.1
"""Load is reported at most this often while steps run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Start a request for a sink."""

    proto: engine_pb2.GenerateRequest
    sink: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End one attempt of a sink; attempts that are over are ignored."""

    request_id: str
    attempt: int
    sink: object


@dataclass(frozen=True, slots=True)
class CancelAll:
    """End everything of a sink, or of everybody."""

    sink: object | None


@dataclass(frozen=True, slots=True)
class Drain:
    """Refuse new requests from now on."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the prefix cache; `done` gets the outcome on the stepping thread."""

    done: Callable[[bool], None]


Command = Submit | Cancel | CancelAll | Drain | Reset | PinCommand


@dataclass(slots=True)
class Bundle:
    """What a turn has to tell the outside."""

    step: int
    oldest_runnable_ms: int
    remaining: int
    """Requests that have not ended."""
    draining: bool = False
    """Whether new requests are refused, so that `remaining` can only fall."""
    accepted: list[tuple[object, engine_pb2.GenerateRequest]] = field(default_factory=list)
    refused: list[tuple[object, engine_pb2.GenerateRequest, OctavoError]] = field(
        default_factory=list
    )
    deltas: list[tuple[object, engine_pb2.Delta]] = field(default_factory=list)
    stored: list[tuple[BlockHash, BlockHash]] = field(default_factory=list)
    removed: list[BlockHash] = field(default_factory=list)
    cleared: bool = False
    load: engine_pb2.Load | None = None

    def is_empty(self) -> bool:
        """Whether it would tell nothing but that the engine lives."""
        told = (self.accepted, self.refused, self.deltas, self.stored, self.removed)
        return not (any(told) or self.cleared)


class Stepper:
    """Owns the core.

    Args:
        core: the engine.
        publish: gets each bundle, on the stepping thread.
        wake: called by `put` after a command was queued, on the caller's thread.
        clock: monotonic seconds.
        pause: waits for so many seconds on the stepping thread.
        orders: carries out what is asked of pinned prefixes; None pins nothing.
    """

    def __init__(
        self,
        core: EngineCore,
        *,
        publish: Callable[[Bundle], None],
        wake: Callable[[], None],
        clock: Callable[[], float],
        pause: Callable[[float], object] = lambda _: None,
        orders: PinOrders | None = None,
    ) -> None:
        self.core = core
        self.turn_began: float | None = None
        """When the present turn began; None between turns. The watchdog reads it."""
        self._publish = publish
        self._wake = wake
        self._clock = clock
        self._pause = pause
        self._orders = orders or PinOrders(core, Pins(core.scheduler.cache, budget=0))
        self._inbox: deque[Command] = deque()
        self._tickets: dict[tuple[object, str, int], Ticket] = {}
        self._draining = False
        self._last_bundle = self._last_load = clock()
        self._last_remaining = 0

    @property
    def num_queued(self) -> int:
        """Commands that no turn has handled yet."""
        return len(self._inbox)

    @property
    def _num_remaining(self) -> int:
        return len(self._tickets) + self._orders.num_open

    def put(self, command: Command) -> None:
        """Queues a command; thread-safe."""
        self._inbox.append(command)
        self._wake()

    def turn(self) -> bool:
        """Handles all commands and runs one step; returns whether there is more to do at once."""
        now = self.turn_began = self._clock()
        bundle = Bundle(step=0, oldest_runnable_ms=0, remaining=0)
        while self._inbox:
            self._handle(self._inbox.popleft(), bundle, now)
        if any(proto.deaths for _, proto in bundle.accepted):
            self._announce(bundle)
            return True
        result = self.core.step()
        for ticket, delta in self._orders.collect(result.deltas, now):
            bundle.deltas.append((ticket.sink, delta))
            if ticket.open == 0:
                self._forget(ticket)
        self._report(bundle, now, idle=not result.ran)
        self.turn_began = None
        return result.ran or bool(self._inbox)

    def _announce(self, bundle: Bundle) -> None:
        """Ends a turn without a step: tells first that suspects were let in.

        Should this process die in the next step, their gateway knows that it was one of them; dies
        it before, that it was none. A moment is left for the word to get out.
        """
        self._complete(bundle)
        self._publish(bundle)
        self._pause(WORD_S)
        self.turn_began = None

    def _handle(self, command: Command, bundle: Bundle, now: float) -> None:
        match command:
            case Submit(proto=proto, sink=sink):
                try:
                    failpoint("engine.accept", proto.token_ids.ids)
                    self._admit(sink, proto)
                    ticket = self.core.submit(proto, sink)
                except OctavoError as error:
                    if error.kind is QUEUE_FULL:
                        self.core.metrics.rejections.inc()
                    bundle.refused.append((sink, proto, error))
                else:
                    self._tickets[sink, proto.request_id, proto.attempt] = ticket
                    bundle.accepted.append((sink, proto))
            case Cancel(request_id=request_id, attempt=attempt, sink=sink):
                found = self._tickets.get((sink, request_id, attempt))
                if found is not None:
                    self._abort(found)
            case CancelAll(sink=sink):
                mine = [t for k, t in self._tickets.items() if sink is None or k[0] is sink]
                if sink is None:
                    self._orders.cancel()
                for ticket in mine:
                    ends = self._abort(ticket)
                    if sink is None:  # nobody asked for it, so its callers are told
                        bundle.deltas += [(ticket.sink, delta) for delta in ends]
            case Drain():
                self._draining = True
            case Reset(done=done):
                done(self._orders.pins.reset())
            case PinPrefix() | UnpinPrefix() | ListPins():
                self._orders.handle(command, now)

    def _admit(self, sink: object, proto: engine_pb2.GenerateRequest) -> None:
        if self._draining:
            raise OctavoError(DRAINING, retry_after_ms=1000)
        if (sink, proto.request_id, proto.attempt) in self._tickets:
            raise OctavoError(
                INVALID_VALUE, param="request_id", reason="this attempt is running already"
            )

    def _abort(self, ticket: Ticket) -> list[engine_pb2.Delta]:
        self._forget(ticket)
        return self.core.abort(ticket)

    def _forget(self, ticket: Ticket) -> None:
        self._tickets.pop((ticket.sink, ticket.proto.request_id, ticket.proto.attempt), None)

    def _report(self, bundle: Bundle, now: float, *, idle: bool) -> None:
        """Completes the bundle and publishes it, unless it is empty and no heartbeat is due."""
        # Drained every turn: within one step removals precede stores, so the order is known.
        cache = self.core.scheduler.cache
        bundle.stored, bundle.removed, bundle.cleared = cache.drain_events()
        bundle.remaining = self._num_remaining
        # A cancel says nothing else, but makes room that the gateways should know of.
        news = not bundle.is_empty() or bundle.remaining != self._last_remaining
        if not news and now - self._last_bundle < HEARTBEAT_S:
            return
        self._last_bundle, self._last_remaining = now, bundle.remaining
        if idle or now - self._last_load >= LOAD_S:
            self._add_load(bundle)
            self._last_load = now
        self._complete(bundle)
        failpoint("engine.publish")
        self._publish(bundle)

    def _complete(self, bundle: Bundle) -> None:
        bundle.step = self.core.steps
        bundle.oldest_runnable_ms = self.core.oldest_runnable_ms()
        bundle.remaining = self._num_remaining
        bundle.draining = self._draining

    def _add_load(self, bundle: Bundle) -> None:
        scheduler, metrics = self.core.scheduler, self.core.metrics
        cache = scheduler.cache
        bundle.load = self.core.load()
        metrics.observe_queue(
            running=bundle.load.running,
            waiting=bundle.load.waiting,
            preemptions=scheduler.num_preemptions,
        )
        metrics.tiers.observe(
            cache.host.counts(),
            preemptions=scheduler.num_preemptions,
            swaps=scheduler.num_swaps,
            host_hits=cache.host_hits,
        )
        metrics.observe_cache(
            total=self.core.model.capacity.num_blocks,
            free=bundle.load.free_blocks,
            cached_free=bundle.load.cached_free_blocks,
            pinned=len(cache.held),
            queries=cache.queries,
            hits=cache.hits,
            preempted_hits=cache.preempted_hits,
        )
