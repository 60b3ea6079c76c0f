from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.hash_index import NO_PARENT
from octavo.engine.tier_events import TierEvents
from octavo.v1.block_hash import BlockHash

HASHES = [BlockHash(bytes([i])) for i in range(4)]


def test_a_move_to_another_tier_is_no_news() -> None:
    events, held = TierEvents(), {HASHES[0]: NO_PARENT}
    assert events.merge([HASHES[0]], held.get) == ([(HASHES[0], NO_PARENT)], [])
    assert events.merge([HASHES[0], HASHES[0]], held.get) == ([], [])
    held.clear()
    assert events.merge([HASHES[0], HASHES[1]], held.get) == ([], [HASHES[0]])


def test_after_a_clear_all_that_is_held_is_new() -> None:
    events, held = TierEvents(), {HASHES[0]: NO_PARENT}
    events.merge(HASHES, held.get)
    events.clear()
    assert events.merge(HASHES, held.get) == ([(HASHES[0], NO_PARENT)], [])


@given(st.lists(st.sets(st.integers(0, 3))))
def test_who_replays_the_events_knows_what_is_held(states: list[set[int]]) -> None:
    events = TierEvents()
    known: set[BlockHash] = set()
    for state in states:
        held = {HASHES[i]: NO_PARENT for i in state}
        came, gone = events.merge(HASHES, held.get)
        assert not known & {h for h, _ in came}
        assert set(gone) <= known
        known = (known - set(gone)) | {h for h, _ in came}
        assert known == held.keys()
