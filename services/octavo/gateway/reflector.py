"""Objects of one kind as the API server has them: listed, then watched for a minute, for ever.

A list every minute heals whatever a watch has missed or not said: a stream that went silent, a
history that is gone (410). While the API server is away, what was known last stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Generic, Protocol, TypeVar

import httpx2 as httpx
import msgspec
import structlog
from lightkube.core.exceptions import ConfigError

from octavo.runtime.client_errors import text_of

log = structlog.get_logger(__name__)

WATCH_S: Final = 60
"""How long a watch lasts at most, by the server's word. Each lasts a little less, so that gateways
which were started together do not list together."""

SILENCE_S: Final = 10
"""How much longer before the server is not believed to keep its word."""

AT_ONCE_S: Final = 1.0
"""A watch that ends sooner is a failure: list and watch must not spin."""

ANSWER_S: Final = 30.0
CONNECT_S: Final = 5.0
FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 15.0

FORBIDDEN: Final = 403
GONE: Final = 410


class _Metadata(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


class Reflected(Protocol):
    """What a reflector needs of an object."""

    @property
    def metadata(self) -> _Metadata:
        """Names it."""
        ...


T = TypeVar("T", bound=Reflected)


class _ListMetadata(msgspec.Struct):
    resourceVersion: str  # noqa: N815


class _Listed(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""


class _InterruptedError(Exception):
    """The API server said what ends a watch."""


_FAILURES = (
    *(httpx.HTTPError, httpx.InvalidURL, ConfigError, OSError, TimeoutError),
    *(msgspec.DecodeError, _InterruptedError),
)


class Reflector(Generic[T]):
    """The objects of one kind in one namespace, or in all.

    Args:
        path: of the list, without a leading slash.
        shape: what is read of an object.
        selector: label selector; empty takes all.
        connect: opens a client; whatever has changed on disk is read anew.
        uniform: draws between two numbers, for pauses.
        on_change: called when there is something new.
    """

    def __init__(
        self,
        path: str,
        shape: type[T],
        *,
        selector: str,
        connect: Callable[[], AbstractAsyncContextManager[httpx.AsyncClient]],
        uniform: Callable[[float, float], float],
        on_change: Callable[[], None],
    ) -> None:
        self.synced = False
        """Whether the objects were ever known."""
        self.is_away = False
        """Whether the API server failed when it was last asked."""
        self.is_refused = False
        """Whether it said then that we may not ask; so it does when the namespace is gone."""
        self._path = path
        self._shape = shape
        self._selector = {"labelSelector": selector} if selector else {}
        self._connect = connect
        self._uniform = uniform
        self._on_change = on_change
        self._objects: dict[tuple[str, str], T] = {}

    @property
    def objects(self) -> Iterable[T]:
        """Those that are known."""
        return self._objects.values()

    async def run(self) -> None:
        """Follows the API server until cancelled."""
        failures = 0
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        version = await self._list(client)
                        await self._watch(client, version)
                        failures = 0
            except _FAILURES as error:
                self._failed(error)
            span = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(failures, 10))
            await asyncio.sleep(span * self._uniform(0.5, 1.0))
            failures += 1

    async def _list(self, client: httpx.AsyncClient) -> str:
        async with asyncio.timeout(ANSWER_S):
            answer = await client.get(self._path, params=self._selector)
        answer.raise_for_status()
        listed = msgspec.json.decode(answer.content, type=_Listed)
        read = filter(None, map(self._read, listed.items or ()))
        self._objects = {_key(one): one for one in read}
        if self.is_away:
            log.info("api_server_is_back", path=self._path)
        self.synced, self.is_away, self.is_refused = True, False, False
        self._on_change()
        return listed.metadata.resourceVersion

    async def _watch(self, client: httpx.AsyncClient, version: str) -> None:
        """Follows changes; returns when it is time to list again."""
        loop = asyncio.get_running_loop()
        began, last_s = loop.time(), int(WATCH_S * self._uniform(0.75, 1.0))
        params: Mapping[str, str] = {
            **self._selector,
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(last_s),
        }
        patience = httpx.Timeout(ANSWER_S, connect=CONNECT_S, read=None)
        async with (
            asyncio.timeout(last_s + SILENCE_S),
            client.stream("GET", self._path, params=params, timeout=patience) as answer,
        ):
            if answer.status_code != GONE:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    if not self._take(line):
                        break
        if loop.time() - began < AT_ONCE_S:
            raise _InterruptedError("the watch ended at once")

    def _take(self, line: str) -> bool:
        """Takes an event; returns whether the watch can go on."""
        event = msgspec.json.decode(line, type=_Event)
        if event.type == "ERROR":
            status = msgspec.json.decode(event.object, type=_Status)
            if status.code != GONE:
                raise _InterruptedError(status.message)
            return False
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            return True
        if (one := self._read(event.object)) is None:
            return True
        if event.type == "DELETED":
            self._objects.pop(_key(one), None)
        else:
            self._objects[_key(one)] = one
        self._on_change()
        return True

    def _read(self, raw: msgspec.Raw) -> T | None:
        try:
            return msgspec.json.decode(raw, type=self._shape)
        except msgspec.DecodeError as error:
            log.warning("object_unreadable", path=self._path, reason=str(error))
            return None

    def _failed(self, error: Exception) -> None:
        is_refused = (
            isinstance(error, httpx.HTTPStatusError) and error.response.status_code == FORBIDDEN
        )
        is_news = not self.is_away or (is_refused and not self.is_refused)
        say = log.warning if is_news else log.debug
        say("api_server_fails", path=self._path, reason=text_of(error))
        self.is_away, self.is_refused = True, is_refused
        if is_news:
            self._on_change()


def _key(one: Reflected) -> tuple[str, str]:
    return one.metadata.namespace, one.metadata.name
