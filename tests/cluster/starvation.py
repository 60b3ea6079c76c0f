"""The kernel's OOM killer, provoked in somebody else's control group.

In a group of version 2 a limit that is too low is enough: the kernel sets it first, then kills
until it is met or nobody is left, and containers have no swap to go to. One of version 1 refuses
such a limit; there a greedy process joins the group, and the killer is told to prefer the others.
Those stand still meanwhile: they would take back every page of a file that the kernel takes from
them, and that can last. Run as a program this is the greedy process.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_END_S = 60.0


def starve(cgroup: str) -> None:
    """Has the processes of a control group ended by the kernel, the largest one first.

    Args:
        cgroup: its path, the same in each hierarchy.
    """
    path = cgroup.lstrip("/")
    if (_GROUPS / "cgroup.controllers").exists():
        (_GROUPS / path / "memory.max").write_text("0")
        return
    state = _GROUPS / "freezer" / path / "freezer.state"
    state.write_text("FROZEN")
    try:
        command = [sys.executable, __file__, str(_GROUPS / "memory" / path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_END_S, check=False)
    finally:
        with contextlib.suppress(FileNotFoundError):  # when the whole container has ended
            state.write_text("THAWED")
    # Whoever ends the rest of the container ends the greedy one with it.
    assert done.returncode in (0, -signal.SIGKILL), done.stderr


def _take(folder: Path) -> None:
    for victim in (folder / "cgroup.procs").read_text().split():
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    (folder / "cgroup.procs").write_text("0")
    used = (folder / "memory.usage_in_bytes").read_text()
    (folder / "memory.limit_in_bytes").write_text(used)
    # With whatever anybody else holds it is too much, however much of that are pages of files.
    _ = b"\1" * int(used)


if __name__ == "__main__":
    _take(Path(sys.argv[1]))
