"""A release of the chart on a real node: our own images, and clients inside the node's network."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from tests.charts.rendering import CHART, PREVIOUS, VERSION, version_of
from tests.cluster.api import Object
from tests.cluster.binaries import program
from tests.cluster.builder import Builder
from tests.cluster.kubernetes import condition
from tests.cluster.node import ADDRESS, Node
from tests.faults.child_process import ROOT
from tests.faults.stream_client import Answer, ask

RELEASE = "octavo"
MODEL = "smollm2"
PARTS = ("operator", "gateway", "valkey")
IMAGES = {
    f"octavo/{target}:{version}": target
    for version, targets in (
        (VERSION, (*PARTS, "loader", "engine-smollm2")),
        # Of the version before the chart is kept and no image: today's go by their names.
        (version_of(PREVIOUS), PARTS),
    )
    for target in targets
}
RIGHTS = "roles,rolebindings"
WORKLOADS = "pods,services,deployments,replicasets,statefulsets,jobs,cronjobs,hpa"
TRACES = {
    "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{ADDRESS}:4317",
    "OTEL_BSP_SCHEDULE_DELAY": "500",
}
"""Variables of whoever tells spans to the collector."""
VALUES: Object = {
    "gateway": {"extraEnv": [{"name": k, "value": v} for k, v in TRACES.items()]},
    "networkPolicy": {"gatewayEgress": [{"ports": [{"port": 4317}]}]},
    # A rotated Secret is seen by the next listing.
    "operator": {"extraArgs": ["--resync-s=10"]},
}
API_PORT, STATUS_PORT = 8000, 8081
"""Of a gateway's pod; the operator's has the latter."""
ENGINE_STATUS_PORT = 9091
Result = TypeVar("Result")


def example(name: str) -> Object:
    """Returns the resource of an example file."""
    text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    found: Object = yaml.safe_load(text)
    return found


def bring_images(node: Node) -> None:
    """Builds all images that the tests use, and takes them to the node."""
    with Builder() as builder:
        for name, target in IMAGES.items():
            builder.build_image(name, ROOT / "Dockerfile", target=target)
        node.import_image(builder, *IMAGES)


def url_of(pod: Object, port: int = API_PORT) -> str:
    """Returns where a pod itself is asked, past its Service."""
    return f"http://{pod['status']['podIP']}:{port}"


class Platform:
    """One release of the chart on one node.

    Args:
        node: where it runs.
        home: helm's folder.
        namespace: of the release.
    """

    def __init__(self, node: Node, home: Path, namespace: str) -> None:
        self.node = node
        self.namespace = namespace
        self._home = home

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        """Runs helm and returns what it prints."""
        where = {
            "KUBECONFIG": str(self.node.kubeconfig),
            "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self._home),
            **{f"HELM_{kind}_HOME": str(self._home) for kind in ("CACHE", "CONFIG", "DATA")},
        }
        done = subprocess.run(
            self.node.inside([program("helm"), *arguments, "--namespace", self.namespace]),
            env=where, input=stdin, capture_output=True, text=True, check=False, timeout=300.0,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, values: Object, *flags: str, chart: Path = CHART) -> None:
        """Installs or upgrades the release and waits for its pods."""
        command = ("upgrade", "--install", RELEASE, str(chart), "--values", "-", *flags)
        self.helm(*command, "--wait", "--timeout", "4m", stdin=json.dumps(values))

    def uninstall(self, *others: str) -> list[str]:
        """Uninstalls the release; returns what is left when there has been time to go.

        Args:
            others: what is in the namespace besides the release.
        """
        self.helm("uninstall", RELEASE, "--wait")
        kinds = (
            f"{WORKLOADS},secrets,configmaps,leases,networkpolicies,pdb,serviceaccounts,{RIGHTS}"
        )
        given = ("kube-root-ca.crt", "default", *others)
        end = time.monotonic() + 120.0
        while True:
            found = self.node.kubectl.list(kinds, namespace=self.namespace)
            left = [n for each in found if (n := each["metadata"]["name"]) not in given]
            if not left or time.monotonic() > end:
                return left
            time.sleep(1.0)

    @property
    def url(self) -> str:
        """Of the gateway's Service."""
        name = f"{RELEASE}-gateway"
        found = self.node.kubectl.get("service", name, namespace=self.namespace)
        return f"http://{found['spec']['clusterIP']}:{found['spec']['ports'][0]['port']}"

    def run(self, scenario: Callable[[aiohttp.ClientSession], Awaitable[Result]]) -> Result:
        """Runs clients in the node's network."""

        async def whole() -> Result:
            timeout = aiohttp.ClientTimeout(total=300)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                return await scenario(session)

        return self.node.in_network(lambda: asyncio.run(whole()))

    def ask_all(
        self,
        bodies: Sequence[dict[str, Any]],
        *,
        url: str = "",
        headers: Sequence[Mapping[str, str]] = (),
        when_begun: Callable[[Answer], object] = lambda _: None,
    ) -> list[Answer]:
        """Sends requests at once and returns their answers.

        Args:
            bodies: what is asked.
            url: who is asked; whoever the Service chooses when it is empty.
            headers: more of them, for each request.
            when_begun: called once, when every answer has begun, with the one that was the last
                to; the clients read on afterwards.
        """
        url = url or self.url
        waiting = len(bodies)

        def begun(answer: Answer) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting == 0:
                when_begun(answer)

        each = zip(bodies, headers or [{}] * len(bodies), strict=True)
        return self.run(
            lambda session: asyncio.gather(
                *(ask(session, url, body, more, on_first=begun) for body, more in each)
            )
        )

    def get_from_each(self, path: str, *, port: int = API_PORT) -> list[Any]:
        """Returns the JSON of a page of each gateway."""
        urls = [f"{url_of(pod, port)}{path}" for pod in self.pods("gateway")]
        return self.run(lambda session: asyncio.gather(*(_json(session, url) for url in urls)))

    def finished_records(self, request: str) -> list[Any]:
        """Returns what each gateway knows of a request, once all know that it is finished."""
        end = time.monotonic() + 60.0
        while True:
            found = self.get_from_each(f"/v1/requests/{request}")
            if all(record.get("state") == "finished" for record in found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.1)

    def states(self) -> list[Any]:
        """Returns what each gateway says of engines and demand."""
        return self.get_from_each("/state", port=STATUS_PORT)

    def until_state(self, engine: Object, state: str) -> None:
        """Waits until all gateways say that of an engine's pod, such as that it is `ready`."""
        name, end = engine["metadata"]["name"], time.monotonic() + 60.0
        while True:
            states = self.states()
            found = [e for each in states for e in each["engines"] if e["pod"] == name]
            if [engine["state"] for engine in found] == [state] * len(states):
                return
            assert time.monotonic() < end, found
            time.sleep(0.2)

    def metric(self, pod: Object, name: str, *, port: int = ENGINE_STATUS_PORT) -> float:
        """Returns the sum over all labels of a metric of a pod: an engine's, or name its port."""
        url = url_of(pod, port) + "/metrics"
        rows = self.run(lambda session: _text(session, url)).splitlines()
        return sum(float(row.rpartition(" ")[2]) for row in rows if row.startswith(f"{name}{{"))

    def until_looked_at(self, count: int) -> None:
        """Waits until the operator has looked at so many services since it started."""
        name, end = "octavo_operator_reconciles_total", time.monotonic() + 60.0
        (operator,) = self.pods("operator")
        while (found := self.metric(operator, name, port=STATUS_PORT)) < count:
            assert time.monotonic() < end, found
            time.sleep(0.2)

    def until_restarted(self, pod: Object) -> None:
        """Waits until the only container of a pod has come back after its death and is ready."""
        (old,) = pod["status"]["containerStatuses"]

        def is_back(found: Object) -> bool:
            (new,) = found["status"]["containerStatuses"]
            is_new = new["restartCount"] > old["restartCount"]
            return is_new and condition(found, "Ready") == "True"

        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self.node.kubectl.until(is_back, "pod", name, namespace=namespace, timeout_s=120.0)

    def pods(self, part: str) -> list[Object]:
        """Returns the pods of a part of the release that are not going."""
        selector = f"app.kubernetes.io/component={part},app.kubernetes.io/instance={RELEASE}"
        return self.node.live_pods(self.namespace, selector)

    def restart(self, part: str) -> None:
        """Has a part's pods replaced as `kubectl rollout restart` does; returns when they are."""
        kubectl, name = self.node.kubectl, f"deployment/{RELEASE}-{part}"
        kubectl("rollout", "restart", name, namespace=self.namespace)
        flags = ("rollout", "status", name, "--timeout=120s")
        kubectl(*flags, namespace=self.namespace, timeout_s=130.0)

    def kill(self, part: str) -> None:
        """kill -9 of a part, and its pod is gone too; returns when another one is ready."""
        kubectl = self.node.kubectl
        old = self.pods(part)
        for pod in old:
            self.node.kill_container(pod)
            flags = ("delete", "pod", pod["metadata"]["name"], "--grace-period=0", "--force")
            kubectl(*flags, namespace=self.namespace)
        end = time.monotonic() + 120.0
        while True:
            new = [p for p in self.pods(part) if p["metadata"]["uid"] not in uids(old)]
            if len(new) == len(old) and all(condition(p, "Ready") == "True" for p in new):
                return
            assert time.monotonic() < end, new
            time.sleep(0.2)


async def _text(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as answer:
        return await answer.text()


async def _json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as answer:
        return await answer.json()


def uids(pods: Sequence[Object]) -> set[str]:
    """Returns which pods they are."""
    return {pod["metadata"]["uid"] for pod in pods}
