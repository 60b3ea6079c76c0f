"""Observes on a real API server and carries plans out there, without a watch and without a process.

What it sees is read anew each time, so that what a plan does is all that happens between two looks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lightkube.config.kubeconfig import KubeConfig
from tests.bounds import EVENTUALLY_S
from tests.operator.building import INSTALLATION

from octavo.operator import names
from octavo.operator.cluster import Key, RefusedError
from octavo.operator.kinds import (
    CHILD_KINDS,
    CONFIG_MAP,
    INFERENCE_SERVICE,
    OPTIONAL_KINDS,
    POD,
    SECRET,
    Manifest,
)
from octavo.operator.lightkube_cluster import LightkubeCluster
from octavo.operator.observed import Installation, Observed, Refusal, digest
from octavo.operator.plan import Apply, Delete, Plan, Scale, Write
from octavo.operator.reconcile import reconcile
from octavo.operator.spec import references

T = TypeVar("T")


@dataclass
class Reconciler:
    """One InferenceService on a real API server."""

    kubeconfig: Path
    namespace: str
    name: str
    installation: Installation = INSTALLATION
    writes: list[Write | Manifest] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def plan(self) -> Plan:
        return self.do(self._plan)

    def observed(self) -> Observed:
        return self.do(self._observe)

    def turn(self) -> Plan:
        """Observes once and carries out what follows; returns the plan."""
        return self.do(self._turn)

    def until(
        self, done: Callable[[Observed], bool], *, timeout_s: float = EVENTUALLY_S
    ) -> Observed:
        """Takes turns until what is observed is as wanted and nothing is left to be written."""
        end = time.monotonic() + timeout_s
        while True:
            observed = self.observed()
            plan = self.turn()
            if done(observed) and plan.is_empty:
                return observed
            assert time.monotonic() < end, (plan, observed.resource.get("status"))
            time.sleep(0.1)

    def do(self, act: Callable[[LightkubeCluster], Awaitable[T]]) -> T:
        """Does something to the cluster as the operator would."""
        return asyncio.run(self._with(act))

    async def _with(self, act: Callable[[LightkubeCluster], Awaitable[T]]) -> T:
        config = KubeConfig.from_file(self.kubeconfig).get()
        assert config is not None
        cluster = LightkubeCluster(config, timeout_s=30)
        try:
            return await act(cluster)
        finally:
            await cluster.close()

    async def _observe(self, cluster: LightkubeCluster) -> Observed:
        resource = await cluster.get(INFERENCE_SERVICE, Key(self.namespace, self.name))
        assert resource is not None
        mine = {names.SERVICE_LABEL: self.name}
        children = [
            item
            for kind in CHILD_KINDS
            if kind not in OPTIONAL_KINDS
            for item in (await cluster.list(kind, self.namespace, labels=mine)).items
        ]
        known = {}
        for reference in references(resource):
            kind = SECRET if reference.kind == "Secret" else CONFIG_MAP
            found = await cluster.get(kind, Key(self.namespace, reference.name))
            known[reference] = digest(reference, found)
        return Observed(
            resource=resource,
            installation=self.installation,
            children=tuple(children),
            pods=tuple((await cluster.list(POD, self.namespace, labels=mine)).items),
            references=known,
            refusals=tuple(self.refusals),
        )

    async def _plan(self, cluster: LightkubeCluster) -> Plan:
        return reconcile(await self._observe(cluster), time.time())

    async def _turn(self, cluster: LightkubeCluster) -> Plan:
        plan = await self._plan(cluster)
        self.refusals.clear()
        for write in plan.writes:
            self.writes.append(write)
            try:
                await self._write(cluster, write)
            except RefusedError as error:
                assert isinstance(write, Apply)
                self.refusals.append(
                    Refusal(kind=write.kind.name, name=write.name, message=error.message)
                )
        if plan.status is not None:
            self.writes.append(plan.status)
            await cluster.apply(
                INFERENCE_SERVICE,
                {
                    "apiVersion": names.API_VERSION,
                    "kind": names.KIND,
                    "metadata": {"name": self.name, "namespace": self.namespace},
                    "status": plan.status,
                },
                subresource="status",
            )
        return plan

    async def _write(self, cluster: LightkubeCluster, write: Write) -> None:
        if isinstance(write, Apply):
            await cluster.apply(write.kind, write.manifest)
        elif isinstance(write, Scale):
            key = Key(self.namespace, write.name)
            await cluster.scale(write.kind, key, uid=write.uid, replicas=write.replicas)
        elif isinstance(write, Delete):
            await cluster.delete(
                write.kind,
                Key(self.namespace, write.name),
                uid=write.uid,
                resource_version=write.resource_version,
            )
        else:
            await cluster.apply(
                POD,
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": write.pod,
                        "namespace": self.namespace,
                        "uid": write.uid,
                    },
                    "status": {"conditions": [write.condition]},
                },
                subresource="status",
            )
