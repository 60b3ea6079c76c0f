"""Store over Redis or Valkey: the only module of the gateway that knows the redis client.

What a request waits for has 50 ms and no retries: the client's own defaults are 5 s and ten.
Writes behind its back have a little more. After a failure a breaker leaves the server alone for a
while, so that an outage costs its callers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence

import redis.asyncio as redis
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from octavo.gateway.store import Item, StoreUnavailableError
from octavo.runtime.failpoint import failpoint
from octavo.runtime.settings import MASK
from octavo.v1.errors import BAD_SETTING, OctavoError

log = structlog.get_logger(__name__)

DEADLINE_S = 0.05
WRITE_DEADLINE_S = 0.25
"""A pipeline of 100 records takes 10 ms of this process on a busy laptop."""
MAX_CONNECTIONS = 4
WAIT_S = 1.0
"""How long a write waits for a connection: hundreds of others take their turns in that time."""
FIRST_REST_S = 0.25
LAST_REST_S = 4.0

_NO_ADDRESS = (
    "is no address of a Redis: it begins with redis://, rediss:// or unix://, has only options that"
    " the client knows, and special characters of a password are written as %XX"
)

_FAILURES = (RedisError, OSError, RuntimeError)
"""RuntimeError is what uvloop raises for a write to a connection that was reset a moment ago."""


@contextlib.contextmanager
def _heeding_cancel() -> Iterator[None]:
    """A context in which no cancellation gets lost: the client turns some into other errors."""
    task = asyncio.current_task()
    assert task is not None, "the store is used by tasks"
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


@contextlib.asynccontextmanager
async def _deadline(seconds: float) -> AsyncGenerator[None, None]:
    """A timeout that does not count the time for which this process's own loop stood still."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    async with asyncio.timeout(None) as scope:

        def due() -> None:
            late = loop.time() - end
            scope.reschedule(loop.time() + late)

        timer = loop.call_at(end, due)
        try:
            yield
        finally:
            timer.cancel()


class Breaker:
    """Whether a server that failed may be tried again. Pure: told the time by its caller."""

    def __init__(self) -> None:
        self._rest_s = 0.0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the last try failed."""
        return self._rest_s > 0

    def allow(self, now: float) -> bool:
        """Tells whether to try; while open, once after each rest."""
        if now < self._until:
            return False
        if self.is_open:
            self._until = now + self._rest_s
        return True

    def succeeded(self) -> None:
        """Closes it."""
        self._rest_s = self._until = 0.0

    def failed(self, now: float) -> None:
        """Opens it, for twice as long as the last time."""
        self._rest_s = min(LAST_REST_S, self._rest_s * 2 or FIRST_REST_S)
        self._until = now + self._rest_s


class RedisStore:
    """Values in Redis.

    Args:
        url: redis://, rediss:// or unix:// address.
        deadline_s: of a short command.

    Raises:
        OctavoError: BAD_SETTING when the address cannot be understood.
    """

    def __init__(self, url: str, *, deadline_s: float = DEADLINE_S) -> None:
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=deadline_s,
                socket_timeout=WRITE_DEADLINE_S,
                socket_connect_timeout=WRITE_DEADLINE_S,
                retry=Retry(NoBackoff(), 0),
            )
            # Connects to nothing yet, and refuses unknown options.
            pool.make_connection()  # type: ignore[no-untyped-call]
        except (ValueError, TypeError, RedisError):
            # What the client says of an address quotes it, and any part may belong to a password.
            raise OctavoError(
                BAD_SETTING, key="redis", value=MASK, origin="settings", reason=_NO_ADDRESS
            ) from None
        self._client = redis.Redis(connection_pool=pool)
        self._deadline_s = deadline_s
        self._free = asyncio.Semaphore(MAX_CONNECTIONS)
        self.breaker = Breaker()

    async def put_many(self, items: Sequence[Item]) -> None:
        """See Store."""
        failpoint("store.write")
        async with self._turn(WAIT_S):
            try:
                async with (
                    _deadline(WRITE_DEADLINE_S),
                    self._client.pipeline(transaction=False) as pipe,
                ):
                    for item in items:
                        pipe.set(item.key, item.value, ex=item.ttl_s)
                    with _heeding_cancel():
                        await pipe.execute()
            except _FAILURES as error:
                raise await self._failed(error) from error
            self._succeeded()

    async def get(self, key: str, *, patient: bool = False) -> bytes | None:
        """See Store; a value of another type counts as none."""
        failpoint("store.read")
        value = await self._ask("GET", key, patient=patient)
        return value if isinstance(value, bytes) else None

    async def put_if_absent(self, item: Item) -> bool:
        """See Store."""
        failpoint("store.write")
        words = ("SET", item.key, item.value, "NX", "EX", item.ttl_s)
        return bool(await self._ask(*words))

    async def renew(self, key: str, ttl_s: int) -> bool:
        """See Store."""
        failpoint("store.write")
        return bool(await self._ask("EXPIRE", key, ttl_s, deadline_s=WRITE_DEADLINE_S))

    async def close(self) -> None:
        """See Store."""
        await self._client.aclose(close_connection_pool=True)

    async def _ask(
        self, *words: str | bytes | int, patient: bool = True, deadline_s: float | None = None
    ) -> object:
        """Runs one short command."""
        async with self._turn(WAIT_S if patient else self._deadline_s):
            try:
                async with _deadline(deadline_s or self._deadline_s):
                    with _heeding_cancel():
                        value: object = await self._client.execute_command(*words)  # type: ignore[no-untyped-call]
            except ResponseError as error:
                if str(error).startswith("WRONGTYPE"):
                    return None
                raise await self._failed(error) from error
            except _FAILURES as error:
                raise await self._failed(error) from error
            self._succeeded()
            return value

    @contextlib.asynccontextmanager
    async def _turn(self, wait_s: float) -> AsyncGenerator[None, None]:
        """A context with a connection to spare; that others are busy is no fault of the server."""
        try:
            async with asyncio.timeout(wait_s):
                await self._free.acquire()
        except TimeoutError as error:
            raise StoreUnavailableError("its connections are busy") from error
        try:
            self._admit()
            yield
        finally:
            self._free.release()

    def _admit(self) -> None:
        if not self.breaker.allow(asyncio.get_running_loop().time()):
            raise StoreUnavailableError("the store failed a moment ago")

    def _succeeded(self) -> None:
        if self.breaker.is_open:
            log.info("store_back")
        self.breaker.succeeded()

    async def _failed(self, error: Exception) -> StoreUnavailableError:
        if not self.breaker.is_open:
            log.warning("store_away", error=type(error).__name__)
        self.breaker.failed(asyncio.get_running_loop().time())
        # After a fail-over the old connections still lead to a server that is read-only now. One
        # that cannot even be closed in time is forgotten, which is all that is wanted.
        with contextlib.suppress(*_FAILURES):
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return StoreUnavailableError(type(error).__name__)
