"""Commands in, bundles out."""

from __future__ import annotations

from tests.engine.harness import Engine, generate

from octavo.engine.pin_orders import Outcome, PinOrders, PinPrefix
from octavo.engine.pins import Pins
from octavo.engine.stepper import (
    HEARTBEAT_S,
    WORD_S,
    Bundle,
    Cancel,
    CancelAll,
    Drain,
    Reset,
    Stepper,
    Submit,
)


class Driven:
    """A stepper on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bundles: list[Bundle] = []
        self.wakes = 0
        self.pauses: list[float] = []
        self.engine = Engine(clock=lambda: self.now)
        self.orders = PinOrders(self.engine.core, Pins(self.engine.cache, budget=8))
        self.stepper = Stepper(
            self.engine.core,
            publish=self.bundles.append,
            wake=self._wake,
            clock=lambda: self.now,
            pause=self.pauses.append,
            orders=self.orders,
        )

    def _wake(self) -> None:
        self.wakes += 1


def test_an_idle_stepper_reports_each_heartbeat_and_no_more() -> None:
    driven = Driven()
    for _ in range(100):
        driven.now += HEARTBEAT_S / 10
        assert not driven.stepper.turn()
    assert 8 <= len(driven.bundles) <= 10
    assert all(b.is_empty() and b.load is not None for b in driven.bundles)


def test_a_turn_tells_acceptance_and_tokens_together() -> None:
    driven = Driven()
    sink = object()
    driven.stepper.put(Submit(proto=generate([1] * 5, max_tokens=2), sink=sink))
    assert driven.wakes == 1
    assert driven.stepper.turn()
    (bundle,) = driven.bundles
    assert [s for s, _ in bundle.accepted] == [sink]
    assert [s for s, _ in bundle.deltas] == [sink]
    assert bundle.remaining == 1
    driven.stepper.turn()
    assert driven.bundles[-1].remaining == 0
    assert driven.stepper.turn_began is None


def test_cancel_ends_one_attempt_and_cancel_all_those_of_a_sink() -> None:
    driven = Driven()
    one, two = object(), object()
    for sink in (one, two):
        for name in "ab":
            proto = generate([1] * 5, max_tokens=99, request_id=name)
            driven.stepper.put(Submit(proto=proto, sink=sink))
    driven.stepper.turn()
    driven.stepper.put(Cancel(request_id="a", attempt=1, sink=one))  # another attempt
    driven.stepper.put(Cancel(request_id="a", attempt=0, sink=one))
    driven.stepper.turn()
    assert driven.bundles[-1].remaining == 3
    driven.stepper.put(CancelAll(two))
    driven.stepper.turn()
    assert driven.bundles[-1].remaining == 1
    driven.stepper.put(CancelAll(None))
    driven.stepper.turn()
    driven.engine.assert_idle()


def test_a_suspect_is_told_to_be_in_before_it_runs() -> None:
    driven = Driven()
    driven.stepper.put(Submit(proto=generate([1] * 5, max_tokens=2, deaths=1), sink=object()))
    assert driven.stepper.turn()
    assert driven.stepper.turn()
    announced, result = driven.bundles
    assert (len(announced.accepted), announced.deltas, announced.remaining) == (1, [], 1)
    assert (result.accepted, len(result.deltas)) == ([], 1)
    assert driven.pauses == [WORD_S]


def test_the_room_that_a_cancel_makes_is_told_at_once() -> None:
    driven = Driven()
    sink = object()
    driven.stepper.put(Submit(proto=generate([1] * 40, max_tokens=9), sink=sink))
    driven.stepper.turn()
    driven.stepper.put(CancelAll(sink))
    driven.stepper.turn()
    load = driven.bundles[-1].load
    assert load is not None
    assert (load.running, load.waiting, driven.bundles[-1].remaining) == (0, 0, 0)


def test_a_draining_stepper_refuses() -> None:
    driven = Driven()
    driven.stepper.put(Drain())
    driven.stepper.put(Submit(proto=generate([1]), sink=None))
    driven.stepper.turn()
    ((_, _, error),) = driven.bundles[-1].refused
    assert error.kind.name == "draining"
    assert error.retry_after_ms > 0


def test_reset_tells_whether_it_could() -> None:
    driven = Driven()
    answers: list[bool] = []
    driven.stepper.put(Submit(proto=generate([1] * 40, max_tokens=9), sink=None))
    driven.stepper.turn()
    driven.stepper.put(Reset(answers.append))
    while driven.stepper.turn():
        pass
    driven.stepper.put(Reset(answers.append))
    driven.stepper.turn()
    assert answers == [False, True]
    assert driven.bundles[-1].cleared


def test_a_prefix_that_is_computed_keeps_a_drain_waiting_and_nobody_hears_of_its_request() -> None:
    driven = Driven()
    outcomes: list[Outcome] = []
    command = PinPrefix(proto=generate([1] * 40), ttl_s=None, done=outcomes.append)
    driven.stepper.put(command)
    while driven.stepper.turn():
        pass
    assert [b.remaining for b in driven.bundles] == [0]
    assert [len(b.stored) for b in driven.bundles] == [2]
    assert all(not b.deltas and not b.accepted for b in driven.bundles)
    assert len(outcomes) == 1
    driven.stepper.put(PinPrefix(proto=generate([2] * 96), ttl_s=None, done=outcomes.append))
    driven.stepper.turn()
    assert driven.bundles[-1].remaining == 1
    driven.stepper.put(CancelAll(None))
    driven.stepper.turn()
    assert (driven.bundles[-1].remaining, len(outcomes)) == (0, 2)
    assert driven.orders.pins.num_blocks == 2


def test_a_pin_expires_though_nothing_runs() -> None:
    driven = Driven()
    driven.stepper.put(PinPrefix(proto=generate([1] * 40), ttl_s=5.0, done=lambda _: None))
    while driven.stepper.turn():
        pass
    assert driven.orders.pins.num_blocks == 2
    driven.now += 5.0
    driven.stepper.turn()
    assert driven.orders.pins.num_blocks == 0
    driven.engine.assert_idle()


def test_66_requests_refused_by_a_full_queue_are_counted() -> None:
    driven = Driven()
    for i in range(1002):
        driven.stepper.put(Submit(proto=generate([1], request_id=str(i)), sink=None))
    driven.stepper.put(Submit(proto=generate([], request_id="empty"), sink=None))
    driven.stepper.turn()
    labels = {"model_name": "fake"}
    sample = driven.engine.core.metrics.registry.get_sample_value
    assert sample("vllm:admission_rejections_total", labels) == 2
    waiting = sample("vllm:num_requests_waiting_by_reason", {**labels, "reason": "capacity"})
    assert waiting == sample("vllm:num_requests_waiting", labels)
