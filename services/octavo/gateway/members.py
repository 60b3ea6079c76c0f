"""The engines that there are: each gets a replica, which follows it through its life.

    found        a replica, its connection and its tasks
    terminating  no new attempts
    gone         the same; its tasks end with the last attempt, unless it comes back

Another pod at the same address is another engine: nothing of the old one is used for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from octavo.gateway.discovery import Endpoint, Key
from octavo.gateway.replica import Replica

Connect = Callable[[Endpoint, Callable[[], None]], Replica]
"""Makes the replica of an endpoint, and gives it what to call when it may have become ready."""

FORGET_S: Final = 60.0
"""How long the figures of an engine that is gone are kept, so that they are scraped once more."""


@dataclass(slots=True, kw_only=True)
class _Member:
    replica: Replica
    task: asyncio.Task[None]
    farewell: asyncio.Task[None] | None = None
    """Ends it; there since it is gone."""


class Members:
    """The engines of one gateway.

    Args:
        connect: makes their replicas.
        on_ready: called with the service of one that may have become ready.
        forget: drops the figures of an engine's name.
    """

    def __init__(
        self, connect: Connect, *, on_ready: Callable[[str], None], forget: Callable[[str], None]
    ) -> None:
        self._connect = connect
        self._on_ready = on_ready
        self._forget = forget
        self._members: dict[Key, _Member] = {}
        self._by_service: dict[str, list[Replica]] = {}

    def all(self) -> list[Replica]:
        """Returns every engine, in the order in which they were found."""
        return [member.replica for member in self._members.values()]

    def of(self, service: str) -> Sequence[Replica]:
        """Returns the engines of a service; of an empty name, those that belong to none."""
        return self._by_service.get(service, ())

    def update(self, endpoints: Iterable[Endpoint], tasks: asyncio.TaskGroup) -> None:
        """Follows what there is now; replicas run in the group of tasks."""
        present = {endpoint.key: endpoint for endpoint in endpoints}
        for key, member in self._members.items():
            endpoint = present.get(key)
            member.replica.leave(endpoint is None or endpoint.terminating)
            if endpoint is None and member.farewell is None:
                member.farewell = tasks.create_task(self._see_off(key, member))
            elif endpoint is not None and member.farewell is not None:
                member.farewell.cancel()
                member.farewell = None
        for key, endpoint in present.items():
            if key not in self._members and not endpoint.terminating:
                self._add(endpoint, tasks)

    def _add(self, endpoint: Endpoint, tasks: asyncio.TaskGroup) -> None:
        replica = self._connect(endpoint, lambda: self._on_ready(endpoint.service))
        task = tasks.create_task(replica.run())
        self._members[endpoint.key] = _Member(replica=replica, task=task)
        self._by_service.setdefault(endpoint.service, []).append(replica)

    async def _see_off(self, key: Key, member: _Member) -> None:
        """Ends an engine that is gone when nothing runs there any more."""
        replica = member.replica
        await replica.table.emptied()
        member.task.cancel()
        del self._members[key]
        service = replica.endpoint.service
        self._by_service[service].remove(replica)
        if not self._by_service[service]:
            del self._by_service[service]
        loop = asyncio.get_running_loop()
        loop.call_later(FORGET_S, self._forget_unless_back, replica.name)

    def _forget_unless_back(self, name: str) -> None:
        if all(replica.name != name for replica in self.all()):
            self._forget(name)
