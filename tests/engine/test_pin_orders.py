"""Prefixes that are computed to be pinned, beside other requests."""

from __future__ import annotations

import itertools
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.harness import generate
from tests.engine.pinning import PinningEngine
from tests.fakes import BLOCK, FakeRunner, expected_output

from octavo.engine.batch import StepInput
from octavo.engine.core import Ticket
from octavo.engine.pin_orders import Outcome
from octavo.v1 import engine_pb2
from octavo.v1.errors import REQUEST_FAILED, OctavoError


class Pinning(PinningEngine):
    """One that breaks or poisons its steps when told so."""

    def __init__(self, *, budget: int = 16, **sizes: Any) -> None:
        self.breaks = False
        self.poisons = False
        super().__init__(
            pin_blocks=budget,
            num_blocks=32,
            max_model_len=256,
            runner=FakeRunner(before=self._before, poison=lambda _: self.poisons),
            **sizes,
        )

    def _before(self, step: StepInput) -> None:
        if self.breaks:
            self.breaks = False
            raise OctavoError(REQUEST_FAILED)

    def pin(self, prompt: list[int], **fields: Any) -> engine_pb2.PinPrefixResponse:
        """Pins a prefix."""
        outcomes = self.order(prompt, **fields)
        self.run()
        (outcome,) = outcomes
        assert isinstance(outcome, engine_pb2.PinPrefixResponse), outcome
        return outcome


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 101 + i * 31) % 256 for i in range(length)]


def error_of(outcomes: list[Outcome]) -> OctavoError:
    (outcome,) = outcomes
    assert isinstance(outcome, OctavoError)
    return outcome


def test_a_prefix_is_computed_and_its_full_blocks_are_pinned() -> None:
    engine = Pinning()
    told = engine.pin(prompt_of(40, 1))
    assert (told.pin.num_tokens, told.pin.num_blocks, told.pin.ttl_ms) == (32, 2, 0)
    assert (told.pinned_blocks, told.budget_blocks) == (2, 16)
    assert list(engine.listed().pins) == [told.pin]
    reader = engine.submit(generate(prompt_of(40, 1), seed=1, max_tokens=3))
    engine.run()
    assert engine.last(reader).usage.cached_tokens == 32
    assert engine.ids(reader) == expected_output(prompt_of(40, 1), 1, 3)


def test_a_salt_pins_for_its_own_requests_only() -> None:
    engine = Pinning()
    salted, plain = engine.pin(prompt_of(40), salt="a"), engine.pin(prompt_of(40))
    assert salted.pin.pin_id != plain.pin.pin_id
    assert plain.pinned_blocks == 4


def test_a_prefix_waits_in_the_queue_like_a_request_and_is_listed_meanwhile() -> None:
    engine = Pinning()
    outcomes = engine.order(prompt_of(200, 1), ttl_s=60.0)
    (listed,) = engine.listed().pins
    assert (listed.num_tokens, listed.ttl_ms) == (0, 60_000)
    assert (outcomes, engine.orders.num_open, engine.scheduler.num_waiting) == ([], 1, 1)
    engine.run()
    assert (len(outcomes), engine.orders.num_open) == (1, 0)


def test_two_that_ask_for_one_prefix_wait_for_one_computation() -> None:
    engine = Pinning()
    first, second = engine.order(prompt_of(64)), engine.order(prompt_of(70))
    engine.run()
    assert first == second
    assert sum(s.num_tokens for s in engine.runner.steps) == 64
    assert engine.order(prompt_of(64)) == first, "and who comes later does not wait"


def test_a_call_with_the_same_prefix_renews_the_time() -> None:
    engine = Pinning()
    pin = engine.pin(prompt_of(40), ttl_s=10.0).pin
    engine.now += 9.0
    assert engine.pin(prompt_of(40), ttl_s=10.0).pin.pin_id == pin.pin_id
    engine.now += 8.0
    engine.step()
    assert len(engine.listed().pins) == 1
    engine.now += 1.0
    engine.step()
    assert len(engine.listed().pins) == 0
    engine.assert_idle()


def test_a_prefix_beyond_the_budget_is_refused_before_anything_is_computed() -> None:
    engine = Pinning(budget=3)
    error = error_of(engine.order(prompt_of(64)))
    assert error.kind.name == "pins_full"
    assert "4 more KV blocks, but 0 of the 3" in error.message
    assert engine.core.num_open == 0


@pytest.mark.parametrize(
    ("length", "caching", "reason"),
    [(15, True, "only full blocks of 16"), (0, True, "empty"), (40, False, "without prefix"),
     (300, True, "256 tokens")],
)  # fmt: skip
def test_what_cannot_be_pinned_is_refused(length: int, caching: bool, reason: str) -> None:
    engine = Pinning(prefix_caching=caching)
    assert reason in error_of(engine.order(prompt_of(length))).message
    assert list(engine.listed().pins) == []


def test_a_full_queue_refuses_a_prefix_and_keeps_nothing_of_it() -> None:
    engine = Pinning(max_queued_requests=1)
    engine.submit(generate([1], max_tokens=1))
    assert error_of(engine.order(prompt_of(40))).kind.name == "queue_full"
    assert list(engine.listed().pins) == []


def test_a_cut_pin_is_kept_by_a_full_queue_and_until_it_is_computed_again() -> None:
    engine, prompt = Pinning(max_queued_requests=2), prompt_of(40)
    pin_id = engine.pin(prompt, ttl_s=50.0).pin.pin_id
    engine.poisons = True
    engine.submit(generate([*prompt, 9], max_tokens=1))
    engine.run()
    engine.poisons = False
    assert [(p.pin_id, p.num_blocks) for p in engine.listed().pins] == [(pin_id, 0)]
    for i in range(2):
        engine.submit(generate([i], max_tokens=1, request_id=str(i)))
    assert error_of(engine.order(prompt, 50.0)).kind.name == "queue_full"
    assert [p.pin_id for p in engine.listed().pins] == [pin_id]
    engine.run()
    (pin,) = engine.orders.pins
    engine.now = pin.expires - 0.5 if pin.expires < inf else engine.now + 49.0
    outcomes = engine.order(prompt, 50.0)
    engine.run()
    assert isinstance(outcomes[0], engine_pb2.PinPrefixResponse), "its old time ended meanwhile"
    assert outcomes[0].pin.num_blocks == 2


def test_unpinning_while_it_is_computed_ends_the_wait_with_a_reason() -> None:
    engine = Pinning()
    outcomes = engine.order(prompt_of(40))
    assert engine.unpin(engine.listed().pins[0].pin_id) is None
    engine.run()
    assert error_of(outcomes).kind.name == "pin_not_found"
    assert engine.unpin("nothing") is not None
    engine.assert_idle()


def test_a_prefix_that_alone_breaks_its_step_is_not_pinned() -> None:
    engine = Pinning()
    outcomes = engine.order(prompt_of(40))
    engine.breaks = True
    engine.run()
    assert error_of(outcomes).kind is REQUEST_FAILED
    assert list(engine.listed().pins) == []
    engine.assert_idle()


def test_pins_survive_a_failed_step() -> None:
    engine = Pinning()
    engine.pin(prompt_of(40))
    reader = engine.submit(generate(prompt_of(60), seed=1, max_tokens=3))
    other = engine.submit(generate(prompt_of(9, 5), seed=2, max_tokens=3))
    engine.breaks = True
    engine.run()
    assert engine.listed().pins[0].num_blocks == 2
    assert engine.ids(reader) == expected_output(prompt_of(60), 1, 3)
    assert engine.ids(other) == expected_output(prompt_of(9, 5), 2, 3)


def test_a_drain_that_ends_all_tells_who_waits_and_keeps_what_is_pinned() -> None:
    engine = Pinning()
    engine.pin(prompt_of(40))
    outcomes = engine.order(prompt_of(40, 9))
    engine.orders.cancel()
    assert error_of(outcomes).kind.name == "draining"
    assert len(engine.listed().pins) == 1


def test_pins_of_the_start_are_computed_while_nobody_else_is_there() -> None:
    engine = Pinning()
    told = engine.orders.pin_now(generate(prompt_of(40)), None, lambda: engine.now)
    assert told.pin.num_blocks == 2
    with pytest.raises(OctavoError, match="only full blocks"):
        engine.orders.pin_now(generate([1]), None, lambda: engine.now)


class Model:
    """What pins are to hold, by the tokens alone."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.kept: dict[str, tuple[str, tuple[int, ...]]] = {}

    def blocks(self, *more: tuple[str, tuple[int, ...]]) -> set[tuple[str, tuple[int, ...]]]:
        """Returns the distinct (salt, tokens up to a block's end) of all that is kept."""
        prefixes = (*self.kept.values(), *more)
        return {
            (salt, ids[:end]) for salt, ids in prefixes for end in range(BLOCK, len(ids) + 1, BLOCK)
        }


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), st.sampled_from([16, 31, 48, 80]), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("unpin"), st.integers(0, 9), st.just(0), st.just(0)),
        st.tuples(
            st.just("run"), st.integers(1, 200), st.integers(0, 2), st.sampled_from(["", "b", "p"])
        ),
        st.tuples(st.just("reset"), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(ACTIONS)
def test_whatever_happens_pins_keep_their_blocks_and_no_request_notices(
    actions: list[tuple[object, ...]],
) -> None:
    engine, model = Pinning(budget=8), Model(8)
    ids = itertools.count()
    for kind, one, two, fate in actions:
        if kind == "pin":
            _pin(engine, model, prompt_of(64)[: 16 * int(str(two))] + prompt_of(int(str(one)), 3))
        elif kind == "unpin" and model.kept:
            pin_id = sorted(model.kept)[int(str(one)) % len(model.kept)]
            del model.kept[pin_id]
            assert engine.unpin(pin_id) is None
        elif kind == "reset":
            assert engine.orders.pins.reset()
            model.kept.clear()
        elif kind == "run":
            _run(engine, f"{next(ids)}", int(str(one)), int(str(two)), str(fate))
            if fate == "p":  # what a broken request has read is worthless, whoever keeps it
                whole = {p.pin_id for p in engine.listed().pins if p.num_blocks == _size(model, p)}
                model.kept = {k: v for k, v in model.kept.items() if k in whole}
                for pin in engine.listed().pins:
                    if pin.pin_id not in whole:
                        engine.unpin(pin.pin_id)
        _check(engine, model)
    for pin in engine.listed().pins:
        engine.unpin(pin.pin_id)
    engine.assert_idle()


def _size(model: Model, pin: engine_pb2.PinnedPrefix) -> int:
    return len(model.kept[pin.pin_id][1]) // BLOCK


def _pin(engine: Pinning, model: Model, prompt: list[int]) -> None:
    kept = tuple(prompt[: len(prompt) // BLOCK * BLOCK])
    outcomes = engine.order(prompt)
    engine.run()
    (outcome,) = outcomes
    if len(model.blocks(("", kept))) > model.budget:
        assert isinstance(outcome, OctavoError)
        return
    assert isinstance(outcome, engine_pb2.PinPrefixResponse), outcome
    model.kept[outcome.pin.pin_id] = ("", kept)
    assert outcome.pinned_blocks == len(model.blocks())


def _run(engine: Pinning, name: str, length: int, shared: int, fate: str) -> None:
    prompt = prompt_of(64)[: 16 * shared] + prompt_of(length, 3 + len(name))
    tickets: list[Ticket] = [
        engine.submit(generate(prompt, seed=i, max_tokens=4, request_id=f"{name}-{i}"))
        for i in range(2)
    ]
    engine.breaks, engine.poisons = fate == "b", fate == "p"
    engine.run()
    engine.poisons = False
    for seed, ticket in enumerate(tickets):
        if fate != "p":
            assert engine.ids(ticket) == expected_output(prompt, seed, 4)


def _check(engine: Pinning, model: Model) -> None:
    listed = engine.listed()
    assert {p.pin_id for p in listed.pins} == model.kept.keys()
    assert listed.pinned_blocks == len(engine.cache.held) == len(model.blocks())
    for _, kept in model.kept.values():
        request = generate([*kept, 1], max_tokens=1)
        ticket = engine.core.submit(request, None)
        assert len(engine.cache.match(ticket.choices[0].request)) == len(kept) // BLOCK
        engine.core.abort(ticket)
