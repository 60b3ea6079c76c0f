from __future__ import annotations

import pytest
from tests.engine.scheduling import ROOT, make_request, prompt_of
from tests.fakes import BLOCK

from octavo.engine.block_manager import BlockId, BlockManager, IntegrityError
from octavo.engine.prefix_cache import PrefixCache
from octavo.engine.request import Request, Status
from octavo.v1.block_hash import hash_root


class Cache(PrefixCache):
    """A cache with the steps of a request in one call."""

    def __init__(self, num_blocks: int = 16, *, enabled: bool = True) -> None:
        self.blocks = BlockManager(num_blocks + 1, BLOCK)
        super().__init__(self.blocks, enabled=enabled)

    def allocate(self, request: Request) -> int:
        """Admits a request and plans all of its tokens; the step is in flight."""
        request.num_computed = self.admit(request, self.match(request))
        self.extend(request, request.num_tokens)
        self.check_integrity()
        return request.num_computed

    def compute(self, request: Request) -> int:
        """Does the same and lets the step succeed; returns the cached tokens."""
        cached = self.allocate(request)
        self.commit()
        request.num_computed = request.num_tokens
        self.check_integrity()
        return cached


def hit_tokens(cache: Cache, request: Request) -> int:
    return len(cache.match(request)) * BLOCK


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 47, 48, 49])
def test_07_hit_leaves_the_last_token_and_is_rounded_down_to_blocks(length: int) -> None:
    """Semantics 7: a prompt of exactly kB tokens computes a whole block again."""
    cache, prompt = Cache(), prompt_of(length)
    first = make_request(1, prompt)
    assert cache.compute(first) == 0
    assert cache.compute(make_request(2, prompt)) == (length - 1) // BLOCK * BLOCK


def test_05_lookup_stops_at_the_first_miss() -> None:
    """Semantics 5: a later block may still be there, but means nothing without the ones before."""
    cache, prompt = Cache(), prompt_of(50)
    first = make_request(1, prompt)
    cache.compute(first)
    middle = cache.table(first)[1]
    cache._index.remove(middle)
    cache.blocks.forget(middle)
    assert hit_tokens(cache, make_request(2, prompt)) == BLOCK


def test_03_another_salt_or_model_never_hits() -> None:
    """Semantics 3."""
    cache, prompt = Cache(), prompt_of(40)
    cache.compute(make_request(1, prompt))
    assert hit_tokens(cache, make_request(2, prompt)) == 32
    assert hit_tokens(cache, make_request(2, prompt, root=hash_root(b"model", "salt"))) == 0
    assert hit_tokens(cache, make_request(2, prompt, root=hash_root(b"other"))) == 0


def test_06_blocks_of_generated_tokens_are_hit_too() -> None:
    """Semantics 6."""
    cache, prompt = Cache(), prompt_of(20)
    first = make_request(1, prompt)
    cache.compute(first)
    first.output_ids = prompt_of(30, seed=1)
    cache.extend(first, first.num_tokens)
    cache.commit()
    follow_up = make_request(2, [*first.prompt_ids, *first.output_ids, 7])
    assert hit_tokens(cache, follow_up) == 48


def test_08_requests_for_prompt_logprobs_write_the_cache_but_do_not_read_it() -> None:
    """Semantics 8."""
    cache, prompt = Cache(), prompt_of(40)
    assert cache.compute(make_request(1, prompt, prompt_logprobs=0)) == 0
    assert cache.compute(make_request(2, prompt, prompt_logprobs=0)) == 0
    assert (cache.queries, cache.hits) == (0, 0)
    assert hit_tokens(cache, make_request(3, prompt)) == 32


def test_09_only_admissions_count_and_resumed_ones_apart() -> None:
    """Semantics 9."""
    cache, prompt = Cache(), prompt_of(40)
    first, second = make_request(1, prompt), make_request(2, prompt)
    cache.match(second)
    assert (cache.queries, cache.hits) == (0, 0)
    cache.compute(first)
    cache.compute(second)
    assert (cache.queries, cache.hits, cache.preempted_hits) == (80, 32, 0)
    cache.release(second)
    second.status = Status.PREEMPTED
    cache.compute(second)
    assert (cache.queries, cache.hits, cache.preempted_hits) == (80, 32, 32)


def test_10_second_of_two_equal_prompts_hits_blocks_of_the_same_step() -> None:
    """Semantics 10."""
    cache, prompt = Cache(), prompt_of(40)
    first, second = make_request(1, prompt), make_request(2, prompt)
    assert cache.allocate(first) == 0
    assert cache.allocate(second) == 32
    assert cache.table(first)[:2] == cache.table(second)[:2]
    assert cache.drain_events() == ([], [], False)
    cache.commit()
    assert len(cache.drain_events()[0]) == 2


def test_failed_step_leaves_no_hash_and_no_event() -> None:
    """Reliability E2."""
    cache, prompt = Cache(), prompt_of(40)
    first, second = make_request(1, prompt), make_request(2, prompt)
    cache.allocate(first)
    cache.allocate(second)
    cache.revoke()
    cache.release(first)
    cache.release(second)
    cache.check_integrity()
    assert cache.match(make_request(3, prompt)) == []
    assert cache.drain_events() == ([], [], False)
    assert (cache.num_free, cache.num_cached_free) == (16, 0)


def test_poisoned_request_takes_all_that_it_read_or_wrote_out_of_the_cache() -> None:
    cache, prompt = Cache(), prompt_of(50)
    cache.compute(make_request(1, prompt[:20]))
    poisoned, innocent = make_request(2, prompt), make_request(3, prompt_of(20, seed=3))
    cache.allocate(poisoned)
    cache.allocate(innocent)
    cache.commit([poisoned])
    cache.check_integrity()
    assert cache.match(make_request(4, prompt)) == []
    assert [h for h, _ in cache.snapshot()] == innocent.block_hashes


def test_12_admission_consumes_free_blocks_that_are_hit() -> None:
    """Semantics 12."""
    cache, prompt = Cache(num_blocks=4), prompt_of(40)
    first = make_request(1, prompt)
    cache.compute(first)
    second = make_request(2, [*prompt[:32], *prompt_of(20, seed=1)])
    # Two blocks are hit, two are new, one is free.
    assert cache.shortfall(second, cache.match(second)) == 1
    cache.release(first)
    # The hits are free now, and count like the new ones.
    assert cache.shortfall(second, cache.match(second)) == 0
    assert cache.compute(second) == 32
    assert cache.num_available == 0


def test_13_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    """Semantics 13."""
    cache, prompt = Cache(num_blocks=4), prompt_of(64)
    first = make_request(1, prompt)
    cache.compute(first)
    cache.release(first)
    other = make_request(2, prompt_of(20, seed=1))
    cache.compute(other)
    assert hit_tokens(cache, make_request(3, prompt)) == 32


def test_14_least_recently_used_prefix_is_evicted_first() -> None:
    """Semantics 14."""
    cache = Cache(num_blocks=4)
    prompts = [prompt_of(17, seed=s) for s in range(2)]
    for i in (0, 1, 0):
        request = make_request(i + 10, prompts[i])
        cache.compute(request)
        cache.release(request)
    # Three unhashed blocks would fit beside the two cached ones only if one of those goes.
    cache.compute(make_request(20, prompt_of(40, seed=9)))
    assert hit_tokens(cache, make_request(3, prompts[0])) == 16
    assert hit_tokens(cache, make_request(3, prompts[1])) == 0


def test_16_eviction_removes_the_entry_of_that_block_only() -> None:
    """Semantics 15, 16: two blocks of one content; the content goes with the second."""
    cache, prompt = Cache(num_blocks=4), prompt_of(16)
    one, two = make_request(1, prompt), make_request(2, prompt)
    cache.compute(one)
    cache.compute(two)
    assert cache.table(one) != cache.table(two)
    assert len(cache.drain_events()[0]) == 1
    cache.release(one)
    cache.release(two)
    filler = make_request(3, prompt_of(48, seed=1))
    cache.compute(filler)
    assert hit_tokens(cache, make_request(4, [*prompt, 1])) == 16
    assert cache.drain_events()[1] == []
    cache.compute(make_request(5, prompt_of(10, seed=2)))
    assert hit_tokens(cache, make_request(4, [*prompt, 1])) == 0
    assert cache.drain_events()[1] == one.block_hashes


def test_15_reused_block_is_not_found_under_its_old_content() -> None:
    """Semantics 15: the stale entry of small engines."""
    cache = Cache(num_blocks=2)
    old, new = prompt_of(17, seed=1), prompt_of(17, seed=2)
    for id_, prompt in enumerate((old, new, old, new)):
        request = make_request(id_, prompt)
        assert cache.compute(request) == 0
        cache.release(request)


@pytest.mark.parametrize(("length", "blocks"), [(15, 1), (16, 2), (17, 2)])
def test_18_token_after_a_full_block_is_the_one_that_allocates(length: int, blocks: int) -> None:
    """Semantics 18."""
    cache = Cache()
    request = make_request(1, prompt_of(length))
    cache.compute(request)
    request.output_ids.append(1)
    assert cache.blocks_needed(request, length + 1) == (1 if length == 16 else 0)
    cache.extend(request, length + 1)
    assert len(cache.table(request)) == blocks


def test_20_reset_is_refused_while_a_block_is_in_use() -> None:
    """Semantics 20."""
    cache, prompt = Cache(), prompt_of(40)
    request = make_request(1, prompt)
    cache.compute(request)
    assert not cache.reset()
    assert hit_tokens(cache, make_request(2, prompt)) == 32
    cache.release(request)
    cache.drain_events()
    assert cache.reset()
    cache.check_integrity()
    assert hit_tokens(cache, make_request(2, prompt)) == 0
    assert cache.drain_events() == ([], [], True)
    assert cache.num_free == 16


def test_21_fork_moves_no_bytes_and_full_blocks_stay_shared() -> None:
    """Semantics 21."""
    cache = Cache()
    parent, child = make_request(1, prompt_of(40)), make_request(2, prompt_of(40))
    cache.compute(parent)
    used = cache.blocks.num_used
    cache.fork(parent, child)
    cache.check_integrity()
    assert cache.table(child) == cache.table(parent)
    assert cache.blocks.num_used == used


@pytest.mark.parametrize("n", [2, 3, 5])
def test_23_n_choices_copy_the_partial_block_n_minus_one_times(n: int) -> None:
    """Semantics 22, 23: the last owner writes in place, full blocks are never copied."""
    cache = Cache()
    choices = [make_request(i, prompt_of(40)) for i in range(n)]
    cache.compute(choices[0])
    shared = cache.table(choices[0])[2]
    for child in choices[1:]:
        cache.fork(choices[0], child)
        child.num_computed = 40
    copies = []
    for i, choice in enumerate(choices):
        choice.output_ids.append(i)
        assert cache.blocks_needed(choice, 41) == (1 if i < n - 1 else 0)
        copies.append(cache.extend(choice, 41))
        cache.check_integrity()
    assert copies[-1] is None
    assert [c[0] for c in copies[:-1] if c] == [shared] * (n - 1)
    assert cache.table(choices[-1])[2] == shared
    assert len({cache.table(c)[2] for c in choices}) == n
    assert len({tuple(cache.table(c)[:2]) for c in choices}) == 1


def test_22_source_of_a_copy_stays_referenced_until_the_step_has_ended() -> None:
    """Semantics 22: even if its last owner goes before the copy has run."""
    cache = Cache(num_blocks=4)
    parent, child = make_request(1, prompt_of(20)), make_request(2, prompt_of(20))
    cache.compute(parent)
    cache.fork(parent, child)
    child.num_computed = 20
    copy = cache.make_writable(parent, 20)
    assert copy is not None
    source, target = copy
    cache.release(child)
    cache.check_integrity()
    assert source not in cache.blocks.free_queue()
    assert cache.table(parent)[1] == target
    cache.commit()
    cache.check_integrity()
    assert source in cache.blocks.free_queue()


def test_22_block_with_a_hash_is_not_written() -> None:
    """Semantics 22."""
    cache = Cache()
    request = make_request(1, prompt_of(32))
    cache.compute(request)
    copy = cache.make_writable(request, 20)
    assert copy is not None
    assert copy[1] == cache.table(request)[1]


def test_without_prefix_caching_nothing_is_hashed_or_hit() -> None:
    cache, prompt = Cache(enabled=False), prompt_of(40)
    for id_ in range(3):
        request = make_request(id_, prompt)
        assert cache.compute(request) == 0
        cache.release(request)
        assert request.block_hashes == []
    assert cache.snapshot() == []
    assert cache.drain_events() == ([], [], False)
    assert (cache.queries, cache.hits, cache.num_cached_free) == (0, 0, 0)


def test_14_without_prefix_caching_the_block_released_last_is_taken_first() -> None:
    cache = Cache(enabled=False)
    first, second = make_request(1, prompt_of(40)), make_request(2, prompt_of(40))
    cache.compute(first)
    blocks = list(cache.table(first))
    cache.release(first)
    cache.compute(second)
    assert list(cache.table(second)) == blocks, "warm memory is used again"


def test_a_held_block_is_not_evicted_and_let_go_as_often_as_held() -> None:
    cache, prompt = Cache(num_blocks=4), prompt_of(17)
    request = make_request(1, prompt)
    cache.compute(request)
    (hash_,) = request.block_hashes
    block = cache.held.hold(hash_)
    assert block == cache.held.hold(hash_) == cache.table(request)[0]
    cache.release(request)
    cache.check_integrity()
    assert cache.held.hold(hash_root(b"nothing")) is None
    for id_ in range(2, 5):
        other = make_request(id_, prompt_of(40, seed=id_))
        cache.compute(other)
        cache.release(other)
    assert hit_tokens(cache, make_request(9, prompt)) == BLOCK
    cache.held.let_go(block)
    assert (len(cache.held), cache.num_available) == (1, 3)
    cache.held.let_go(block)
    assert (len(cache.held), cache.num_available) == (0, 4)
    with pytest.raises(IntegrityError, match="more often than held"):
        cache.held.let_go(block)


def test_20_reset_gives_up_held_blocks_unless_a_request_has_some() -> None:
    cache, prompt = Cache(), prompt_of(16)
    request = make_request(1, prompt)
    cache.compute(request)
    assert cache.held.hold(request.block_hashes[0]) is not None
    assert not cache.reset(), "the request has the held block, too"
    cache.release(request)
    assert cache.reset()
    cache.check_integrity()
    assert (len(cache.held), cache.num_free) == (0, 16)


def test_first_block_of_a_prefix_has_no_parent_and_the_others_have() -> None:
    cache = Cache()
    request = make_request(1, prompt_of(50), root=ROOT)
    cache.compute(request)
    a, b, c = request.block_hashes
    assert cache.drain_events()[0] == [(a, b""), (b, a), (c, b)]


def test_a_request_gets_one_table_only() -> None:
    cache, request = Cache(), make_request(1, prompt_of(40))
    cache.compute(request)
    with pytest.raises(IntegrityError, match="already"):
        cache.admit(request, [])
    with pytest.raises(IntegrityError, match="already"):
        cache.fork(request, request)


def test_a_request_is_forked_only_when_it_is_computed() -> None:
    cache, parent = Cache(), make_request(1, prompt_of(40))
    cache.allocate(parent)
    with pytest.raises(IntegrityError, match="before it is computed"):
        cache.fork(parent, make_request(2, prompt_of(40)))


def test_check_integrity_notices_a_lost_table() -> None:
    """Semantics 17."""
    cache = Cache()
    cache.compute(make_request(1, prompt_of(40)))
    cache._tables.clear()
    with pytest.raises(IntegrityError, match="references"):
        cache.check_integrity()


def test_check_integrity_notices_a_block_twice_in_a_table() -> None:
    cache, request = Cache(), make_request(1, prompt_of(40))
    cache.compute(request)
    cache.blocks.share(cache.table(request)[0])
    cache._tables[request.id].append(cache.table(request)[0])
    with pytest.raises(IntegrityError, match="twice"):
        cache.check_integrity()


def test_check_integrity_notices_a_hash_without_mark() -> None:
    cache, request = Cache(), make_request(1, prompt_of(40))
    cache.compute(request)
    cache.blocks.forget(BlockId(cache.table(request)[0]))
    with pytest.raises(IntegrityError, match="mark"):
        cache.check_integrity()


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "uncached"])
@pytest.mark.parametrize("writers", [1, 2, 4])
@pytest.mark.parametrize("computed", [31, 32, 33])
def test_blocks_needed_by_all_are_those_that_are_taken(
    computed: int, writers: int, caching: bool
) -> None:
    """The last owner of a shared block copies nothing, unless the block has a hash."""
    cache, parent = Cache(32, enabled=caching), make_request(1, prompt_of(computed))
    cache.compute(parent)
    children = [make_request(10 + i, prompt_of(computed)) for i in range(4)]
    for child in children:
        cache.fork(parent, child)
        child.num_computed = computed
        child.output_ids = [child.id, 0, 0, 0]
    cache.release(parent)
    for writing in (children[:writers], children):
        writes = [(child, child.num_computed + 2) for child in writing]
        needed, before = cache.blocks_needed_by_all(writes), cache.num_available
        for child, end in writes:
            cache.extend(child, end)
            child.num_computed = end
        assert before - cache.num_available == needed
        cache.commit()
        cache.check_integrity()


@pytest.mark.parametrize("steps", [0, 1, 16, 17, 40])
def test_fork_over_another_fork_shares_all_and_frees_what_it_had(steps: int) -> None:
    cache, first = Cache(32), make_request(1, prompt_of(40), max_tokens=100)
    cache.compute(first)
    second = make_request(2, prompt_of(40), max_tokens=100)
    cache.fork(first, second)
    second.num_computed = 40
    second.block_hashes = list(first.block_hashes)
    for step in range(steps):
        for request in (first, second):
            request.output_ids.append(step + request.id)
            cache.extend(request, request.num_tokens)
        cache.commit()
        for request in (first, second):
            request.num_computed = request.num_tokens
    cache.fork_over(first, second)
    cache.check_integrity()
    assert list(cache.table(first)) == list(cache.table(second))
    assert cache.num_allocatable - cache.num_available == len(cache.table(first))
    cache.release(first)
    cache.release(second)
    assert cache.num_available == cache.num_allocatable
