"""What a cluster leaves behind if it is killed, written down before it happens.

A folder with a record belongs to one cluster. Undoing follows the record and nothing else:
processes by id and start time, so that a reused id is safe, and control groups by path; never by a
name that something else could have. A whole node lives in namespaces of its own, which die with the
one process that is noted for it, and with them all other processes, mounts, addresses and rules.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil
from tests.cluster.places import alone, running_folder, say

_END_S = 20.0
_CGROUPS = Path("/sys/fs/cgroup")
_SHARE = 4


class Record:
    """The record of one cluster.

    Args:
        folder: the cluster's; exists.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "record.jsonl"

    def own(self) -> None:
        """Notes that the cluster has to end with this process."""
        self._add("owner", os.getpid(), psutil.Process().create_time())

    def process(self, name: str, pid: int) -> None:
        """Notes a process that was started."""
        self._add("process", name, pid, psutil.Process(pid).create_time())

    def cgroup(self, name: str) -> None:
        """Notes a control group below the root, and makes it in every hierarchy.

        All that is in it counts as _SHARE processes: as one it would get little beside other tests.
        """
        self._add("cgroup", name)
        for hierarchy in _hierarchies():
            (hierarchy / name).mkdir()
            for setting, of_one in (("cpu.shares", 1024), ("cpu.weight", 100)):
                if (path := hierarchy / name / setting).exists():
                    path.write_text(str(_SHARE * of_one), encoding="utf-8")

    def complete(self) -> None:
        """Notes that all that belongs to the cluster has been started."""
        self._add("complete")

    def _add(self, kind: str, *what: str | float) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([kind, *what]) + "\n")

    def _of(self, kind: str) -> list[list[str | float]]:
        """Returns the entries of one kind; an unfinished last line is none."""
        if not self._path.exists():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.endswith("]")]
        return [rest for name, *rest in entries if name == kind]

    @property
    def orphaned(self) -> bool:
        """Whether the cluster should have ended with a process that is gone."""
        owners = self._of("owner")
        return bool(owners) and not any(_alive(owner) for owner in owners)

    def lives(self) -> dict[str, psutil.Process | None]:
        """Returns the process of each name that was started; None when it has ended."""
        return {str(name): _alive(life) for name, *life in self._of("process")}

    @property
    def whole(self) -> bool:
        """Whether all of it was started and runs."""
        return bool(self._of("complete")) and all(self.lives().values())

    def undo(self) -> None:
        """Ends the cluster and removes everything of it."""
        lives = [_alive(life) for _, *life in self._of("process")]
        _end([process for process in lives if process is not None])
        for (name,) in self._of("cgroup"):
            _remove_cgroup(str(name))
        shutil.rmtree(self.folder)


def new_record(prefix: str) -> Record:
    """Returns the record of a new cluster that ends with this process, in a new folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}-", dir=running_folder()))
    folder.chmod(0o755)
    record = Record(folder)
    record.own()
    return record


def clear_orphans() -> None:
    """Removes what clusters left whose owners were killed."""
    with alone(running_folder()):
        for folder in running_folder().iterdir():
            record = Record(folder)
            if record.orphaned:
                say(f"removing what a killed run left in {folder}")
                record.undo()


def _alive(life: list[str | float]) -> psutil.Process | None:
    """Returns the very process that was noted, not one that got its number later."""
    pid, started = life
    try:
        process = psutil.Process(int(pid))
        same = process.create_time() == started and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same else None


def _end(processes: list[psutil.Process]) -> None:
    """Kills them: nothing of what they know is wanted any more."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    _, left = psutil.wait_procs(processes, timeout=_END_S)
    if left:
        raise TimeoutError(f"these processes do not end: {left}")


def _hierarchies() -> list[Path]:
    """Returns the roots of the control groups: one, or one for each controller."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _remove_cgroup(name: str) -> None:
    """Removes a control group and those below it; their processes are gone by now."""
    for hierarchy in _hierarchies():
        for path, _, _ in os.walk(hierarchy / name, topdown=False):
            Path(path).rmdir()
