"""Which blocks are pinned, within which budget, until when."""

from __future__ import annotations

import pytest
from tests.engine.scheduling import Driver, make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.block_manager import IntegrityError
from octavo.engine.pins import Pin, Pins, budget_blocks
from octavo.engine.request import Request
from octavo.v1.block_hash import BlockHash
from octavo.v1.errors import OctavoError


class Pinning(Driver):
    """A driver with pins, which requests without output compute."""

    def __init__(self, *, budget: int = 8, num_blocks: int = 16) -> None:
        self.poisoned: Request | None = None
        super().__init__(num_blocks=num_blocks, poison=lambda r: r is self.poisoned)
        self.pins = Pins(self.cache, budget)
        self._ids = iter(range(1, 1000))

    def compute(self, prompt: list[int]) -> list[BlockHash]:
        """Computes a prompt; returns the hashes of its full blocks."""
        request = make_request(next(self._ids), prompt, score_only=True)
        self.add(request)
        self.finish_all()
        return request.block_hashes

    def pin(self, prompt: list[int], ttl_s: float | None = None) -> Pin:
        """Computes and pins a prefix."""
        pin = self.pins.promise(self.compute(prompt), ttl_s, self.now)
        assert self.pins.hold(pin, self.now)
        self.check()
        return pin

    def hit(self, prompt: list[int]) -> int:
        """Blocks that a longer prompt would hit."""
        return len(self.cache.match(make_request(next(self._ids), [*prompt, 1])))

    def flood(self) -> None:
        """Computes as many other blocks as the pool has."""
        for seed in range(100, 100 + self.cache.num_allocatable):
            self.compute(prompt_of(3 * BLOCK, seed))
        self.check()

    def check(self) -> None:
        """All invariants."""
        self.scheduler.check_integrity()
        self.pins.check_integrity()


def test_pinned_blocks_are_never_evicted_and_others_are() -> None:
    driver = Pinning()
    driver.pin(prompt_of(40, 1))
    driver.compute(prompt_of(40, 2))
    driver.flood()
    assert (driver.hit(prompt_of(32, 1)), driver.hit(prompt_of(32, 2))) == (2, 0)


def test_an_unpinned_prefix_stays_hittable_until_its_blocks_are_needed() -> None:
    driver = Pinning()
    driver.pins.drop(driver.pin(prompt_of(48, 1)))
    driver.check()
    assert driver.hit(prompt_of(48, 1)) == 3
    driver.flood()
    assert driver.hit(prompt_of(48, 1)) == 0
    driver.assert_idle()


def test_pins_of_a_common_prefix_share_its_blocks_and_the_budget() -> None:
    driver = Pinning(budget=4)
    common = prompt_of(32, 1)
    first = driver.pin(common + prompt_of(16, 2))
    second = driver.pin(common + prompt_of(16, 3))
    assert first.blocks[:2] == second.blocks[:2]
    assert driver.pins.num_blocks == len(driver.cache.held) == 4
    driver.pins.drop(first)
    driver.check()
    assert driver.pins.num_blocks == 3
    driver.flood()
    assert driver.hit(common + prompt_of(16, 3)) == 3


def test_what_does_not_fit_the_budget_is_refused_with_numbers() -> None:
    driver = Pinning(budget=4)
    driver.pin(prompt_of(48, 1))
    hashes = driver.compute(prompt_of(32, 2))
    with pytest.raises(OctavoError, match="needs 2 more KV blocks, but 3 of the 4") as caught:
        driver.pins.promise(hashes, None, driver.now)
    assert caught.value.kind.name == "pins_full"
    assert len(list(driver.pins)) == 1
    driver.check()
    driver.pins.promise(hashes[:1], None, driver.now)


def test_a_promise_takes_its_part_of_the_budget_at_once() -> None:
    driver = Pinning(budget=4)
    driver.pins.promise(driver.compute(prompt_of(48, 1)), None, driver.now)
    assert (driver.pins.num_blocks, len(driver.cache.held)) == (3, 0)
    with pytest.raises(OctavoError):
        driver.pins.promise(driver.compute(prompt_of(48, 2)), None, driver.now)


def test_a_pin_expires_when_its_time_is_over_and_not_before() -> None:
    driver = Pinning()
    driver.pin(prompt_of(32, 2))
    driver.pin(prompt_of(32, 1), ttl_s=10.0)
    driver.pins.tend(driver.now + 9.9)
    assert len(list(driver.pins)) == 2
    driver.pins.tend(driver.now + 10.0)
    assert len(list(driver.pins)) == 1
    driver.check()


def test_the_same_prefix_gets_the_same_pin_and_its_time_anew() -> None:
    driver = Pinning()
    pin = driver.pin(prompt_of(32, 1), ttl_s=10.0)
    again = driver.pins.promise(pin.hashes, 10.0, driver.now + 8.0)
    assert again is pin
    driver.pins.tend(driver.now + 12.0)
    assert driver.pins.find(pin.id) is pin
    driver.pins.promise(pin.hashes, None, driver.now)
    driver.pins.tend(driver.now + 1e9)
    assert driver.pins.find(pin.id) is pin


def test_a_pin_whose_content_is_worthless_is_cut_and_can_be_made_whole() -> None:
    driver = Pinning()
    prompt = prompt_of(48, 1)
    pin = driver.pin(prompt)
    driver.poisoned = make_request(500, prompt[:40])
    driver.add(driver.poisoned)
    driver.finish_all()
    driver.pins.tend(driver.now)
    assert (len(pin.blocks), pin.is_whole) == (0, False)
    driver.check()
    driver.compute(prompt)
    assert driver.pins.promise(pin.hashes, None, driver.now) is pin
    assert driver.pins.hold(pin, driver.now)
    driver.check()


def test_hold_says_when_a_block_is_not_there() -> None:
    driver = Pinning()
    hashes = driver.compute(prompt_of(48, 1))
    driver.flood()
    pin = driver.pins.promise(hashes, None, driver.now)
    assert not driver.pins.hold(pin, driver.now)
    driver.check()


def test_20_reset_ends_pins_but_is_refused_while_a_request_has_blocks() -> None:
    driver = Pinning()
    driver.pin(prompt_of(32, 1))
    promised = driver.pins.promise(driver.compute(prompt_of(32, 2)), None, driver.now)
    reader = make_request(500, [*prompt_of(32, 1), 7], max_tokens=3)
    driver.add(reader)
    driver.step()
    assert not driver.pins.reset()
    driver.check()
    driver.finish_all()
    assert driver.pins.reset()
    assert list(driver.pins) == [promised]
    assert driver.hit(prompt_of(32, 1)) == 0
    driver.check()
    driver.pins.drop(promised)
    driver.assert_idle()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(OctavoError, match="there is no pin 'abc'"):
        Pinning().pins.find("abc")


def test_check_integrity_notices_a_reference_that_no_pin_has() -> None:
    driver = Pinning()
    pin = driver.pin(prompt_of(32, 1))
    pin.blocks.pop()
    with pytest.raises(IntegrityError, match="pins hold other blocks"):
        driver.pins.check_integrity()


@pytest.mark.parametrize(
    ("share", "blocks", "request_blocks", "budget"),
    [(0.25, 100, 10, 25), (0.9, 100, 30, 70), (0.5, 32, 32, 0), (0.0, 100, 10, 0)],
)
def test_the_longest_request_fits_beside_all_pins(
    share: float, blocks: int, request_blocks: int, budget: int
) -> None:
    got = budget_blocks(share, num_blocks=blocks, request_blocks=request_blocks)
    assert got == budget
    assert got + request_blocks <= blocks
