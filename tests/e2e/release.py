"""The platform on a real node: our own images, our chart, and clients inside its network."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from tests.cluster.binaries import program
from tests.cluster.builder import Builder
from tests.cluster.kubectl import Object
from tests.cluster.node import Node
from tests.faults.child_process import ROOT
from tests.faults.stream_client import Answer, ask

SYSTEM = "octavo-system"
RELEASE = "octavo"
MODEL = "smollm2"
VERSION = "0.1.0"
IMAGES = {
    f"octavo/{target}:{VERSION}": target
    for target in ("operator", "gateway", "valkey", "engine-smollm2")
}
Result = TypeVar("Result")


def example(name: str) -> Object:
    """Returns the resource of an example file."""
    text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    found: Object = yaml.safe_load(text)
    return found


class Platform:
    """One release of the chart on one node.

    Args:
        node: where it runs.
        home: helm's folder.
    """

    def __init__(self, node: Node, home: Path) -> None:
        self.node = node
        self._home = home

    def bring_images(self) -> None:
        """Builds all images that the tests use, and takes them to the node."""
        with Builder() as builder:
            for name, target in IMAGES.items():
                builder.build_image(name, ROOT / "Dockerfile", target=target)
            self.node.import_image(builder, *IMAGES)

    def helm(self, *arguments: str, timeout_s: float = 300.0) -> str:
        """Runs helm and returns what it prints."""
        where = {
            "KUBECONFIG": str(self.node.kubeconfig),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self._home),
            **{f"HELM_{kind}_HOME": str(self._home) for kind in ("CACHE", "CONFIG", "DATA")},
        }
        done = subprocess.run(
            self.node.inside([program("helm"), *arguments, "--namespace", SYSTEM]),
            env=where, capture_output=True, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *flags: str) -> str:
        """Installs or upgrades the release and waits for its pods."""
        chart = str(ROOT / "charts" / "octavo")
        command = ("upgrade", "--install", RELEASE, chart, "--create-namespace", *flags)
        return self.helm(*command, "--wait", "--timeout", "4m")

    @property
    def url(self) -> str:
        """Of the gateway's Service."""
        found = self.node.kubectl.get("service", f"{RELEASE}-gateway", namespace=SYSTEM)
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    def run(self, scenario: Callable[[aiohttp.ClientSession], Awaitable[Result]]) -> Result:
        """Runs clients in the node's network."""

        async def whole() -> Result:
            timeout = aiohttp.ClientTimeout(total=300)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                return await scenario(session)

        return self.node.in_network(lambda: asyncio.run(whole()))

    def ask_all(self, bodies: Sequence[dict[str, Any]]) -> list[Answer]:
        """Sends requests at once and returns their answers."""
        url = self.url
        return self.run(
            lambda session: asyncio.gather(*(ask(session, url, body) for body in bodies))
        )

    def get(self, path: str) -> Any:
        """Returns the JSON of a page of the gateway."""
        url = self.url

        async def fetch(session: aiohttp.ClientSession) -> Any:
            async with session.get(url + path) as answer:
                return await answer.json()

        return self.run(fetch)

    def engines(self, namespace: str, service: str = MODEL) -> list[Object]:
        """Returns the engine pods of a service that are not going."""
        selector = f"serving.octavo.dev/service={service},app.kubernetes.io/component=engine"
        pods = self.node.kubectl.list("pods", namespace=namespace, selector=selector)
        return [p for p in pods if not p["metadata"].get("deletionTimestamp")]

    def story(self, namespace: str) -> str:
        """Returns what kubectl tells of the services of a namespace."""
        kubectl = self.node.kubectl
        return kubectl("get", "ois,pods", namespace=namespace) + kubectl(
            "describe", "ois", namespace=namespace
        )


class Load:
    """Requests of some clients, one after the other, until told to stop.

    Args:
        platform: who is asked.
        bodies: what is asked in turn.
        clients: how many ask at the same time.
    """

    def __init__(self, platform: Platform, bodies: Sequence[dict[str, Any]], clients: int) -> None:
        self._platform = platform
        self._bodies = bodies
        self._clients = clients
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main)
        self.answers: list[tuple[int, Answer]] = []

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _main(self) -> None:
        url = self._platform.url

        async def client(session: aiohttp.ClientSession, number: int) -> None:
            while not self._stop.is_set():
                which = number % len(self._bodies)
                self.answers.append((which, await ask(session, url, self._bodies[which])))
                number += self._clients

        self._platform.run(
            lambda session: asyncio.gather(*(client(session, n) for n in range(self._clients)))
        )

    def failures(self, expected: Sequence[object]) -> list[str]:
        """Returns what is not as in an undisturbed run."""
        return [
            f"{which}: {answer.status} {answer.error or 'another answer or cut off'}"
            for which, answer in self.answers
            if not answer.ok or answer.content != expected[which]
        ]
