from __future__ import annotations

import pytest

from octavo.engine.block_manager import BlockId, IntegrityError
from octavo.engine.hash_index import NO_PARENT, HashIndex
from octavo.v1.block_hash import BlockHash

A, B = BlockHash(b"a"), BlockHash(b"b")
ONE, TWO = BlockId(1), BlockId(2)


@pytest.fixture
def index() -> HashIndex:
    return HashIndex()


def test_pending_block_is_found_but_not_told(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    assert index.find(A) == ONE
    assert index.drain_events() == ([], [], False)
    assert index.snapshot() == []


def test_published_block_is_told_once_with_its_parent(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    index.add(TWO, B, A)
    index.publish()
    assert index.drain_events() == ([(A, NO_PARENT), (B, A)], [], False)
    assert index.drain_events() == ([], [], False)
    assert index.snapshot() == [(A, NO_PARENT), (B, A)]


def test_revoked_block_leaves_no_trace(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    assert index.revoke() == [ONE]
    assert index.find(A) is None
    assert ONE not in index
    assert index.drain_events() == ([], [], False)


def test_revoking_a_second_block_keeps_the_published_first(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    index.publish()
    index.add(TWO, A, NO_PARENT)
    index.revoke()
    assert index.find(A) == ONE
    assert index.snapshot() == [(A, NO_PARENT)]


def test_15_content_is_removed_with_its_last_block_only(index: HashIndex) -> None:
    """Semantics 15, 16."""
    index.add(ONE, A, NO_PARENT)
    index.add(TWO, A, NO_PARENT)
    index.publish()
    assert index.drain_events() == ([(A, NO_PARENT)], [], False)
    index.remove(ONE)
    assert index.find(A) == TWO
    assert index.drain_events() == ([], [], False)
    index.remove(TWO)
    assert index.find(A) is None
    assert index.drain_events() == ([], [A], False)


def test_content_whose_only_published_block_goes_is_removed_though_one_is_pending(
    index: HashIndex,
) -> None:
    index.add(ONE, A, NO_PARENT)
    index.publish()
    index.drain_events()
    index.add(TWO, A, NO_PARENT)
    index.remove(ONE)
    assert index.drain_events() == ([], [A], False)
    index.publish()
    assert index.drain_events() == ([(A, NO_PARENT)], [], False)


def test_events_of_one_batch_are_a_net_change(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    index.publish()
    index.remove(ONE)
    assert index.drain_events() == ([], [], False)
    index.add(ONE, A, NO_PARENT)
    index.publish()
    index.drain_events()
    index.remove(ONE)
    index.add(TWO, A, NO_PARENT)
    index.publish()
    assert index.drain_events() == ([], [], False)


def test_clearing_voids_events_that_were_not_told_yet(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    index.publish()
    index.clear()
    assert index.drain_events() == ([], [], True)
    assert index.drain_events() == ([], [], False)
    index.add(ONE, B, NO_PARENT)
    index.publish()
    assert index.drain_events() == ([(B, NO_PARENT)], [], False)


def test_check_integrity_notices_a_stale_entry(index: HashIndex) -> None:
    index.add(ONE, A, NO_PARENT)
    index.check_integrity()
    del index._hashes[ONE]
    with pytest.raises(IntegrityError):
        index.check_integrity()
