"""A network of its own for one scenario, in which packets can be dropped in either direction.

The thread that runs the scenario leaves the machine's network for an empty one with a loopback
device; whatever it starts is born there. Packets are dropped by routing rules, because neither
netem nor packet filters are in every kernel: established connections then see a black hole.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable
from functools import cache

import pytest

ENGINE_HOST = "127.0.0.2"
"""Where engines listen, so that a rule can tell them from the rest."""

_CLONE_NEWNET = 0x40000000
_RULE = ("rule", "add", "priority", "5")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


def _enter() -> None:
    """Moves this thread into a new network namespace with loopback up."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _ip("link", "set", "lo", "up")
    # The table of local addresses must come after the rules that drop.
    _ip("rule", "add", "priority", "10", "lookup", "local")
    _ip("rule", "del", "priority", "0")


@cache
def missing() -> str:
    """Returns why there can be no network namespaces here; empty when there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the ip tool"
    problem = ""

    def attempt() -> None:
        nonlocal problem
        try:
            _enter()
        except (OSError, subprocess.SubprocessError) as error:
            problem = f"no network namespaces: {error}"

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return problem


needs_namespace = pytest.mark.skipif(bool(missing()), reason=missing())


def run_apart(scenario: Callable[[], Awaitable[None]]) -> None:
    """Runs a scenario in a network of its own; re-raises what it raises."""
    failure: list[BaseException] = []

    async def whole() -> None:
        await scenario()

    def apart() -> None:
        try:
            _enter()
            asyncio.run(whole())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=apart)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]


def drop_to_engines(host: str = ENGINE_HOST) -> None:
    """Loses what is sent to an engine from now on."""
    _ip(*_RULE, "to", host, "blackhole")


def drop_from_engines(host: str = ENGINE_HOST) -> None:
    """Loses what an engine sends from now on."""
    _ip(*_RULE, "from", host, "blackhole")


def heal() -> None:
    """Loses nothing any more."""
    while True:
        try:
            _ip("rule", "del", "priority", "5")
        except subprocess.CalledProcessError:
            return
