"""Whether a victim is swapped out or computed again: the pure choice.

Swapping copies each block twice, out and back; recomputing takes what a prefill of the same tokens
takes. Both prices are measured, so a machine whose copies are slow beside its arithmetic recomputes
short requests and swaps long ones only if that is cheaper. Knows no requests and no memory.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from octavo.engine.cost import CostModel


class PreemptionMode(enum.StrEnum):
    """What becomes of a victim's blocks."""

    AUTO = "auto"
    """Whatever is estimated to take less time."""
    SWAP = "swap"
    """Swapped out whenever the host tier has room."""
    RECOMPUTE = "recompute"
    """Given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The choice for one engine; without room in the host tier a victim is recomputed anyhow."""

    mode: PreemptionMode = PreemptionMode.AUTO
    cost: CostModel = field(default_factory=CostModel)

    def prefers_swap(self, *, num_blocks: int, num_tokens: int) -> bool:
        """Tells whether a victim with so many computed tokens, in so many blocks, is swapped out.

        As long as no prefill has been measured a copy is taken to be cheaper: a block is a few
        hundred kilobytes, and its computation reads all weights.
        """
        if num_tokens == 0 or self.mode is PreemptionMode.RECOMPUTE:
            return False
        if self.mode is PreemptionMode.SWAP or self.cost.prefill_us_per_token == 0.0:
            return True
        copies_us = 2 * num_blocks * self.cost.copy_us_per_block
        return copies_us < num_tokens * self.cost.prefill_us_per_token
