"""Audit hooks for the whole run: what no test and no product code may do."""

from __future__ import annotations

import os
import sys
from types import FrameType

import pytest
from tests.cluster.fixture import (  # noqa: F401  (fixtures, and the hook that builds for them)
    cluster,
    control_plane,
    namespace,
    node,
    pytest_collection_finish,
)

# The reference implementations wait as the engine does: see docs/performance.md.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

PICKLE_ALLOWED: dict[str, str] = {}
"""Module that may unpickle, and why; empty as long as nobody has to."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several processes, one has all tests of a cluster, or all of a file; the node is first.

    The node's tests take longest, and mostly wait.
    """
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        shared = "node" if _on_node(item) else "cluster" if "cluster" in fixtures else ""
        item.add_marker(pytest.mark.xdist_group(shared or item.location[0]))
    items.sort(key=lambda item: not _on_node(item))


def _on_node(item: pytest.Item) -> bool:
    return item.get_closest_marker("e2e") is not None


def _caller_modules() -> set[str]:
    frame: FrameType | None = sys._getframe(2)
    modules: set[str] = set()
    while frame is not None:
        modules.add(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return modules


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Raises for unpickling and for shells: foreign bytes must never become code."""
    if event == "pickle.find_class" and not _caller_modules() & PICKLE_ALLOWED.keys():
        raise AssertionError(f"pickle looks up {arguments}")
    if event == "os.system":
        raise AssertionError(f"a shell is asked to run {arguments}")


sys.addaudithook(_audit)
