"""Which name means which service. Pure.

    NAMESPACE/RESOURCE        always works
    NAMESPACE/SERVED_NAME     the oldest service of the namespace that claims it
    SERVED_NAME               the oldest service of all that claims it

So nobody can take a name from whoever has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial

from octavo.gateway.discovery import Service


class Directory:
    """The services of one moment.

    Args:
        services: in any order.
    """

    def __init__(self, services: Iterable[Service]) -> None:
        by_age = sorted(services, key=lambda service: (service.created_unix_s, service.id))
        self._services = {service.id: service for service in by_age}
        self._by_name = dict(self._services)
        for service in by_age:
            for name in service.names:
                self._by_name.setdefault(_qualified(service, name), service)
        for service in by_age:  # afterwards: a name with a slash takes none of another namespace
            for name in service.names:
                self._by_name.setdefault(name, service)

    def __iter__(self) -> Iterator[Service]:
        """The services, oldest first."""
        return iter(self._services.values())

    def get(self, id: str) -> Service | None:
        """Returns a service."""
        return self._services.get(id)

    def find(self, name: str) -> Service | None:
        """Returns the service of a name; of no name, the only service that there is."""
        if name:
            return self._by_name.get(name)
        return next(iter(self._services.values())) if len(self._services) == 1 else None

    def all_names(self) -> Collection[str]:
        """Returns every name that means something."""
        return self._by_name.keys()

    def names(self, service: Service) -> tuple[str, ...]:
        """Returns one name for each that the service claims and has, bare where it can be."""
        spellings = ((name, _qualified(service, name)) for name in service.names)
        has = (next(filter(partial(self._has, service), both), "") for both in spellings)
        return tuple(filter(None, dict.fromkeys(has))) or (service.id,)

    def _has(self, service: Service, name: str) -> bool:
        return self._by_name[name] is service


def _qualified(service: Service, name: str) -> str:
    return f"{service.namespace}/{name}"
