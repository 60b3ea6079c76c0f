"""Store over Redis or Valkey: the only module of the gateway that knows the redis client.

A read has 50 ms and no retries: the client's own defaults are 5 s and ten. Writes, for which nobody
waits, have a little more. After a failure a breaker leaves the server alone for a while, so that an
outage costs its callers nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import redis.asyncio as redis
import structlog
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from octavo.gateway.store import Item, StoreUnavailableError
from octavo.v1.errors import BAD_SETTING, OctavoError

log = structlog.get_logger(__name__)

DEADLINE_S = 0.05
WRITE_DEADLINE_S = 0.25
"""A pipeline of 100 records takes 10 ms of this process on a busy laptop."""
MAX_CONNECTIONS = 4
FIRST_REST_S = 0.25
LAST_REST_S = 4.0


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

    Raises:
        OctavoError: BAD_SETTING when the address cannot be understood.
    """

    def __init__(self, url: str) -> None:
        try:
            pool = redis.BlockingConnectionPool.from_url(
                url,
                max_connections=MAX_CONNECTIONS,
                timeout=DEADLINE_S,
                socket_timeout=WRITE_DEADLINE_S,
                socket_connect_timeout=WRITE_DEADLINE_S,
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise OctavoError(
                BAD_SETTING, key="redis", value="********", origin="settings", reason=str(error)
            ) from error
        self._client = redis.Redis(connection_pool=pool)
        self.breaker = Breaker()

    async def put_many(self, items: Sequence[Item]) -> None:
        """See Store."""
        self._admit()
        try:
            async with (
                asyncio.timeout(WRITE_DEADLINE_S),
                self._client.pipeline(transaction=False) as pipe,
            ):
                for item in items:
                    pipe.set(item.key, item.value, ex=item.ttl_s)
                await pipe.execute()
        except (RedisError, OSError) as error:
            raise await self._failed(error) from error
        self._succeeded()

    async def get(self, key: str) -> bytes | None:
        """See Store; a value of another type counts as none."""
        self._admit()
        try:
            async with asyncio.timeout(DEADLINE_S):
                value = await self._client.get(key)
        except ResponseError as error:
            if str(error).startswith("WRONGTYPE"):
                return None
            raise await self._failed(error) from error
        except (RedisError, OSError) as error:
            raise await self._failed(error) from error
        self._succeeded()
        return value if isinstance(value, bytes) else None

    async def close(self) -> None:
        """See Store."""
        await self._client.aclose(close_connection_pool=True)

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
        with contextlib.suppress(RedisError, OSError):
            await self._client.connection_pool.disconnect(inuse_connections=False)
        return StoreUnavailableError(type(error).__name__)
