"""Namespaces in which a node, or a builder of images, lives apart from the machine around it.

One process is noted; when it ends, the kernel ends all that was started inside and drops mounts,
addresses and packet rules with it. Inside, `/run`, `/var/lib` and `/var/log` are the cluster's own,
so programs use the places that they are made for and still touch nothing of the host.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import psutil
from tests.cluster.binaries import program
from tests.cluster.program import Program
from tests.cluster.record import Record

_START_S = 30.0
_CLONE_NEWNET = 0x40000000
_ENTERED = {"mount": "--mount", "pid": "--pid", "net": "--net"}

Result = TypeVar("Result")


class Machine:
    """Namespaces of mounts and processes, and of the network when it shall have its own.

    Args:
        record: of the cluster whose machine it is.
        bound: whether it dies with the thread that starts it.
        network: whether it has a network of its own; else the host's.
        claims: the descriptor of a lock file that it holds as long as it lives.
    """

    def __init__(
        self, record: Record, *, bound: bool, network: bool, claims: int | None = None
    ) -> None:
        self._record = record
        self._bound = bound
        self._programs: list[Program] = []
        self._kinds = ["mount", "pid", *(["net"] if network else [])]
        flags = [f"--{kind}" for kind in self._kinds]
        flags += ["--fork", "--kill-child=SIGKILL", "--mount-proc", "--propagation=private"]
        self._claims = claims
        self._holder = Program(
            "machine",
            [_tool("unshare"), *flags, program("pause")],
            record=record,
            bound=bound,
            claims=claims,
        )

    def start(self) -> None:
        """Makes the namespaces, with places of their own in them."""
        self._holder.start()
        self._holder.until(lambda: self._first() is not None, _START_S)
        if self._claims is not None:
            os.close(self._claims)
        self._record.process("first", self.first.pid)
        folder = self._record.folder
        self.run("mount", "--make-rshared", "/")
        self.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for place in ("lib", "log"):
            (folder / place).mkdir()
            self.run("mount", "--bind", str(folder / place), f"/var/{place}")

    @property
    def first(self) -> psutil.Process:
        """Process 1 of the inside, as it is seen from outside."""
        first = self._first()
        assert first is not None, "the machine is not up"
        return first

    def _first(self) -> psutil.Process | None:
        children = psutil.Process(self._holder.pid).children()
        return next((child for child in children if child.name() == "pause"), None)

    def entering(self, *kinds: str) -> list[str]:
        """Returns what comes before a command that shall run inside, in some namespaces or all."""
        flags = [_ENTERED[kind] for kind in kinds or self._kinds]
        return [_tool("nsenter"), "--target", str(self.first.pid), *flags, "--"]

    def run(self, *command: str, timeout_s: float = 60.0, stdin: str | None = None) -> str:
        """Runs a command inside to its end and returns what it prints."""
        done = subprocess.run(
            [*self.entering(), *command],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def in_network(self, work: Callable[[], Result]) -> Result:
        """Does something in the network of the inside, in a thread of its own, and returns it.

        A program that it starts, bound to its starter, ends with it.
        """
        results: list[Result] = []
        errors: list[BaseException] = []

        def apart() -> None:
            try:
                _join_network(self.first.pid)
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=apart)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    def program(
        self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Program:
        """Returns a program that will run inside."""
        made = Program(
            name, command, record=self._record, bound=self._bound, env=env, before=self.entering
        )
        self._programs.append(made)
        return made

    def stop(self) -> None:
        """Ends all that is inside."""
        first = self._first() if self._holder.alive else None
        self._holder.kill()
        if first is not None:
            first.wait(_START_S)
        for ended in self._programs:
            ended.kill()


def _join_network(pid: int) -> None:
    """Moves this thread, and no other, into the network of a process."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/net").open("rb") as network:
        if libc.setns(network.fileno(), _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


def _tool(name: str) -> str:
    path = shutil.which(name)
    assert path is not None, f"{name} is part of util-linux"
    return path


def own_network(machine: Machine, address: str) -> None:
    """Gives a machine with a network of its own one address, for itself and for nobody else."""
    machine.run("ip", "link", "set", "lo", "up")
    machine.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    machine.run("ip", "route", "add", "default", "dev", "lo")
    if not Path("/proc/sys/net/bridge").exists():
        machine.run("modprobe", "br_netfilter")
    for name in ("net.ipv4.ip_forward", "net.bridge.bridge-nf-call-iptables"):
        machine.run("sysctl", "-qw", f"{name}=1")
