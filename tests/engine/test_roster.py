from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.scheduling import make_request, make_search, prompt_of
from tests.fakes import BLOCK

from octavo.engine.beam_search import Turn
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
    roster.finish(list(roster.waiting)[1])
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
    del roster.requests[roster.waiting.head.id]


def run_without_status(roster: Roster) -> None:
    roster.running[0].status = Status.WAITING


def wait_with_progress(roster: Roster) -> None:
    roster.waiting.head.num_computed = 3


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


def test_choices_of_a_protected_group_are_protected(cache: PrefixCache) -> None:
    roster = Roster(cache, max_preemptions=1)
    group = make_request(1, prompt_of(20), n=3)
    choices = [group, *group.siblings]
    group.num_preemptions = 1
    roster.add(group, 0.0)
    cache.admit(group, [])
    roster.start(group, 0)
    group.num_computed = 20
    roster.fork(group)
    roster.check_integrity()
    assert all(choice in roster.reservations for choice in choices)
    roster.preempt(group, 1.0)
    roster.finish(choices[1])
    roster.check_integrity()
    assert [choice in roster.reservations for choice in choices] == [False, False, True]


def test_beams_take_the_blocks_of_their_carrier_and_go_with_it(cache: PrefixCache) -> None:
    roster = Roster(cache)
    carrier, beams = make_search(20, prompt_of(20))
    roster.add(carrier, 0.0)
    cache.admit(carrier, [])
    roster.start(carrier, 0)
    assert (roster.slots_used, roster.num_rows) == (3, 1)
    carrier.num_computed = 20
    roster.advance_beams(carrier, Turn(parents=(0, 0), tokens=(7, 8)))
    roster.check_integrity()
    assert (roster.slots_used, roster.num_rows, cache.num_tables) == (3, 2, 2)
    assert [beam.output_ids for beam in beams.live] == [[7], [8]]
    assert cache.num_allocatable - cache.num_available == 2
    roster.preempt(carrier, 1.0)
    roster.check_integrity()
    assert (carrier.num_preemptions, roster.num_preemptions) == (1, 1)
    assert roster.waiting_tokens == 20 + 2
    assert cache.num_available == cache.num_allocatable
    assert carrier.lost_beams
    roster.finish(carrier)
    roster.check_integrity()
    assert roster.requests == {}


def test_24_next_beams_are_their_parents_or_forks_of_them(cache: PrefixCache) -> None:
    roster = Roster(cache)
    carrier, beams = make_search(20, prompt_of(20))
    roster.add(carrier, 0.0)
    cache.admit(carrier, [])
    roster.start(carrier, 0)
    carrier.num_computed = 20
    roster.advance_beams(carrier, Turn(parents=(0, 0, 0), tokens=(7, 8, 9)))
    first, second, third = beams.live
    for beam in beams.live:
        cache.extend(beam, 21)
        beam.num_computed = 21
    cache.commit()
    roster.advance_beams(carrier, Turn(parents=(2, 0, 2), tokens=(1, 2, 3)))
    roster.check_integrity()
    assert beams.live == [third, first, second]
    assert [beam.output_ids for beam in beams.live] == [[9, 1], [7, 2], [9, 3]]
    assert list(cache.table(second)) == list(cache.table(third))
    assert cache.num_allocatable - cache.num_available == 3
    roster.finish(carrier)
    assert cache.num_available == cache.num_allocatable


def test_a_request_without_beams_has_none_to_advance(roster: Roster) -> None:
    with pytest.raises(IntegrityError, match="no beams"):
        roster.advance_beams(roster.running[0], Turn())
