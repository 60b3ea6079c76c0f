"""The bugs that can be planted for one simulation, and the seeds that are known to find them."""

from __future__ import annotations

import contextlib
import gc
import json
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from unittest import mock

from tests.sim.history import Violation
from tests.sim.mutants.mutant import Mutant
from tests.sim.virtual_run import only_new_garbage

LIMIT = 200
"""Seeds within which each must be found."""


class Registry:
    """Bugs to plant: proof that the simulation can fail. Each names invariants that must find it.

    Args:
        bugs: all of them.
        violations: runs a seed and returns what was violated.
        file: has the first seed that finds each; written by `make sim-mutants`.
    """

    def __init__(
        self,
        bugs: Iterable[Mutant],
        *,
        violations: Callable[[int], Sequence[Violation]],
        file: Path,
    ) -> None:
        self.bugs = {bug.name: bug for bug in bugs}
        self._violations = violations
        self._file = file

    def found(self) -> dict[str, int]:
        """Returns the known seeds."""
        known: dict[str, int] = json.loads(self._file.read_text()) if self._file.exists() else {}
        return known

    def keep(self, found: dict[str, int]) -> None:
        """Writes known seeds down."""
        kept = {name: found[name] for name in sorted(found) if name in self.bugs}
        self._file.write_text(json.dumps(kept, indent=1) + "\n")

    @contextlib.contextmanager
    def planted(self, name: str | None) -> Generator[None, None, None]:
        """A context in which production has the bug; without a name it is as it is."""
        if name is None:
            yield
            return
        bug = self.bugs[name]
        original = getattr(bug.owner, bug.attribute)
        with mock.patch.object(bug.owner, bug.attribute, bug.make(original)):
            yield

    def find(self, name: str, seeds: Iterable[int] = range(LIMIT)) -> int | None:
        """Returns the first seed that finds a bug by an invariant that it names."""
        with self.planted(name), warnings.catch_warnings(), only_new_garbage():
            warnings.simplefilter("ignore", ResourceWarning)
            for seed in seeds:
                violations = self._violations(seed)
                gc.collect()  # of connections that a run cut short has left open
                if violations and violations[0].name in self.bugs[name].finds:
                    return seed
        return None
