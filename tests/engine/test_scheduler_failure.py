"""What comes of the requests of a step that raises, and of rows without finite logits."""

from __future__ import annotations

import pytest
from tests.engine.scheduling import Driver, expected, make_request, prompt_of, rows_of
from tests.fakes import BLOCK

from octavo.engine.batch import StepInput
from octavo.engine.request import FinishReason, Request
from octavo.v1.errors import REQUEST_FAILED, OctavoError


class Poison:
    """Fails each step with a row of one of the requests that reaches a position."""

    def __init__(self, *ids: int, position: int = 0) -> None:
        self.driver: Driver | None = None
        self.ids = ids
        self._position = position

    def __call__(self, step: StepInput) -> None:
        ends = [r.start + len(r.token_ids) for r in step.rows if r.request.id in self.ids]
        if max(ends, default=-1) >= self._position:
            spoil(self.driver, step)
            raise OctavoError(REQUEST_FAILED)


def spoil(driver: Driver | None, step: StepInput) -> None:
    """Leaves rubbish in all that the step has written."""
    assert driver is not None
    for row in step.rows:
        for position in range(row.start, row.start + len(row.token_ids)):
            driver.runner.pool[row.block_table[position // BLOCK]][position % BLOCK] = 999


def poisoned_driver(
    poison: Poison,
    *,
    num_blocks: int = 64,
    max_num_seqs: int = 8,
    max_batched_tokens: int = 64,
    long_prefill_tokens: int = 48,
    prefix_caching: bool = True,
) -> Driver:
    poison.driver = Driver(
        before=poison,
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        long_prefill_tokens=long_prefill_tokens,
        prefix_caching=prefix_caching,
    )
    return poison.driver


def test_failed_step_publishes_nothing_and_its_requests_run_alone() -> None:
    """Reliability 1.6, E2: smallest first; nobody new comes in meanwhile, who ran goes on."""
    poison = Poison(3)
    driver = poisoned_driver(poison, max_batched_tokens=128)
    requests = [make_request(i, prompt_of(50 - 10 * i, i)) for i in (1, 2, 3)]
    driver.add(*requests)
    driver.step()
    assert driver.known == {}
    assert driver.scheduler.num_running == 0
    late = make_request(4, prompt_of(4, 4))
    driver.add(late)
    assert rows_of(driver.step()) == [(3, 0, 20)]
    assert driver.errors == {3: "request_failed"}
    assert rows_of(driver.step()) == [(2, 0, 30)]
    assert rows_of(driver.step()) == [(2, 30, 1)]
    assert rows_of(driver.step()) == [(1, 0, 40)]
    assert rows_of(driver.step()) == [(1, 40, 1), (2, 31, 1), (4, 0, 4)]
    driver.finish_all()
    assert [r.output_ids for r in (*requests[:2], late)] == [
        expected(r) for r in (*requests[:2], late)
    ]
    driver.assert_idle()


def test_request_that_fails_alone_is_returned_at_once() -> None:
    poison = Poison(1)
    driver = poisoned_driver(poison)
    driver.add(make_request(1, prompt_of(40), n=2))
    step = driver.plan()
    assert step is not None
    with pytest.raises(OctavoError):
        driver.runner.run(step)
    culprits = driver.scheduler.fail(step)
    assert [r.id for r in culprits] == [1]
    driver.scheduler.check_integrity()
    driver.scheduler.finish(culprits[0])
    driver.assert_idle()


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_suspect_runs_alone_until_it_has_got_past_the_failure(prefix_caching: bool) -> None:
    """A request that breaks at its second chunk must not break others with it for ever."""
    poison = Poison(1, position=60)
    driver = poisoned_driver(
        poison, max_batched_tokens=32, long_prefill_tokens=16, prefix_caching=prefix_caching
    )
    bad, good = make_request(1, prompt_of(80)), make_request(2, prompt_of(9, 2), max_tokens=30)
    driver.add(bad, good)
    driver.finish_all(limit=60)
    assert driver.errors == {1: "request_failed"}
    assert good.output_ids == expected(good)
    assert good.num_preemptions == 1
    driver.assert_idle()


def test_suspect_takes_slots_and_blocks_from_those_that_run() -> None:
    """Otherwise a request that was cleared could keep the remaining suspects waiting for ever."""
    poison = Poison(-1)
    driver = poisoned_driver(poison, num_blocks=6, max_num_seqs=2)
    requests = [make_request(i, prompt_of(45, i), max_tokens=30) for i in (1, 2)]
    driver.add(*requests)
    poison.ids = (1, 2)
    while driver.scheduler.num_preemptions == 0:
        driver.step()
    poison.ids = (-1,)
    driver.finish_all()
    assert driver.errors == {}
    assert [r.output_ids for r in requests] == [expected(r) for r in requests]
    driver.assert_idle()


def test_suspect_can_be_aborted() -> None:
    poison = Poison(1)
    driver = poisoned_driver(poison)
    requests = [make_request(i, prompt_of(20, i)) for i in (1, 2)]
    driver.add(*requests)
    driver.step()
    driver.end(requests[0], FinishReason.ABORT)
    driver.finish_all()
    assert requests[1].output_ids == expected(requests[1])
    driver.assert_idle()


def test_poisoned_row_publishes_nothing_and_spares_its_neighbours() -> None:
    bad = {1}

    def is_bad(request: Request) -> bool:
        return request.id in bad

    driver = Driver(poison=is_bad, max_batched_tokens=128)
    requests = [make_request(i, prompt_of(40, i)) for i in (1, 2)]
    driver.add(*requests)
    driver.step()
    assert driver.errors == {1: "poisoned"}
    assert set(driver.known) == set(requests[1].block_hashes)
    driver.finish_all()
    assert requests[1].output_ids == expected(requests[1])
    driver.assert_idle()


def test_poisoned_group_ends_with_all_its_choices() -> None:
    driver = Driver(poison=lambda _: True)
    driver.add(make_request(1, prompt_of(40), n=3))
    driver.step()
    assert sorted(driver.errors) == [1, 2, 3]
    driver.assert_idle()
