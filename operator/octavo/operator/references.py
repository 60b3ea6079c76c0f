"""The data that services take from Secrets and ConfigMaps, as hashes; the data itself is not kept.

Of a certificate its end is kept as well.

Objects are read one by one, by name: an operator that may list Secrets may read all of them. What
was read counts for a while, so that services that share a Secret share its reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from octavo.operator.cluster import Cluster, ClusterError, Key
from octavo.operator.kinds import CONFIG_MAP, SECRET
from octavo.operator.observed import Reference, certificate_end, digest

log = structlog.get_logger(__name__)

KEPT_S: Final = 600.0
"""How long a reading that nobody asks for is kept."""

_KINDS: Final = {"Secret": SECRET, "ConfigMap": CONFIG_MAP}


@dataclass(frozen=True, slots=True)
class _Reading:
    """One reference as it was read."""

    at: float
    digest: str | None
    ends: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of some references; each has a digest or is unread."""

    digests: dict[Reference, str | None]
    """Hash of the data of each, None for what does not exist."""
    ends: dict[Reference, float]
    """Unix time at which those of them end that are certificates."""
    unread: dict[Reference, str]
    """Why the others could not be read."""


class References:
    """Reads what services refer to.

    Args:
        cluster: has the objects.
        fresh_s: how long a reading counts; less than the time between two looks at a service.
        now: the loop's clock.
    """

    def __init__(self, cluster: Cluster, *, fresh_s: float, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._fresh_s = fresh_s
        self._now = now
        self._readings: dict[tuple[str, Reference], _Reading] = {}

    async def read(self, namespace: str, wanted: Iterable[Reference]) -> Known:
        """Returns what is known of references; what cannot be read now keeps its former hash."""
        wanted = tuple(wanted)
        failed: dict[tuple[str, str], str] = {}
        stale = [r for r in wanted if not self._is_fresh(namespace, r)]
        for kind, name in dict.fromkeys((r.kind, r.name) for r in stale):
            try:
                found = await self._cluster.get(_KINDS[kind], Key(namespace, name))
            except ClusterError as error:
                failed[kind, name] = error.message
                log.warning(
                    "reference_not_read",
                    kind=kind,
                    name=name,
                    namespace=namespace,
                    reason=error.message,
                )
                continue
            for reference in stale:
                if (reference.kind, reference.name) == (kind, name):
                    ends = certificate_end(reference, found)
                    reading = _Reading(self._now(), digest(reference, found), ends)
                    self._readings[namespace, reference] = reading
        known = {r: self._readings.get((namespace, r)) for r in wanted}
        read = {r: reading for r, reading in known.items() if reading is not None}
        return Known(
            digests={r: reading.digest for r, reading in read.items()},
            ends={r: reading.ends for r, reading in read.items() if reading.ends is not None},
            unread={r: failed[r.kind, r.name] for r, reading in known.items() if reading is None},
        )

    def prune(self) -> None:
        """Forgets what nobody asks for any more."""
        oldest = self._now() - KEPT_S
        self._readings = {k: r for k, r in self._readings.items() if r.at > oldest}

    def _is_fresh(self, namespace: str, reference: Reference) -> bool:
        reading = self._readings.get((namespace, reference))
        return reading is not None and self._now() - reading.at < self._fresh_s
