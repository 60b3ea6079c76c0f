"""A client of an API server: in this process for what is asked often, else the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.bounds import EVENTUALLY_S
from tests.cluster.api import Api, ApiError, MissingError, Object, Within, at_once

POLL_S = 0.2
"""Between two looks at what is waited for."""

_COMMAND_S = 60.0


class Kubectl:
    """kubectl with one kubeconfig, and what takes its place where a process would cost too much.

    Args:
        program: the path of kubectl.
        kubeconfig: how it reaches the API server.
        cache: where it keeps what the server can do.
        before: gives a command that runs ours elsewhere, asked each time.
        within: does something in this process, but elsewhere alike.
    """

    def __init__(
        self,
        program: str,
        kubeconfig: Path,
        *,
        cache: Path,
        before: Callable[[], list[str]] = list,
        within: Within = at_once,
    ) -> None:
        self.kubeconfig = kubeconfig
        self.api = Api(kubeconfig, within=within)
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
            ApiError: with what it said.
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
            raise ApiError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def _command(self, *arguments: str, namespace: str) -> list[str]:
        where = ["--namespace", namespace] if namespace else []
        return [*self._before(), self._program, *where, *arguments]

    def get(self, kind: str, name: str, *, namespace: str = "") -> Object:
        """Returns one object.

        Raises:
            ApiError: also when there is none.
        """
        return self.api.get(kind, name, namespace)

    def list(self, kind: str, *, namespace: str = "", selector: str = "") -> list[Object]:
        """Returns the objects of a kind, in one namespace or in all."""
        return self.api.list(kind, namespace, selector)

    def apply(self, *objects: Object, namespace: str = "", manager: str = "test") -> None:
        """Applies objects on the server's side, in the order given."""
        for item in objects:
            self.api.apply(item, namespace, manager)

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
            for found in self.api.states(kind, name, namespace, rest_s):
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
        while found := self._found(kind, name, namespace):
            assert time.monotonic() < end, found
            time.sleep(POLL_S)

    def _found(self, kind: str, name: str, namespace: str) -> Object | None:
        try:
            return self.api.get(kind, name, namespace)
        except MissingError:
            return None


def _annotation(key: str, value: str) -> str:
    name = f"fake.octavo.dev/{key}"
    return f"{name}={value}" if value else f"{name}-"
