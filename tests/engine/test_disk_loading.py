"""Requests whose blocks are on disk: they wait without being in anybody's way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.engine.fake_disk import FakeDisk
from tests.engine.scheduling import Driver, expected, make_request, prompt_of, rows_of
from tests.fakes import BLOCK

from octavo.engine.disk_tier import LOAD_S
from octavo.engine.request import FinishReason, Request, RequestId

PROMPT = prompt_of(64, 1)


def serve(driver: Driver, *requests: Request) -> None:
    driver.add(*requests)
    driver.finish_all()
    for request in requests:
        assert request.output_ids == expected(request)


def new_driver(disk: FakeDisk, max_num_seqs: int = 8) -> Driver:
    return Driver(num_blocks=6, host_slots=6, disk=disk, disk_pace=100, max_num_seqs=max_num_seqs)


def filled(disk: FakeDisk | None = None, max_num_seqs: int = 8) -> Driver:
    """A driver with the blocks of PROMPT on disk and nowhere else."""
    driver = new_driver(disk or FakeDisk(), max_num_seqs)
    serve(driver, make_request(1, PROMPT))
    for seed in (2, 3, 4):
        serve(driver, make_request(seed, prompt_of(80, seed)))
    driver.disk_pace = 0
    driver.runner.steps.clear()
    driver.outcomes.clear()
    return driver


def finish_reading(driver: Driver) -> None:
    driver.disk_pace = 100
    driver.finish_all()


def test_blocks_that_fell_out_of_the_host_come_back_from_disk() -> None:
    driver = filled()
    again = make_request(9, PROMPT)
    driver.add(again)
    assert driver.step() is None
    finish_reading(driver)
    assert (again.num_cached, again.output_ids) == (48, expected(again))
    driver.assert_idle()


def test_a_loading_request_blocks_nobody_and_holds_no_blocks() -> None:
    driver = filled()
    driver.add(make_request(9, PROMPT), make_request(10, prompt_of(20, 10)))
    assert rows_of(driver.step()) == [(10, 0, 20)]
    assert driver.cache.num_available == driver.cache.num_allocatable - 2
    assert rows_of(driver.step()) == [(10, 20, 1)]
    finish_reading(driver)
    driver.assert_idle()


def test_a_more_important_request_that_loads_preempts_nobody_yet() -> None:
    driver = filled(max_num_seqs=1)
    driver.add(make_request(8, prompt_of(20, 8), max_tokens=9))
    driver.step()
    driver.add(make_request(9, PROMPT, priority=-1))
    assert rows_of(driver.step()) == [(8, 20, 1)]
    driver.disk_pace = 100
    assert rows_of(driver.step()) == [(9, 48, 16)]
    finish_reading(driver)


@pytest.mark.parametrize("end", ["abort", "deadline"])
def test_a_request_can_end_while_it_loads(end: str) -> None:
    driver = filled()
    late = driver.now + 1.5 if end == "deadline" else None
    request = make_request(9, PROMPT, deadline=late)
    driver.add(request)
    driver.step()
    if end == "abort":
        driver.end(request, FinishReason.ABORT)
    driver.step()
    assert request.is_finished
    assert driver.scheduler.requests() == []
    driver.disk_pace = 100
    driver.step()
    driver.assert_idle()


def test_a_disk_that_hangs_makes_the_request_compute() -> None:
    driver = filled()
    again = make_request(9, PROMPT)
    driver.add(again)
    steps = 0
    while driver.step() is None:
        steps += 1
        assert steps <= LOAD_S
    driver.finish_all()
    assert (again.num_cached, again.output_ids) == (0, expected(again))


def test_blocks_that_cannot_be_read_are_computed_and_no_more_told_as_held() -> None:
    disk = FakeDisk()
    driver = filled(disk)
    assert set(first_hashes()) <= driver.known.keys()
    disk.files.clear()
    again = make_request(9, PROMPT)
    driver.add(again)
    driver.disk_pace = 100
    driver.step()
    driver.step()
    assert again.num_cached == 0
    driver.finish_all()
    assert again.output_ids == expected(again)


def first_hashes() -> list[bytes]:
    request = make_request(1, PROMPT)
    Driver(num_blocks=6).cache.extend_hashes(request)
    return list(request.block_hashes[:3])


def test_a_restart_finds_the_blocks_again_and_tells_them() -> None:
    disk = FakeDisk()
    filled(disk)
    driver = new_driver(disk)
    driver.mirror.replay()
    assert set(first_hashes()) <= driver.known.keys()
    again = make_request(9, PROMPT)
    serve(driver, again)
    assert again.num_cached == 48


def test_a_full_disk_fails_no_request() -> None:
    """Each write fails; requests end as without a disk."""
    driver = filled(FakeDisk(fails=lambda _: True))
    serve(driver, make_request(9, PROMPT))
    assert driver.cache.host.counts().on_disk == 0 < driver.cache.host.counts().disk_failed
    driver.assert_idle()


def test_poisoned_content_is_removed_from_disk() -> None:
    bad = RequestId(9)
    disk = FakeDisk()
    driver = Driver(
        num_blocks=6, host_slots=6, disk=disk, disk_pace=100, poison=lambda r: r.id == bad
    )
    serve(driver, make_request(1, PROMPT))
    for seed in (2, 3, 4):
        serve(driver, make_request(seed, prompt_of(80, seed)))
    driver.add(make_request(bad, PROMPT))
    driver.finish_all()
    disk.work()
    assert not set(first_hashes()) & disk.files.keys()
    assert not set(first_hashes()) & driver.known.keys()


@pytest.mark.parametrize("pace", [0, 1, 100])
def test_many_requests_with_one_prefix_on_disk_all_finish(pace: int) -> None:
    """Case 27 over three tiers."""
    driver = filled()
    driver.disk_pace = pace
    tail: Callable[[int], list[int]] = partial(prompt_of, 12)
    requests = [make_request(i, PROMPT + tail(i), max_tokens=9) for i in range(20, 30)]
    serve(driver, *requests)
    driver.assert_idle()


def test_who_waits_far_behind_asks_when_its_turn_comes() -> None:
    """Read too early it would be evicted by those before, and would not be asked for again."""
    disk = FakeDisk()
    driver = Driver(num_blocks=12, max_num_seqs=1, host_slots=8, disk=disk, disk_pace=5)
    prompt = prompt_of(4 * BLOCK + 1, 1)
    driver.add(make_request(1, prompt, max_tokens=1))
    driver.finish_all()
    disk.work()
    for i in range(6):
        driver.add(make_request(300 + i, prompt_of(80, 900 + i), max_tokens=1))
        driver.finish_all()
        disk.work()
    driver.cache.host.poll()
    for i in range(8):
        driver.add(make_request(1000 + i, prompt_of(80, 99 + i), max_tokens=3))
    late = make_request(2000, prompt, max_tokens=1)
    driver.add(late)
    driver.finish_all()
    assert late.num_cached == 4 * BLOCK
