from __future__ import annotations

import pytest
import torch
from tests.kernels.tensors import random

from octavo.kernels.copy_blocks import copy_blocks
from octavo.kernels.dispatch import Implementation


@pytest.mark.parametrize("force", ["native", "reference"])
def test_pairs_are_copied_in_order_and_nothing_else(force: Implementation) -> None:
    pool = random(6, 2, 2, 3, 64, dtype=torch.bfloat16)
    before = pool.clone()
    copy_blocks(pool, [(1, 4), (4, 2), (3, 3)], force=force)
    assert torch.equal(pool[4], before[1])
    assert torch.equal(pool[2], before[1])
    for untouched in (0, 1, 3, 5):
        assert torch.equal(pool[untouched], before[untouched])
