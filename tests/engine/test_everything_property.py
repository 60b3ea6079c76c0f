"""Everything at once: choices, beams, pins, policies, preemption, swap, tiers, aborts, deadlines,
poison, faults, and a second life over the same disk.

Whatever the mix, each request ends once, with the tokens of an undisturbed run up to what ended it,
and nothing stays in use. The fake runner keeps content per block and per slot, the fake disk per
file: a block that is restored from the wrong place, too early or too late changes the tokens.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from tests.engine.fake_disk import FakeDisk
from tests.engine.life import Life
from tests.engine.workload import LIVES, SIZES, Action, Sizes, longest

from octavo.v1.errors import PINS_FULL

STEPS = 10_000
"""Of all examples together, at least; only those that ran something count."""
SEEN = (
    *("swapped", "recomputed", "restored", "read from disk", "fits exactly", "never fits"),
    *("pins", "whole at the end", "unpinned in use", f"pins refused: {PINS_FULL.name}"),
    *("abort", "late", "impatient", "poison", "mask", "break"),
)
"""What has to happen in some example."""


def test_17_whatever_is_mixed_every_request_ends_and_nothing_stays_in_use() -> None:
    """Semantics 5, 12 to 39, with integrity and events checked after each step."""
    total: Counter[str] = Counter()

    @settings(max_examples=130)
    @given(lives=LIVES, sizes=SIZES)
    def one(lives: list[list[Action]], sizes: Sizes) -> None:
        disk = FakeDisk(limit=12, fails=lambda job: job in sizes.bad_jobs)
        has_disk = sizes.disk_pace >= 0 and sizes.host_slots > 0
        for actions in lives:
            life = Life(
                sizes,
                num_blocks=sizes.num_blocks(lives),
                max_model_len=longest(lives),
                disk=disk if has_disk else None,
            )
            life.run(actions)
            life.check()
            life.close()
            disk.crash()
            total.update(life.counts)
        life.engine.assert_idle()

    one()
    assert total["steps"] >= STEPS, total
    assert all(total[what] for what in SEEN), total
