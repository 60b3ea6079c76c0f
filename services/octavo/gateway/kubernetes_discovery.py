"""Discovery of the pods of InferenceServices.

Two kinds of objects, of each namespace or of all, make together what was discovered, as soon as
each was listed once. Only this module and `reflector` know a cluster client. Serving needs the API
server for nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final, NoReturn

import httpx2 as httpx
import structlog
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from octavo.gateway.discovery import Discovered
from octavo.gateway.kubernetes_objects import (
    SERVICE_LABEL,
    EndpointSlice,
    InferenceService,
    discovered,
)
from octavo.gateway.reflector import ANSWER_S, CONNECT_S, Reflector
from octavo.runtime.env import Env
from octavo.v1.errors import BAD_SETTING, OctavoError

log = structlog.get_logger(__name__)

SLICES: Final = ("apis/discovery.k8s.io/v1", "endpointslices")
SERVICES: Final = ("apis/serving.octavo.dev/v1alpha1", "inferenceservices")

TOGETHER_S: Final = 0.05
"""Changes within so short a time are taken together: a rollout makes many."""


class KubernetesDiscovery:
    """The engines of a cluster.

    Args:
        namespaces: where to look; empty looks everywhere.
        env: chance.

    Raises:
        OctavoError: BAD_SETTING where there is no way to a cluster.
    """

    def __init__(self, namespaces: Sequence[str], *, env: Env) -> None:
        try:
            _config()
        except ConfigError as error:
            reason = f"there is neither a service account nor a KUBECONFIG: {error}"
            raise OctavoError(
                BAD_SETTING, key="discover", value="kubernetes", origin="gateway", reason=reason
            ) from error
        self._changed = asyncio.Event()
        uniform = env.rng("api server").uniform
        self._slices: list[Reflector[EndpointSlice]] = []
        self._services: list[Reflector[InferenceService]] = []
        for namespace in dict.fromkeys(namespaces) or ("",):
            slices = Reflector(
                _path(*SLICES, namespace),
                EndpointSlice,
                selector=SERVICE_LABEL,
                connect=_connect,
                uniform=uniform,
                on_change=self._changed.set,
            )
            services = Reflector(
                _path(*SERVICES, namespace),
                InferenceService,
                selector="",
                connect=_connect,
                uniform=uniform,
                on_change=self._changed.set,
            )
            self._slices.append(slices)
            self._services.append(services)
        self._reflectors: list[Reflector[EndpointSlice] | Reflector[InferenceService]]
        self._reflectors = [*self._slices, *self._services]

    @property
    def is_away(self) -> bool:
        """Whether the API server fails, so that what is known grows old."""
        return any(reflector.is_away for reflector in self._reflectors)

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """See Discovery."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._reflectors:
                tasks.create_task(reflector.run())
            await self._tell(on_found)

    async def _tell(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        told: Discovered | None = None
        while True:
            await self._changed.wait()
            await asyncio.sleep(TOGETHER_S)
            self._changed.clear()
            if not all(reflector.synced for reflector in self._reflectors):
                continue
            found = discovered(
                chain.from_iterable(r.objects for r in self._slices),
                chain.from_iterable(r.objects for r in self._services),
            )
            if found != told:
                engines, services = len(found.endpoints), len(found.services or ())
                log.info("engines_found", engines=engines, services=services)
                told = found
                on_found(found)


def _path(group: str, plural: str, namespace: str) -> str:
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


def _config() -> SingleConfig:
    config = KubeConfig.from_env().get()
    if config is None or config.user is None:
        raise ConfigError("it names no user")
    return config


def _connect() -> httpx.AsyncClient:
    """Opens a client: a token is read from its file, and again when it is refused."""
    params = ConnectionParams(timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S), trust_env=False)
    return AsyncClient(_config(), params)
