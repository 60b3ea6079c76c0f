"""Which tests one of several processes runs together."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[1]
_NODE = "pytest.mark.e2e"
_REFERENCE = "import Reference"
_OPERATOR = "operator_process"
_FIRST = ("node", "cluster with operators", "cluster")
"""They take longest, and mostly wait."""
_CLUSTER = re.compile(r"\b\w+: (Kubernetes|ControlPlane)\b")


class FilesAndClusters(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Keeps a file together, and all files that share a cluster or the model of transformers.

    xdist's own groups do nothing with pytest 9.2, which made the ids of tests read-only.
    """

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid.partition("::")[0])


@functools.cache
def scope(file: str) -> str:
    """Returns what a file's tests belong to, by its text: a wrong guess costs a second one."""
    text = (ROOT / file).read_text("utf-8")
    if _NODE in text:
        return "node"
    if _REFERENCE in text:
        return "reference"
    if _CLUSTER.search(text):
        # Each half takes ten minutes, mostly of waiting.
        return "cluster with operators" if _OPERATOR in text else "cluster"
    return file


def rank(file: str) -> int:
    """Returns a number by which files that are begun first come first."""
    found = scope(file)
    return _FIRST.index(found) if found in _FIRST else len(_FIRST)
