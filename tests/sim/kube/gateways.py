"""What the gateways say of themselves when operators ask for their /state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from tests.sim.kube.api_model import ApiModel

from octavo.operator import names, pods
from octavo.operator.cluster import Key
from octavo.operator.kinds import ENDPOINT_SLICE, POD, Manifest, object_of

SERVICE = Key("octavo", "octavo-gateway")


class Gateways:
    """All gateways of a run; each is an address in one EndpointSlice.

    Args:
        model: the API server's objects.
        number: of gateways.
        now: the loop's clock.
    """

    def __init__(self, model: ApiModel, number: int, now: Callable[[], float]) -> None:
        self.silent: set[str] = set()
        self.failed: set[str] = set()
        """UIDs of the engines that they saw fail."""
        self.are_cut_off = False
        """Whether they have lost all engines, which serve on."""
        self.demand: dict[str, int] = {}
        """Requests by service."""
        self._model, self._now = model, now
        self._names = [f"gateway{n}" for n in range(number)]
        self._draining: list[str] = []
        """Those that were replaced and have streams yet."""
        self._began = dict.fromkeys(self._names, now())
        self._num_made = number
        self.publish()

    def publish(self) -> None:
        """Says which gateways there are."""
        slice_ = object_of(
            ENDPOINT_SLICE,
            {
                "name": SERVICE.name,
                "namespace": SERVICE.namespace,
                "labels": {"kubernetes.io/service-name": SERVICE.name},
            },
            addressType="FQDN",
            endpoints=[
                {"addresses": [name], "conditions": {"ready": name in self._names}}
                for name in (*self._names, *self._draining)
            ],
            ports=[{"name": "status", "port": 8081}],
        )
        self._model.apply(ENDPOINT_SLICE, slice_, manager="kubernetes")

    def renew(self, name: str) -> None:
        """One is replaced by another of a new name, and drains."""
        if name in self._names:
            new = f"gateway{self._num_made}"
            self._names[self._names.index(name)] = new
            self._draining.append(name)
            self._began[new] = self._now()
            self._num_made += 1
            self.publish()

    def heal(self) -> None:
        self.silent.clear()
        self.failed.clear()
        self.are_cut_off = False
        self._draining.clear()
        self.publish()

    def client(self) -> httpx.AsyncClient:
        """Returns a client that reaches them."""
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer), trust_env=False)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(30.0 if request.url.host in self.silent else 0.002)
        return httpx.Response(200, content=msgspec.json.encode(self._state(request.url.host)))

    def _state(self, gateway: str) -> dict[str, Any]:
        engines = [
            engine
            for pod in self._model.list(POD, labels={names.SERVICE_LABEL: None}).items
            if (engine := self._engine(pod)) is not None
        ]
        services = [
            {
                "service": service, "in_flight": count, "held": 0 if engines else count,
                "queue_s": 5.0 * count, "wanted_age_s": 0.0 if count else None,
            }
            for service, count in self.demand.items()
        ]  # fmt: skip
        return {
            "gateway": gateway, "uptime_s": self._now() - self._began[gateway], "engines": engines,
            "services": services,
        }  # fmt: skip

    def _engine(self, pod: Manifest) -> dict[str, Any] | None:
        meta = pod["metadata"]
        if not pods.has(pod, "ContainersReady"):
            return None
        state = "draining" if pods.is_going(pod) else "ready"
        if meta["uid"] in self.failed:
            state = "failed"
        elif self.are_cut_off:
            state = "lost"
        return {
            "uid": meta["uid"], "pod": meta["name"], "state": state, "routable": state == "ready",
            "service": f"{meta['namespace']}/{meta['labels'][names.SERVICE_LABEL]}",
        }  # fmt: skip
