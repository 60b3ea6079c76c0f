"""The one path from whatever happens to what is written: observe, reconcile, execute.

    notice      a watch told of an object        ┐
    resync      a listing found one changed      ├─> queue ─> observe ─> reconcile ─> execute
    poll        a gateway says something new     │
    requeue     time alone may change the plan   ┘

Services are worked on side by side, each by one worker at a time; one that fails comes again later
and later, and holds up no other. Nor does a namespace that may not be listed. Knows the cluster as
a port only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from octavo.operator import spec
from octavo.operator.cluster import (
    Cluster,
    ClusterError,
    ConflictError,
    FailedError,
    Key,
    MissingError,
    RefusedError,
    UnavailableError,
)
from octavo.operator.config import OperatorConfig
from octavo.operator.execution import Executor
from octavo.operator.gateway_reports import GatewayReports
from octavo.operator.kinds import INFERENCE_SERVICE, OPTIONAL_KINDS, Kind, Manifest
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.mirror import WATCHED_KINDS, Mirror
from octavo.operator.names import SERVICE_LABEL
from octavo.operator.observed import Observed, Refusal
from octavo.operator.plan import warning
from octavo.operator.reconcile import reconcile
from octavo.operator.references import References
from octavo.operator.scopes import Scopes
from octavo.operator.work_queue import WorkQueue
from octavo.runtime.env import Env

log = structlog.get_logger(__name__)

SETTLE_S: Final = 0.1
"""After an event or a write, before the service is looked at: neither comes alone."""

FIRST_BACKOFF_S: Final = 0.5
MAX_BACKOFF_S: Final = 30.0

LASTING: Final = 5
"""Requests that the API server failed at, in a row, after which a service's status says so."""

COMPLAIN_EVERY: Final = 100
"""Refusals of a status in a row between two events about them: less than such an event is kept."""

SPREAD: Final = 0.5
"""Share of the time between two listings over which the looks at all services are spread."""


SCALE_S: Final = 5.0
"""Between two looks at services under load whose engines follow it."""

FRESH: Final = 0.4
"""Share of the time between two listings for which the reading of a Secret counts."""


class Controller:
    """All services of one operator.

    Args:
        cluster: where they live.
        config: what the operator was started with.
        reports: what the gateways say, None when there is no gateway.
        may_act: whether this operator is the one that writes.
        metrics: counts what happens.
        env: wall clock for time stamps, chance for backoff.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: OperatorConfig,
        *,
        reports: GatewayReports | None,
        may_act: Callable[[], bool],
        metrics: OperatorMetrics,
        env: Env,
    ) -> None:
        now = asyncio.get_running_loop().time
        self.mirror = Mirror()
        self.scopes = Scopes(config.scopes())
        self.queue: WorkQueue[Key] = WorkQueue(now)
        self.synced_at: float | None = None
        """When all objects were last listed, on the loop's clock; None before the first time."""
        self.beats: dict[str, float] = {}
        """When each loop last came round, whether it succeeded or not."""
        self._cluster = cluster
        self._config = config
        self._installation = config.installation()
        self._reports = reports
        self._metrics = metrics
        self._env = env
        self._chance = env.rng("operator")
        self._now = now
        self._references = References(cluster, fresh_s=config.resync_s * FRESH, now=now)
        self._executor = Executor(cluster, self.mirror, may_act=may_act, metrics=metrics, env=env)
        self._refusals: dict[Key, tuple[Refusal, ...]] = {}
        # Each in a row; apart, for an outage or a conflict says nothing of what comes after it.
        self._failures: Counter[Key] = Counter()
        self._failed: Counter[Key] = Counter()
        self._refused: Counter[Key] = Counter()
        self._rounds: Counter[Key] = Counter()

    def notice(self, kind: Kind, event: str, manifest: Manifest) -> None:
        """Takes in what a watch tells: an object that is there, or one that was DELETED."""
        take_in = self.mirror.lose if event == "DELETED" else self.mirror.see
        service = take_in(kind, manifest)
        if service is not None:
            self.queue.add(service, SETTLE_S)

    async def start(self) -> None:
        """Waits until all that exists is known, however long the API server is away."""
        attempt = 0
        while not await self._is_known():
            await asyncio.sleep(self._backoff_s(attempt))
            attempt += 1
        log.info("operator_synced", services=len(tuple(self.mirror.services)))

    async def _is_known(self) -> bool:
        try:
            await self.sync()
        except ClusterError as error:
            log.warning("listing_failed", reason=error.message)
            return False
        if self._reports is not None:
            await self._reports.poll()
            return self._reports.are_known
        return True

    async def sync(self) -> None:
        """Lists all objects and has every service looked at: changed ones now, the rest by and by.

        Raises:
            ClusterError: not all could be listed, or no namespace may be.
        """
        is_first = self.synced_at is None
        refused: dict[str | None, str] = {}
        for scope in self.scopes.all:
            try:
                await self._list_all(scope, is_first=is_first)
            except RefusedError as error:
                refused[scope] = error.message
        self._judge({scope: reason for scope, reason in refused.items() if scope is not None})
        if len(refused) == len(self.scopes.all):
            raise RefusedError(next(iter(refused.values())))
        self.synced_at = self._now()
        self._add(self.mirror.services, spread_s=0 if is_first else self._config.resync_s * SPREAD)
        self._references.prune()

    def _judge(self, refused: Mapping[str, str]) -> None:
        """Leaves the namespaces that are closed, and begins with those that no longer are."""
        opened = self.scopes.update(refused)
        for namespace in refused:
            if not self.scopes.is_open(namespace):
                self.mirror.leave(namespace)
        self._add((s for s in self.mirror.services if s.namespace in opened), spread_s=0)

    async def _list_all(self, scope: str | None, *, is_first: bool) -> None:
        for kind in WATCHED_KINDS:
            missed = await self._list(kind, scope)
            self._add(missed, spread_s=0)
            self._metrics.missed.inc(0 if is_first else len(missed))

    async def _list(self, kind: Kind, namespace: str | None) -> set[Key]:
        labels = {} if kind is INFERENCE_SERVICE else {SERVICE_LABEL: None}
        try:
            listing = await self._cluster.list(kind, namespace, labels=labels)
        except MissingError:
            if kind not in OPTIONAL_KINDS:
                raise
            return self.mirror.not_served(kind)
        except RefusedError as error:
            if kind not in OPTIONAL_KINDS:
                raise
            log.warning("listing_refused", kind=kind.name, reason=error.message)
            return set()
        return self.mirror.replace(kind, namespace, listing)

    async def run_resync(self) -> None:
        """Lists all objects every so often, for ever."""
        self._beat("resync")
        attempt = 0
        while True:
            after_s = self._backoff_s(attempt) if attempt else self._config.resync_s
            await asyncio.sleep(after_s)
            try:
                await self.sync()
                attempt = 0
            except ClusterError as error:
                attempt += 1
                log.warning("listing_failed", reason=error.message)
            self._beat("resync")

    async def run_polls(self) -> None:
        """Asks the gateways every so often, for ever; returns at once where there are none."""
        if self._reports is None:
            return
        scaled_at = self._now()
        while True:
            await asyncio.sleep(self._config.gateway_poll_s)
            changed = await self._reports.poll()
            self._beat("gateways")
            if changed is None:
                self._add(self.mirror.services, spread_s=self._config.gateway_poll_s)
            else:
                self._add(changed, spread_s=0)
            if self._now() - scaled_at >= SCALE_S:
                scaled_at = self._now()
                self._add(filter(self._is_scaled, self._reports.busy()), spread_s=SCALE_S)

    def _is_scaled(self, service: Key) -> bool:
        """Tells whether the number of a service's engines follows its load."""
        spec = (self.mirror.resource(service) or {}).get("spec")
        return isinstance(spec, dict) and "autoscaling" in spec

    async def run_worker(self) -> None:
        """Works on services, one after the other, for ever."""
        while True:
            service = await self.queue.take()
            try:
                await self._work(service)
            finally:
                self.queue.done(service)
                self._beat("work")

    async def _work(self, service: Key) -> None:
        """Looks at a service; whatever goes wrong with it concerns only itself."""
        with self._metrics.reconcile_s.time():
            result, after_s = await self._look(service)
        self._metrics.reconciles.labels(result).inc()
        if after_s is not None:
            self.queue.add(service, after_s)

    async def _look(self, service: Key) -> tuple[str, float | None]:
        """Returns what came of a look, and when to look again."""
        try:
            after_s = await self.reconcile(service)
        except ConflictError as error:
            log.info("conflict", resource=str(service), reason=error.message)
            return "conflict", self._fail(service)
        except RefusedError as error:
            log.error("refused", resource=str(service), reason=error.message)
            self._failed.pop(service, None)
            await self._complain(service, error)
            return "refused", self._fail(service)
        except ClusterError as error:
            log.warning("cluster_error", resource=str(service), reason=error.message)
            self._failed[service] += isinstance(error, FailedError)
            retry_after_s = error.retry_after_s if isinstance(error, UnavailableError) else 0.0
            return "cluster_error", max(self._fail(service), retry_after_s)
        except Exception:
            # A fault of ours that one service brings to light must not cost the others theirs.
            log.exception("reconcile_failed", resource=str(service))
            return "failed", self._fail(service)
        self._failures.pop(service, None)
        return "done", after_s

    async def _complain(self, service: Key, error: RefusedError) -> None:
        """Tells by an event what no condition can: most likely the status is what was refused."""
        resource = self.mirror.resource(service)
        is_due = self._refused[service] % COMPLAIN_EVERY == 0
        self._refused[service] += 1
        if resource is not None and is_due:
            await self._executor.post((warning("Refused", error.message),), resource)

    async def reconcile(self, service: Key) -> float | None:
        """Brings one service nearer to what its resource says; returns when to look again.

        Raises:
            ClusterError: some of it could not be written; what was is observed next time.
        """
        resource = self.mirror.resource(service)
        if resource is None or not self.scopes.is_open(service.namespace):
            self._forget(service)
            return None
        known = self._refusals.get(service, ())
        observed = await self._observe(service, resource, known)
        if not self.scopes.is_open(service.namespace):
            return None  # closed meanwhile: what there is was forgotten, so nothing was observed
        plan = reconcile(observed, self._env.wall())
        is_lasting = self._failed[service] >= LASTING
        outcome = await self._executor.execute(plan, resource, known=known, is_lasting=is_lasting)
        self._refusals[service] = outcome.refusals
        self._failed.pop(service, None)
        if not outcome.status_waits:
            self._refused.pop(service, None)
        if not (outcome.num_writes or outcome.status_waits):
            self._rounds.pop(service, None)
            return plan.requeue_s
        # Ever slower, should somebody undo what is written.
        self._rounds[service] += 1
        return min(MAX_BACKOFF_S, SETTLE_S * 2.0 ** min(self._rounds[service] - 1, 10))

    def _forget(self, service: Key) -> None:
        self._refusals.pop(service, None)
        for count in (self._failures, self._failed, self._refused, self._rounds):
            count.pop(service, None)

    async def _observe(
        self, service: Key, resource: Manifest, refusals: tuple[Refusal, ...]
    ) -> Observed:
        wanted = spec.references(resource)
        known = await self._references.read(service.namespace, wanted)
        return Observed(
            resource=resource,
            installation=self._installation,
            children=self.mirror.children(service),
            pods=self.mirror.pods(service),
            references=known.digests,
            ends=known.ends,
            unread=known.unread,
            gateways=self._reports.about(service) if self._reports is not None else None,
            kinds=self.mirror.optional_kinds,
            refusals=refusals,
        )

    def _add(self, services: Iterable[Key], *, spread_s: float) -> None:
        for service in sorted(services):  # sets come in another order in each process
            self.queue.add(service, self._chance.uniform(0, spread_s))

    def _fail(self, service: Key) -> float:
        """Counts a failure; returns after what time to try again."""
        self._failures[service] += 1
        return self._backoff_s(self._failures[service] - 1)

    def _backoff_s(self, attempt: int) -> float:
        longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempt, 10))
        return self._chance.uniform(longest / 2, longest)

    def _beat(self, loop: str) -> None:
        self.beats[loop] = self._now()
