"""A client of an API server through the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
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
        self._env = {**os.environ, "KUBECONFIG": str(kubeconfig), "KUBECACHEDIR": str(cache)}

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
        where = ["--namespace", namespace] if namespace else []
        done = subprocess.run(
            [*self._before(), self._program, *where, *arguments],
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
        """Polls one object until it fulfils a condition, and returns it.

        Raises:
            AssertionError: it did not in time; with its last state.
        """
        end = time.monotonic() + timeout_s
        while True:
            found = self._maybe(kind, name, namespace)
            if found and condition(found):
                return found
            if time.monotonic() > end:
                state = json.dumps(found.get("status", found), indent=1)
                raise AssertionError(f"{kind} {name} after {timeout_s:g} s:\n{state}")
            time.sleep(POLL_S)

    def until_gone(
        self, kind: str, name: str, *, namespace: str = "", timeout_s: float = EVENTUALLY_S
    ) -> None:
        """Polls until there is no such object.

        Raises:
            AssertionError: it is still there.
        """
        end = time.monotonic() + timeout_s
        while found := self._maybe(kind, name, namespace):
            assert time.monotonic() < end, json.dumps(found, indent=1)
            time.sleep(POLL_S)

    def _maybe(self, kind: str, name: str, namespace: str) -> Object:
        flags = ("--ignore-not-found", "-o", "json")
        found: Object = json.loads(self("get", kind, name, *flags, namespace=namespace) or "{}")
        return found


def _annotation(key: str, value: str) -> str:
    name = f"fake.octavo.dev/{key}"
    return f"{name}={value}" if value else f"{name}-"
