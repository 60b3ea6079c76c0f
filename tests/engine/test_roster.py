from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.scheduling import make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.block_manager import BlockManager, IntegrityError
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request, Status
from octavo.engine.roster import Roster
from octavo.v1.errors import NEVER_FITS, OctavoError


@pytest.fixture
def cache() -> PrefixCache:
    return PrefixCache(BlockManager(17, BLOCK))


@pytest.fixture
def roster(cache: PrefixCache) -> Roster:
    """One request that runs with two unforked siblings, and one that waits."""
    roster = Roster(cache)
    group, waiting = make_request(1, prompt_of(20), n=3), make_request(10, prompt_of(7))
    roster.add(group, 0.0)
    roster.add(waiting, 1.0)
    cache.admit(group, [])
    roster.start(group, 0)
    roster.check_integrity()
    return roster


def test_unforked_siblings_take_slots_but_are_in_no_queue(roster: Roster) -> None:
    assert roster.slots_used == 3
    assert [r.id for r in roster.running] == [1]
    assert [r.id for r in roster.requests.values() if roster.is_unforked(r)] == [2, 3]


def test_fork_makes_siblings_run_from_where_the_first_is(roster: Roster) -> None:
    group = roster.running[0]
    group.num_computed, group.num_cached = 20, 16
    siblings = group.siblings
    roster.fork(group)
    roster.check_integrity()
    assert [r.id for r in roster.running] == [1, 2, 3]
    assert roster.slots_used == 3
    assert all(s.num_computed == 20 and s.num_cached == 16 for s in siblings)
    assert group.siblings == ()


def test_preempted_request_waits_without_blocks(roster: Roster, cache: PrefixCache) -> None:
    request = roster.running[0]
    roster.preempt(request, 2.0)
    roster.check_integrity()
    assert (request.status, request.num_preemptions) == (Status.PREEMPTED, 1)
    assert [r.id for r in roster.waiting] == [1, 10]
    assert roster.waiting_tokens == 27
    assert cache.num_available == cache.num_allocatable


def test_longest_wait_counts_from_the_last_time_in_the_queue(roster: Roster) -> None:
    roster.preempt(roster.running[0], 2.0)
    assert roster.longest_wait(5.0) == 4.0
    roster.finish(roster.waiting[1])
    assert roster.longest_wait(5.0) == 3.0


def test_rejected_request_holds_nothing_until_it_is_finished(
    roster: Roster, cache: PrefixCache
) -> None:
    request = roster.running[0]
    roster.reject(request, OctavoError(NEVER_FITS, needed=2, total=1))
    roster.check_integrity()
    assert len(roster.running) == cache.num_tables == 0
    assert list(roster.rejected) == [1]
    roster.finish(request)
    roster.check_integrity()
    assert list(roster.requests) == [10]
    assert not roster.rejected


def lose(roster: Roster) -> None:
    del roster.requests[roster.waiting[0].id]


def run_without_status(roster: Roster) -> None:
    roster.running[0].status = Status.WAITING


def wait_with_progress(roster: Roster) -> None:
    roster.waiting[0].num_computed = 3


def compute_too_much(roster: Roster) -> None:
    roster.running[0].num_computed = 21


def compute_beyond_the_blocks(roster: Roster) -> None:
    request: Request = roster.running[0]
    request.output_ids = [1] * 20
    request.num_computed = 40


def miscount(roster: Roster) -> None:
    roster.waiting_tokens += 1


def keep_a_suspect(roster: Roster) -> None:
    roster.suspects[make_request(99, [1]).id] = 1


@pytest.mark.parametrize(
    "damage",
    [
        lose,
        run_without_status,
        wait_with_progress,
        compute_too_much,
        compute_beyond_the_blocks,
        miscount,
        keep_a_suspect,
    ],
)
def test_check_integrity_notices(roster: Roster, damage: Callable[[Roster], None]) -> None:
    """Semantics 17."""
    damage(roster)
    with pytest.raises(IntegrityError):
        roster.check_integrity()
