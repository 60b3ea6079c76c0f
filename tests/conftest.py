"""Audit hooks for the whole run: what no test and no product code may do."""

from __future__ import annotations

import gc
import os
import sys
from types import FrameType

import hypothesis
import pytest
import structlog
from tests.cluster.fixture import (  # noqa: F401  (fixtures, and the hook that builds for them)
    cluster,
    control_plane,
    namespace,
    node,
    pytest_collection_finish,
)
from tests.parallel import FilesAndClusters, rank
from xdist.scheduler import LoadScopeScheduling

# What fails on purpose is logged thousands of times; rich tracebacks take longer than all else.
structlog.configure(
    processors=[structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
)

# Speed is for benchmarks: on a busy machine any example may take seconds.
hypothesis.settings.register_profile("octavo", deadline=None)
hypothesis.settings.load_profile("octavo")

# The reference implementations wait as the engine does: see docs/performance.md.
os.environ.setdefault("GOMP_SPINCOUNT", "5000")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Of several processes each has a core at best: a second thread makes them wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# All that collecting makes stays: who looks for garbage among it finds none, and takes a minute.
gc.disable()

PICKLE_ALLOWED: dict[str, str] = {}
"""Module that may unpickle, and why; empty as long as nobody has to."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first."""
    items.sort(key=lambda item: rank(item.nodeid.partition("::")[0]))
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Libraries tell of what is not collected at the end."""
    gc.unfreeze()


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    """Of several processes, one has all tests of a cluster, or all of a file."""
    return FilesAndClusters(config, log)


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
