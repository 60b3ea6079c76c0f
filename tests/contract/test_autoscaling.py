"""The operator's controller, told what a gateway makes of a model of engines: they share no code.

Engines have room for so many requests, by their places or by their blocks, and a request keeps its
own for a fixed time. What is reported is not how long requests wait in the model, but what the
gateway predicts from the engines' loads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest

from octavo.gateway.queue_time import Queue, queue_s, share_in_use
from octavo.operator.autoscale import Fleet, Load, Memory, decide
from octavo.operator.spec import Autoscaling

STEP_S = 0.25
LOAD_S = 60.0
START = 1_780_000_000.0
BLOCKS = 4
"""Of a request."""


@dataclass
class _Engine:
    """An engine that computes prompts at once, and so many requests side by side."""

    room: int
    serves_at: float
    ends: list[float] = field(default_factory=list)
    """When each request that runs ends."""
    waiting: deque[float] = field(default_factory=deque)
    """When each request that waits came."""
    waited: list[float] = field(default_factory=list)
    """How long each request waited that has been begun."""

    def turn(self, now: float, keeps_s: float) -> None:
        self.ends = [end for end in self.ends if end > now]
        while self.waiting and len(self.ends) < self.room:
            self.ends.append(now + keeps_s)
            self.waited.append(now - self.waiting.popleft())

    @property
    def in_flight(self) -> int:
        return len(self.ends) + len(self.waiting)


@dataclass(kw_only=True)
class _Service:
    """A service, its gateway and its controller.

    Args:
        room: requests that each engine runs at once.
        is_of_blocks: whether blocks are what it lacks for more, not places.
        keeps_s: how long a request keeps its place.
        step_s: of a step, of which each makes a token.
    """

    room: int
    is_of_blocks: bool = False
    keeps_s: float
    step_s: float
    now: float = START
    engines: list[_Engine] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    changes: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    """That any request has waited."""

    def __post_init__(self) -> None:
        self.engines.append(_Engine(self.room, self.now))

    def run(self, arrivals_per_s: float, seconds: float) -> None:
        """Lets requests come at a steady rate, the controller looks once a second."""
        owed = 0.0
        for turn in range(int(seconds / STEP_S)):
            self.now += STEP_S
            owed += arrivals_per_s * STEP_S
            while owed >= 1:
                owed -= 1
                min(self._serving(), key=lambda engine: engine.in_flight).waiting.append(self.now)
            for engine in self.engines:
                engine.turn(self.now, self.keeps_s)
            if turn % 4 == 0:
                self._look()
        self.longest_s = max([0.0, *(w for engine in self.engines for w in engine.waited[-50:])])

    def _serving(self) -> list[_Engine]:
        return [engine for engine in self.engines if engine.serves_at <= self.now]

    def _look(self) -> None:
        serving = self._serving()
        fleet = Fleet(
            replicas=len(self.engines),
            routable=len(serving),
            loading=len(self.engines) - len(serving),
            places=self._places,
        )
        queues = [self._queue(engine) for engine in serving]
        load = Load(
            held=0,
            in_flight=sum(engine.in_flight for engine in serving),
            queue_s=min(queue_s(queue, self.keeps_s) for queue in queues),
            in_use=sum(map(share_in_use, queues)),
            wanted_age_s=0.0,
            quiet_s=0.0,
            is_complete=True,
        )
        found = decide(RULE, load, fleet, self.memory, self.now)
        if found.replicas != len(self.engines):
            self.changes.append(found.memory.reason)
        self.memory = found.memory
        for _ in range(found.replicas - len(self.engines)):
            self.engines.append(_Engine(self.room, self.now + LOAD_S))
        del self.engines[found.replicas :]

    @property
    def _places(self) -> int:
        return 64 if self.is_of_blocks else self.room

    def _queue(self, engine: _Engine) -> Queue:
        blocks = self.room if self.is_of_blocks else 1000
        return Queue(
            places=self._places,
            running=len(engine.ends),
            waiting=len(engine.waiting),
            queued_tokens=BLOCKS * 16 * len(engine.waiting),
            waiting_tokens=BLOCKS * 16 * len(engine.waiting),
            num_blocks=BLOCKS * blocks,
            free_blocks=BLOCKS * (blocks - len(engine.ends)),
            block_tokens=16,
            prefill_s_per_token=1e-4,
            decode_s_per_step=self.step_s,
        )


RULE = Autoscaling(
    min_replicas=1,
    max_replicas=8,
    target_queue_seconds=2.0,
    idle_seconds=300,
    max_step_up=4,
    max_step_down=1,
)


def test_steps_that_take_long_are_no_queue() -> None:
    """24 of 64 places are taken, with 0.1 s a step: whoever comes is begun at once."""
    service = _Service(room=64, keeps_s=40.0, step_s=0.1)
    service.run(0.6, 7200)
    assert service.engines[0].in_flight == pytest.approx(24, abs=1)
    assert (service.changes, service.longest_s) == ([], 0.0)


def test_short_prompts_that_wait_for_long_answers_are_a_queue() -> None:
    """16 places and 1,000 tokens of 20 ms an answer: 0.8 a second end, and 1.6 come."""
    service = _Service(room=16, keeps_s=20.0, step_s=0.02)
    service.run(1.6, 120)
    assert service.changes[0].startswith("1 → ")
    service.run(1.6, 1800)
    assert service.longest_s <= RULE.target_queue_seconds
    in_use = sum(engine.in_flight for engine in service.engines)
    assert in_use == pytest.approx(32, abs=1)
    assert 3 <= len(service.engines) <= 5


@pytest.mark.parametrize("is_of_blocks", [False, True], ids=["places", "blocks"])
@pytest.mark.parametrize("arrivals_per_s", [0.2, 0.79, 0.9, 3.0, 5.5])
def test_what_engines_can_do_is_what_they_come_to(
    arrivals_per_s: float, is_of_blocks: bool
) -> None:
    service = _Service(room=16, is_of_blocks=is_of_blocks, keeps_s=20.0, step_s=0.02)
    service.run(arrivals_per_s, 3600)
    before = len(service.changes)
    service.run(arrivals_per_s, 3600)
    assert service.longest_s <= RULE.target_queue_seconds
    needed = arrivals_per_s * 20.0 / 16
    assert needed <= len(service.engines) <= min(8, needed / 0.7 + 2)
    assert len(service.changes) == before, service.changes
