from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.prefix_index import IndexGapError, PrefixIndex
from octavo.v1 import engine_pb2
from octavo.v1.block_hash import BlockHash


def h(number: int) -> BlockHash:
    return BlockHash(number.to_bytes(16, "little"))


def update(
    seq: int,
    *,
    epoch: int = 1,
    stored: list[int] | None = None,
    removed: list[int] | None = None,
    cleared: bool = False,
) -> engine_pb2.StateUpdate:
    return engine_pb2.StateUpdate(
        epoch=epoch,
        seq=seq,
        stored=[engine_pb2.StoredBlock(hash=h(n)) for n in stored or []],
        removed=[h(n) for n in removed or []],
        cleared=cleared,
    )


def test_hit_is_the_leading_run_only() -> None:
    index = PrefixIndex()
    index.apply(update(1, stored=[1, 2, 4], cleared=True))
    assert index.hit_blocks([h(1), h(2), h(3), h(4)]) == 2
    assert index.hit_blocks([h(3), h(1)]) == 0
    assert index.hit_blocks([]) == 0


def test_promised_blocks_count_like_held_ones_until_their_request_ends() -> None:
    index = PrefixIndex()
    index.apply(update(1, stored=[1], cleared=True))
    index.promise([h(1), h(2)])
    index.promise([h(2), h(3)])
    assert index.hit_blocks([h(1), h(2), h(3)]) == 3
    index.release([h(2), h(3)])
    assert index.hit_blocks([h(1), h(2), h(3)]) == 2
    index.release([h(1), h(2)])
    assert index.hit_blocks([h(1), h(2), h(3)]) == 1
    assert index.num_promised() == 0


def test_a_missed_message_is_a_gap() -> None:
    index = PrefixIndex()
    index.apply(update(1, cleared=True))
    with pytest.raises(IndexGapError):
        index.apply(update(3, stored=[1]))
    assert len(index) == 0


def test_a_repeated_message_is_a_gap() -> None:
    index = PrefixIndex()
    index.apply(update(1, cleared=True))
    with pytest.raises(IndexGapError):
        index.apply(update(1, stored=[1]))


def test_another_epoch_within_a_stream_is_a_gap() -> None:
    index = PrefixIndex()
    index.apply(update(1, stored=[1], cleared=True))
    with pytest.raises(IndexGapError):
        index.apply(update(2, epoch=2))


def test_a_restarted_engine_leaves_no_ghosts_even_without_cleared() -> None:
    index = PrefixIndex()
    index.apply(update(1, stored=[1, 2], cleared=True))
    index.restart()
    index.apply(update(1, epoch=2, stored=[3]))
    assert index.held() == {h(3)}


def test_a_new_stream_of_the_same_life_starts_from_its_snapshot() -> None:
    index = PrefixIndex()
    index.apply(update(1, stored=[1, 2], cleared=True))
    index.restart()
    index.apply(update(1, stored=[2], cleared=True))
    assert index.held() == {h(2)}


_EVENTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), max_size=4),
        st.lists(st.integers(0, 12), max_size=4),
        st.booleans(),
        st.sampled_from(["state", "promise", "release", "restart"]),
    ),
    max_size=40,
)


@given(events=_EVENTS, probe=st.lists(st.integers(0, 12), max_size=8))
def test_index_equals_a_plain_model(
    events: list[tuple[list[int], list[int], bool, str]], probe: list[int]
) -> None:
    index, held, promises, seq, epoch = PrefixIndex(), set[int](), list[list[int]](), 0, 1
    for stored, removed, cleared, kind in events:
        if kind == "promise":
            index.promise(map(h, stored))
            promises.append(stored)
        elif kind == "release" and promises:
            index.release(map(h, promises.pop(len(removed) % len(promises))))
        elif kind == "restart":
            epoch, seq, held = epoch + 1, 0, set()
            index.restart()
            index.apply(update(1, epoch=epoch))
            seq = 1
        elif kind == "state":
            seq += 1
            index.apply(update(seq, epoch=epoch, stored=stored, removed=removed, cleared=cleared))
            held = (set() if cleared else held) - set(removed) | set(stored)
        promised = Counter(n for p in promises for n in p)
        assert index.held() == {h(n) for n in held}
        assert index.num_promised() == len(promised)
        run = 0
        while run < len(probe) and (probe[run] in held or probe[run] in promised):
            run += 1
        assert index.hit_blocks([h(n) for n in probe]) == run


def test_a_million_distinct_blocks_through_a_small_pool_keep_the_index_small() -> None:
    index, pool = PrefixIndex(), 1_000
    for seq, start in enumerate(range(0, 1_000_000, 10_000), start=1):
        fresh = range(start, start + 10_000)
        gone = [*range(start - pool, start), *range(start, start + 10_000 - pool)]
        kept = list(fresh)[-pool:]
        index.apply(update(seq, stored=kept, removed=[n for n in gone if n >= 0]))
        assert len(index) == pool
