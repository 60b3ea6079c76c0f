"""Which name means which service. Pure.

    NAMESPACE/RESOURCE        always works
    NAMESPACE/SERVED_NAME     the oldest service of the namespace that claims it
    SERVED_NAME               the oldest service that claims it, of those that may be bare

So nobody takes a name from a service that is there. But one that is made anew is the youngest:
whoever claimed its name, too, has that name then. Where namespaces do not trust one another, none
should be bare: then what begins with a namespace is safe from all others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice

from octavo.gateway.discovery import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Names that a service claims and others, too."""

    lost: Mapping[str, str]
    """Each with the service that it means instead."""
    heirs: Mapping[str, str]
    """Each with the service that it means when this one is gone."""


class Directory:
    """The services of one moment.

    Args:
        services: in any order.
    """

    def __init__(self, services: Iterable[Service]) -> None:
        by_age = sorted(services, key=lambda service: (service.created_unix_s, service.id))
        self._services = {service.id: service for service in by_age}
        self._claims: dict[str, dict[str, Service]] = {}
        """By name: the services that claim it, by id; the first one has it."""
        for service in by_age:
            self._claim(service.id, service)
        for service in by_age:
            for name in service.names:
                self._claim(_qualified(service, name), service)
        for service in by_age:  # afterwards: a name with a slash takes none of another namespace
            for name in service.names if service.may_be_bare else ():
                self._claim(name, service)

    def __iter__(self) -> Iterator[Service]:
        """The services, oldest first."""
        return iter(self._services.values())

    def get(self, id: str) -> Service | None:
        """Returns a service."""
        return self._services.get(id)

    def find(self, name: str) -> Service | None:
        """Returns the service of a name; of no name, the only service, if it may be bare."""
        if name:
            return next(iter(self._claims.get(name, {}).values()), None)
        return next((s for s in self if s.may_be_bare), None) if len(self._services) == 1 else None

    def all_names(self) -> Collection[str]:
        """Returns every name that means something."""
        return self._claims.keys()

    def names(self, service: Service) -> tuple[str, ...]:
        """Returns one name for each that the service claims and has, bare where it can be."""
        spellings = ((name, _qualified(service, name)) for name in service.names)
        has = (next((n for n in both if self.find(n) is service), "") for both in spellings)
        return tuple(filter(None, dict.fromkeys(has))) or (service.id,)

    def contest(self, service: Service) -> Contest:
        """Returns which of its names, bare if it may be, other services claim, too."""
        lost: dict[str, str] = {}
        heirs: dict[str, str] = {}
        for claimed in service.names:
            name = claimed if service.may_be_bare else _qualified(service, claimed)
            first, second = islice(chain(self._claims[name], ("",)), 2)
            if first != service.id:
                lost[name] = first
            elif second:
                heirs[name] = second
        return Contest(lost=lost, heirs=heirs)

    def _claim(self, name: str, service: Service) -> None:
        self._claims.setdefault(name, {}).setdefault(service.id, service)


def _qualified(service: Service, name: str) -> str:
    return f"{service.namespace}/{name}"
