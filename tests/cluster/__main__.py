"""A cluster to play with: `python -m tests.cluster up|down|status|env|shell [--size …]`."""

# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path

from tests.cluster.binaries import program
from tests.cluster.control_plane import ControlPlane
from tests.cluster.node import Node
from tests.cluster.own_cluster import OwnCluster
from tests.cluster.places import running_folder, say
from tests.cluster.record import Record, clear_orphans

SIZES: dict[str, type[ControlPlane | Node]] = {"control-plane": ControlPlane, "node": Node}


def main(arguments: list[str]) -> None:
    """Runs one command."""
    commands = {"up": up, "down": down, "status": status, "env": env, "shell": shell}
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=commands)
    parser.add_argument("--size", choices=SIZES, default="control-plane")
    chosen = parser.parse_args(arguments)
    commands[chosen.command](chosen.size)


def _record(size: str) -> Record:
    return Record(running_folder() / f"by-hand-{size}")


def up(size: str) -> None:
    """Brings the cluster up, unless it is."""
    record = _record(size)
    if record.whole:
        say("it is up already")
    else:
        down(size)
        begin = time.monotonic()
        record.folder.mkdir(mode=0o755)
        cluster: OwnCluster = SIZES[size](record, bound=False)
        try:
            cluster.start()
        except BaseException:
            cluster.stop()
            raise
        say(f"up in {time.monotonic() - begin:.1f} s")
    say(f"python -m tests.cluster shell --size {size}  # kubectl and helm are in it")


def down(size: str) -> None:
    """Ends the cluster and what earlier ones left."""
    clear_orphans()
    if _record(size).folder.exists():
        _record(size).undo()
        say("down")


def status(size: str) -> None:
    """Says what runs; the exit status is 0 only for a whole cluster."""
    record = _record(size)
    for name, process in record.lives().items():
        if process is None:
            print(f"{name:24} ended")
        elif name != "machine":  # a machine's only child has a line of its own
            lives = [process, *process.children()]
            memory = sum(life.memory_info().rss for life in lives) // 2**20
            print(f"{name:24} {lives[-1].pid:8} {memory:6} MB")
    if not record.whole:
        sys.exit("it is not up")
    print(f"logs: {record.folder}/*.log")


def env(size: str) -> None:
    """Prints what a shell needs to use the cluster."""
    for name, value in _variables(size).items():
        print(f"export {name}={shlex.quote(value)}")


def shell(size: str) -> None:
    """Becomes a shell that uses the cluster, in the network of a node."""
    variables = _variables(size)
    first = _record(size).lives().get("first")
    before = ["nsenter", "--target", str(first.pid), "--net", "--"] if first else []
    command = [*before, os.environ.get("SHELL", "/bin/sh")]
    os.execvpe(command[0], command, {**os.environ, **variables})


def _variables(size: str) -> dict[str, str]:
    record = _record(size)
    if not record.whole:
        sys.exit(f"cluster: it is not up: make cluster-up SIZE={size}")
    tools = Path(program("kubectl")).parent
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {"KUBECONFIG": str(record.folder / "admin.kubeconfig"), "PATH": path}


if __name__ == "__main__":
    main(sys.argv[1:])
