"""Runs one of our programs so that a test can ask what it holds: SIGUSR1 appends a line of JSON.

python tests/faults/probed.py FILE octavo.gateway ARGUMENTS ...
"""

from __future__ import annotations

import asyncio
import gc
import json
import runpy
import signal
import sys
import threading
from collections import Counter
from pathlib import Path


def _count_tasks() -> Counter[str]:
    """Returns the asyncio tasks that have not ended, by the name of what they run."""
    tasks = [o for o in gc.get_objects() if isinstance(o, asyncio.Task) and not o.done()]
    return Counter(getattr(t.get_coro(), "__qualname__", "?") for t in tasks)


def main(target: str, module: str, arguments: list[str]) -> None:
    """Installs the probe and becomes the program."""

    def report(*_: object) -> None:
        gc.collect()
        held = {
            "tasks": dict(_count_tasks()),
            "threads": threading.active_count(),
            "descriptors": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }
        with Path(target).open("a", encoding="utf-8") as file:
            file.write(json.dumps(held) + "\n")

    signal.signal(signal.SIGUSR1, report)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
