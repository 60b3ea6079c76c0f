"""A fake runner whose broken steps leave the worst behind, and whose mistakes are noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fakes import BLOCK, FakeRunner

from octavo.engine.batch import StepInput, StepOutput

RUBBISH = 999


class BrokenStepError(Exception):
    """A step breaks as it is meant to."""


class CarelessRunner(FakeRunner):
    """Leaves rubbish wherever a step that breaks may have written."""

    def __init__(self, **how: Callable[..., Any]) -> None:
        super().__init__(**how)
        self.faults: list[Exception] = []
        """What went wrong that was not meant to: a position is read that nobody has written."""

    def run(self, step: StepInput) -> StepOutput:
        """Computes a step."""
        try:
            return super().run(step)
        except BrokenStepError:
            for _, slot in step.offloads:
                self.host[slot] = [RUBBISH] * BLOCK
            for _, block in (*step.restores, *step.copies):
                self.pool[block] = [RUBBISH] * BLOCK
            for row in step.rows:
                for i in range(row.start, row.start + len(row.token_ids)):
                    self.pool[row.block_table[i // BLOCK]][i % BLOCK] = RUBBISH
            raise
        except Exception as error:
            self.faults.append(error)
            raise
