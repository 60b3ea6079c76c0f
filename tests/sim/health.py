"""When each part was not well, so that a failed request can be told from an excused one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from tests.sim.history import History, Try
from tests.sim.options import Options

RECOVERY_S = 6.0
"""Until a part that is well again must be of use: suspicion, reconnecting, resending."""

DRAINING, QUEUE_FULL, ENGINE_FAILURE, DEADLINE, SLOW_CLIENT, REQUEST_FAILED = (
    "OCT-2005",
    "OCT-2002",
    "OCT-2003",
    "OCT-2006",
    "OCT-2008",
    "OCT-5001",
)
_AWAY = ("OCT-2001", QUEUE_FULL, ENGINE_FAILURE, "OCT-2004", DRAINING, DEADLINE)


class Health:
    """Intervals in which an engine, a gateway or a pair of both was not well."""

    def __init__(
        self,
        history: History,
        options: Options,
        engines: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        self._history = history
        self._options = options
        self._engines = engines
        self._clock = clock
        self._since: dict[tuple[str, str], float] = {}
        self._past: dict[str, list[tuple[float, float]]] = {}

    def mark(self, thing: str, what: str, *, ill: bool) -> None:
        """Notes that something is wrong with a thing, or is not any more."""
        since = self._since.pop((thing, what), None)
        if ill:
            self._since[thing, what] = self._clock() if since is None else since
        elif since is not None:
            self._past.setdefault(thing, []).append((since, self._clock()))

    def well(self, thing: str) -> None:
        """Everything is over: a new process at its place."""
        for name, what in list(self._since):
            if name == thing:
                self.mark(name, what, ill=False)

    def forget(self) -> None:
        """Forgets the start, which is nobody's fault."""
        self._past.clear()

    def steady(self, engine: str, gateway: str, began: float, ended: float) -> bool:
        """Whether the gateway could use the engine all the time."""
        things = (engine, gateway, f"{gateway}>{engine}", f"{engine}>{gateway}")
        if any(since <= ended for (name, _), since in self._since.items() if name in things):
            return False
        return not any(
            start <= ended and end + RECOVERY_S >= began
            for thing in things
            for start, end in self._past.get(thing, ())
        )

    def any_fault(self, kind: str, began: float, ended: float) -> bool:
        """Whether a fault of this kind happened while something ran."""
        return any(k == kind and began - 1.0 <= at <= ended for at, k, _ in self._history.faults)

    def excused(self, attempt: Try) -> set[str]:
        """Returns the errors that a try may end with."""
        spec, options = attempt.spec, self._options
        codes: set[str] = set()
        took_s = attempt.ended - attempt.began
        if spec.timeout_s and (spec.key or took_s >= spec.timeout_s - 0.2):
            codes.add(DEADLINE)  # of whoever came first with the key
        if spec.stall_after is not None or options.small_buffers:
            codes.add(SLOW_CLIENT)
        if options.max_queued_requests < 100:
            codes.update(_AWAY)
        lately = (attempt.began - 10.0, attempt.ended)
        if any(self.any_fault(kind, *lately) for kind in ("gateway_drain", "drain")):
            codes.add(DRAINING)  # of an engine: when the budget of retries is spent
        ends = (attempt.began, attempt.ended)
        if not any(self.steady(e, attempt.gateway, *ends) for e in self._engines):
            codes.update(_AWAY)
        if self._losses(attempt) >= 2:
            codes.update((ENGINE_FAILURE, REQUEST_FAILED))
            self._history.quarantined.add(spec.name)
        broken = not self._history.broken.isdisjoint(self._history.ids(attempt))
        if broken or spec.name in self._history.quarantined:
            codes.add(REQUEST_FAILED)
        return codes

    def _losses(self, attempt: Try) -> int:
        """How often the engine of a try may have been lost: silent once, and dead once."""
        lost = Counter(
            (s.engine, s.epoch)
            for name in self._history.ids(attempt)
            for s in self._history.sent.get(name, ())
            if not self.steady(s.engine, s.gateway, s.at, attempt.ended)
        )
        died = {(d.engine, d.epoch) for d in self._history.deaths}
        return sum(min(count, 2) if life in died else 1 for life, count in lost.items())
