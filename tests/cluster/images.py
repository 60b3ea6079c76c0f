"""What containerd has: images, kept between runs as taking over takes minutes, and containers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Set
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from typing import IO

from tests.cluster.api import Object
from tests.cluster.builder import Builder, made_of
from tests.cluster.image_archive import full_name, sift
from tests.cluster.machine import Machine
from tests.cluster.program import Program
from tests.cluster.scratch_image import scratch_image

_CTR = ("ctr", "--namespace", "k8s.io")
_IMPORT = (*_CTR, "images", "import")
_IMPORT_S = 900.0
_START_S = 60.0


class Images:
    """What containerd has.

    Args:
        machine: where it runs.
        containerd: the program.
        folder: for files that are needed for a moment.
    """

    def __init__(self, machine: Machine, containerd: Program, folder: Path) -> None:
        self._machine = machine
        self._containerd = containerd
        self._folder = folder

    def start(self) -> None:
        """Starts containerd without the containers of an earlier node."""
        self._start()
        if left := self._machine.run(*_CTR, "containers", "list", "--quiet").split():
            self._machine.run(*_CTR, "containers", "delete", *left)
            self._containerd.terminate()
            self._start()

    def _start(self) -> None:
        self._containerd.start()
        self._containerd.until(self._answers, _START_S)

    def _answers(self) -> bool:
        try:
            self._machine.run("ctr", "version")
        except RuntimeError:
            return False
        return True

    def import_program(self, static: Path, name: str) -> None:
        """Makes an image with one static program, which is its entry point."""
        archive = scratch_image(static, name, self._folder / "image.tar")
        self._machine.run(*_IMPORT, str(archive))
        archive.unlink()

    def import_image(self, builder: Builder, *names: str) -> list[str]:
        """Takes images over from where they were built; returns those that were not here yet."""
        changed = [name for name in names if self._content(name) != builder.content(name)]
        if changed:
            known = set(self._machine.run(*_CTR, "content", "list", "--quiet").split())
            with builder.saved(*changed) as saved:
                self._take(saved, known)
            self._forget_nameless()
        return changed

    def _take(self, saved: IO[bytes], known: Set[str]) -> None:
        command = [*self._machine.entering(), *_IMPORT, "-"]
        with Popen(command, stdin=PIPE, stdout=DEVNULL, stderr=PIPE) as taking:
            assert taking.stdin is not None
            assert taking.stderr is not None
            with contextlib.suppress(BrokenPipeError), taking.stdin as target:
                sift(saved, target, known)
            said = taking.stderr.read()
            taking.wait(_IMPORT_S)
        if taking.returncode != 0:
            raise RuntimeError(f"images were not taken over: {said.decode()}")

    def kill(self, container: str) -> None:
        """kill -9 of all processes of a container."""
        self._machine.run(*_CTR, "tasks", "kill", "--all", "--signal", "SIGKILL", container)

    def pause(self, container: str) -> None:
        """Stops all processes of a container, until it is resumed."""
        self._machine.run(*_CTR, "tasks", "pause", container)

    def resume(self, container: str) -> None:
        """Lets a paused container go on."""
        self._machine.run(*_CTR, "tasks", "resume", container)

    def cgroup(self, container: str) -> str:
        """Returns the path of a container's control group."""
        found = json.loads(self._machine.run(*_CTR, "containers", "info", container))
        return str(found["Spec"]["linux"]["cgroupsPath"])

    def _content(self, name: str) -> object:
        """Returns what an image is made of; None when there is none of that name."""
        digest = self._digests().get(full_name(name))
        if digest is None:
            return None
        manifest = self._blob(digest)
        found = self._blob(manifest["config"]["digest"])
        return made_of(found["rootfs"]["diff_ids"], found["config"])

    def _blob(self, digest: str) -> Object:
        found: Object = json.loads(self._machine.run(*_CTR, "content", "get", digest))
        return found

    def _digests(self) -> dict[str, str]:
        """Returns the digest of each image's manifest by its name."""
        rows = self._machine.run(*_CTR, "images", "list").splitlines()[1:]
        return {row.split()[0]: row.split()[2] for row in rows}

    def _forget_nameless(self) -> None:
        """Removes images that lost their name to a newer one."""
        here = self._digests()
        named = {digest for name, digest in here.items() if not name.startswith("sha256:")}
        if nameless := [name for name, digest in here.items() if digest not in named]:
            self._machine.run(*_CTR, "images", "remove", *nameless)
