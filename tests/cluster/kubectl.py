"""A client of an API server through the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.bounds import EVENTUALLY_S

Object = dict[str, Any]
"""A resource as JSON."""

POLL_S = 0.5
"""Between two looks at what is waited for: each is a process that takes 0.06 s of a core."""

_COMMAND_S = 60.0


class KubectlError(Exception):
    """kubectl ended with another status than 0; the text is what it said."""


class Kubectl:
    """kubectl with one kubeconfig.

    Args:
        program: the path of kubectl.
        kubeconfig: how it reaches the API server.
        cache: where it keeps what the server can do.
        before: gives a command that runs ours elsewhere, asked each time.
    """

    def __init__(
        self,
        program: str,
        kubeconfig: Path,
        *,
        cache: Path,
        before: Callable[[], list[str]] = list,
    ) -> None:
        self.kubeconfig = kubeconfig
        self._program = program
        self._before = before
        self._env = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "KUBECACHEDIR": str(cache),
            "GOGC": "off",  # it ends before there is much garbage
        }

    def __call__(
        self,
        *arguments: str,
        namespace: str = "",
        stdin: str | None = None,
        timeout_s: float = _COMMAND_S,
    ) -> str:
        """Runs one command and returns what it prints.

        Raises:
            KubectlError: with what it said.
        """
        done = subprocess.run(
            self._command(*arguments, namespace=namespace),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=self._env,
            check=False,
        )
        if done.returncode != 0:
            raise KubectlError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def _command(self, *arguments: str, namespace: str) -> list[str]:
        where = ["--namespace", namespace] if namespace else []
        return [*self._before(), self._program, *where, *arguments]

    def get(self, kind: str, name: str, *, namespace: str = "") -> Object:
        """Returns one object.

        Raises:
            KubectlError: also when there is none.
        """
        found: Object = json.loads(self("get", kind, name, "-o", "json", namespace=namespace))
        return found

    def list(self, kind: str, *, namespace: str = "", selector: str = "") -> list[Object]:
        """Returns the objects of a kind, in one namespace or in all."""
        where = [] if namespace else ["--all-namespaces"]
        which = ["--selector", selector] if selector else []
        text = self("get", kind, "-o", "json", *where, *which, namespace=namespace)
        items: list[Object] = json.loads(text)["items"]
        return items

    def apply(self, *objects: Object, namespace: str = "", manager: str = "test") -> None:
        """Applies objects on the server's side, in the order given."""
        bundle = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        flags = ("apply", "--server-side", "--field-manager", manager, "--filename", "-")
        self(*flags, namespace=namespace, stdin=bundle)

    def annotate(self, kind: str, name: str, *, namespace: str = "", **values: str) -> None:
        """Sets annotations `fake.octavo.dev/…`, `_` for `-`; an empty value removes one."""
        pairs = [_annotation(key.replace("_", "-"), value) for key, value in values.items()]
        self("annotate", "--overwrite", kind, name, *pairs, namespace=namespace)

    def until(
        self,
        condition: Callable[[Object], bool],
        kind: str,
        name: str,
        *,
        namespace: str = "",
        timeout_s: float = EVENTUALLY_S,
    ) -> Object:
        """Watches one object until it fulfils a condition, and returns it.

        Raises:
            AssertionError: it did not in time; with its last state.
        """
        end, found = time.monotonic() + timeout_s, Object()
        while (rest_s := end - time.monotonic()) > 0:
            for found in self._states(kind, name, namespace, rest_s):
                if condition(found):
                    return found
        state = json.dumps(found.get("status", found), indent=1)
        raise AssertionError(f"{kind} {name} after {timeout_s:g} s:\n{state}")

    def until_gone(
        self, kind: str, name: str, *, namespace: str = "", timeout_s: float = EVENTUALLY_S
    ) -> None:
        """Polls until there is no such object.

        Raises:
            AssertionError: it is still there.
        """
        end = time.monotonic() + timeout_s
        flags = ("--ignore-not-found", "-o", "json")
        while found := self("get", kind, name, *flags, namespace=namespace):
            assert time.monotonic() < end, found
            time.sleep(POLL_S)

    def _states(self, kind: str, name: str, namespace: str, timeout_s: float) -> Iterator[Object]:
        """Yields each state of an object; ends with the time, or when the server ends the watch.

        One process for them all: one for each look takes 0.06 s of a core, and comes late.
        """
        which = (kind, "--field-selector", f"metadata.name={name}")
        flags = ("--watch", "--output-watch-events", "--output", "json")
        with subprocess.Popen(
            self._command("get", *which, *flags, namespace=namespace),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
        ) as process:
            bell = threading.Timer(timeout_s, process.kill)
            bell.start()
            try:
                yield from _told(process)
            finally:
                bell.cancel()
                process.kill()


def _told(kubectl: subprocess.Popen[str]) -> Iterator[Object]:
    """Yields the objects of the events that a kubectl prints, until they or it have ended."""
    assert kubectl.stdout is not None
    assert kubectl.stderr is not None
    is_silent = True
    for line in kubectl.stdout:
        is_silent = False
        if not line.endswith("\n"):
            break  # it ended in the middle of it
        event = json.loads(line)
        if event["type"] != "DELETED":
            yield event["object"]
    if is_silent and kubectl.wait() > 0:
        raise KubectlError(kubectl.stderr.read().strip())


def _annotation(key: str, value: str) -> str:
    name = f"fake.octavo.dev/{key}"
    return f"{name}={value}" if value else f"{name}-"
