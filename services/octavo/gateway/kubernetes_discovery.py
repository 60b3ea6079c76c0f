"""Discovery of the pods of InferenceServices.

Two kinds of objects, of each namespace or of all, make together what was discovered, as soon as
each was listed once. A namespace that may not be listed, as one that was deleted, is not waited
for. Only this module and `reflector` know a cluster client. Serving needs the API server for
nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NoReturn

import httpx2 as httpx
import structlog
from lightkube.config.client_adapter import AsyncClient, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from octavo.gateway.discovery import Discovered
from octavo.gateway.kubernetes_objects import (
    ALL,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """One namespace, or all of them."""

    slices: Reflector[EndpointSlice]
    services: Reflector[InferenceService]

    @property
    def is_known(self) -> bool:
        """Whether both kinds were ever listed."""
        return self.slices.synced and self.services.synced

    @property
    def is_away(self) -> bool:
        """Whether the API server fails, and not because it refuses."""
        return any(r.is_away and not r.is_refused for r in (self.slices, self.services))

    @property
    def is_refused(self) -> bool:
        """Whether it may not be read."""
        return self.slices.is_refused or self.services.is_refused


class KubernetesDiscovery:
    """The engines of a cluster.

    Args:
        namespaces: where to look; empty looks everywhere.
        env: chance.
        bare_names: see `discovered`.

    Raises:
        OctavoError: BAD_SETTING where there is no way to a cluster.
    """

    def __init__(
        self, namespaces: Sequence[str], *, env: Env, bare_names: Sequence[str] = (ALL,)
    ) -> None:
        try:
            _config()
        except ConfigError as error:
            reason = f"there is neither a service account nor a KUBECONFIG: {error}"
            raise OctavoError(
                BAD_SETTING, key="discover", value="kubernetes", origin="gateway", reason=reason
            ) from error
        self._bare_names = bare_names
        self._changed = asyncio.Event()
        uniform = env.rng("api server").uniform
        self._scopes: list[_Scope] = []
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
            self._scopes.append(_Scope(slices=slices, services=services))

    @property
    def is_away(self) -> bool:
        """Whether the API server fails, so that what is known grows old."""
        return any(scope.is_away for scope in self._scopes)

    @property
    def num_refused(self) -> int:
        """Number of namespaces that may not be read; what is known of them grows old."""
        return sum(scope.is_refused for scope in self._scopes)

    async def run(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        """See Discovery."""
        async with asyncio.TaskGroup() as tasks:
            for scope in self._scopes:
                tasks.create_task(scope.slices.run())
                tasks.create_task(scope.services.run())
            await self._tell(on_found)

    async def _tell(self, on_found: Callable[[Discovered], None]) -> NoReturn:
        told: Discovered | None = None
        while True:
            await self._changed.wait()
            await asyncio.sleep(TOGETHER_S)
            self._changed.clear()
            known = [scope for scope in self._scopes if scope.is_known]
            if not known or any(not s.is_known and not s.is_refused for s in self._scopes):
                continue
            found = discovered(
                chain.from_iterable(scope.slices.objects for scope in known),
                chain.from_iterable(scope.services.objects for scope in known),
                self._bare_names,
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
