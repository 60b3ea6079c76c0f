"""The kernel's OOM killer, provoked: a greedy process in somebody else's control group.

The group's limit becomes what it uses now, and the greedy one takes nearly all of it; the killer is
told to prefer the others. Run as a program it is that process.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_V1 = ("memory.usage_in_bytes", "memory.limit_in_bytes")
_V2 = ("memory.current", "memory.max")
_SHARE = 0.9
"""Of the limit: more than anybody who holds anything worth the name leaves."""
_END_S = 60.0


def starve(cgroup: str) -> None:
    """Has the processes of a control group ended by the kernel, the largest one first.

    Args:
        cgroup: its path, the same in each hierarchy.
    """
    first = _GROUPS / "memory"
    folder = (first if first.is_dir() else _GROUPS) / cgroup.lstrip("/")
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_END_S, check=False)
    # Whoever ends the rest of the container ends the greedy one with it.
    assert done.returncode in (0, -signal.SIGKILL), done.stderr


def _take(folder: Path) -> None:
    usage, limit = _V1 if (folder / _V1[0]).exists() else _V2
    for victim in (folder / "cgroup.procs").read_text().split():
        Path(f"/proc/{victim}/oom_score_adj").write_text("1000")
    (folder / "cgroup.procs").write_text("0")
    used = (folder / usage).read_text()
    (folder / limit).write_text(used)
    _ = b"\1" * int(int(used) * _SHARE)


if __name__ == "__main__":
    _take(Path(sys.argv[1]))
