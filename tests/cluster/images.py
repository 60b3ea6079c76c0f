"""The images of a node, which are kept between runs: taking over a large one takes minutes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.builder import Builder
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

    def import_image(self, builder: Builder, *names: str) -> None:
        """Takes images over from where they were built, unless they are the same already."""
        here = self._digests()
        changed = [name for name in names if not _same(here, name, builder.identity(name))]
        if changed:
            with builder.saved(*changed) as stream:
                command = [*self._machine.entering(), *_IMPORT, "-"]
                subprocess.run(
                    command, stdin=stream, check=True, capture_output=True, timeout=_IMPORT_S
                )
            self._forget_nameless()

    def _digests(self) -> dict[str, str]:
        """Returns the digest of each image by its name, and by its identity at the builder."""
        rows = self._machine.run(*_CTR, "images", "list").splitlines()[1:]
        return {row.split()[0]: row.split()[2] for row in rows}

    def _forget_nameless(self) -> None:
        """Removes images that lost their name to a newer one."""
        here = self._digests()
        named = {digest for name, digest in here.items() if not name.startswith("sha256:")}
        if nameless := [name for name, digest in here.items() if digest not in named]:
            self._machine.run(*_CTR, "images", "remove", *nameless)


def _same(here: dict[str, str], name: str, identity: str) -> bool:
    return name in here and here[name] == here.get(identity)
