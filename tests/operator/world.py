"""A small Kubernetes for the pure half: it carries plans out and lets controllers work in steps.

Its API server keeps what is applied, adds defaults like the real one, and has versions and UIDs.
Deployments and Jobs make pods at once; pods get a place while there is room, load in a step, and go
when they are told to. The tests on a real API server show what it leaves out.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.operator.building import INSTALLATION, NAMESPACE
from tests.operator.replica_sets import ReplicaSets

from octavo.operator import names, pods, rollout
from octavo.operator.kinds import DEPLOYMENT, JOB, Kind, Manifest
from octavo.operator.observed import (
    EngineSeen,
    GatewayReport,
    Gateways,
    Installation,
    Observed,
    Reference,
    ServiceLoad,
    annotation,
    is_controlled_by,
)
from octavo.operator.plan import Apply, Delete, Event, Plan, Scale, Write
from octavo.operator.reconcile import reconcile
from octavo.operator.spec import references
from octavo.operator.timestamps import to_text

START = 1_780_000_000.0


@dataclass
class World:
    """One InferenceService, all around it, and a clock."""

    resource: Manifest
    installation: Installation = INSTALLATION
    now: float = START
    room: int = 100
    """Engines that there is room for."""
    gateways: bool = True
    is_loading: bool = False
    """Whether loaders do not end."""
    is_silent: bool = False
    """Whether the gateways that there are say nothing."""
    references: dict[Reference, str | None] = field(default_factory=dict)
    ends: dict[Reference, float] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    load: ServiceLoad | None = None
    children: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    pods: dict[str, Manifest] = field(default_factory=dict)
    replica_sets: ReplicaSets = field(default_factory=ReplicaSets)
    events: list[Event] = field(default_factory=list)
    num_writes: int = 0

    def __post_init__(self) -> None:
        self._ids = itertools.count(1000)

    def observed(self) -> Observed:
        return Observed(
            resource=copy.deepcopy(self.resource),
            installation=self.installation,
            children=tuple(copy.deepcopy(list(self.children.values()))),
            pods=tuple(copy.deepcopy(list(self.pods.values()))),
            references=dict(self.references),
            ends=dict(self.ends),
            unread={
                reference: "it is forbidden"
                for reference in references(self.resource)
                if reference not in self.references
            },
            gateways=self.reports() if self.gateways else None,
            kinds=self.kinds,
        )

    def reports(self) -> Gateways:
        if self.is_silent:
            return Gateways(silent=1)
        full_name = f"{NAMESPACE}/{self.resource['metadata']['name']}"
        engines = tuple(
            EngineSeen(
                uid=pod["metadata"]["uid"],
                service=full_name,
                state="ready",
                routable=True,
                numerics_id="cpu-1",
            )
            for pod in self.engines()
            if pods.has(pod, "ContainersReady")
        )
        load = self.load or ServiceLoad(service=full_name)
        report = GatewayReport(gateway="g", engines=engines, services=(load,))
        return Gateways(reports=(report,))

    def plan(self) -> Plan:
        return reconcile(self.observed(), self.now)

    def execute(self, plan: Plan, *, stop_after: int | None = None) -> int:
        """Carries out a plan, or the first writes of one; returns how many there were."""
        steps: list[Write | Manifest] = [*plan.writes]
        if plan.status is not None:
            steps.append(plan.status)
        for step in steps[:stop_after]:
            self.num_writes += 1
            if isinstance(step, dict):
                self.resource["status"] = copy.deepcopy(step)
                self.events += plan.events
            else:
                self._write(step)
        return len(steps)

    def settle(self, *, steps: int = 60, every_s: float = 5.0) -> None:
        """Lets operator and controllers work until nothing changes any more."""
        for _ in range(steps):
            before = self.snapshot()
            self.execute(self.plan())
            self.step()
            self.now += every_s
            if self.snapshot() == before:
                return
        raise AssertionError("it does not come to rest")

    def snapshot(self) -> object:
        return copy.deepcopy((self.resource, self.children, self.pods))

    def edit(self, spec: Mapping[str, Any]) -> None:
        """Changes the resource as a user does."""
        self.resource["spec"] = copy.deepcopy(dict(spec))
        self.resource["metadata"]["generation"] += 1

    def child(self, kind: Kind, name: str) -> Manifest:
        return self.children[kind.name, name]

    @property
    def deployment(self) -> Manifest:
        return self.child(DEPLOYMENT, f"{self.resource['metadata']['name']}-engine")

    def engines(self) -> list[Manifest]:
        return pods.of_component(self.pods.values(), names.ENGINE)

    def condition(self, type: str) -> Manifest:
        return pods.condition(self.resource, type)

    def _write(self, write: Write) -> None:
        if isinstance(write, Apply):
            self._apply(write)
        elif isinstance(write, Scale):
            found = self.children[write.kind.name, write.name]
            assert found["metadata"]["uid"] == write.uid
            self._store(found | {"spec": found["spec"] | {"replicas": write.replicas}})
        elif isinstance(write, Delete):
            found = self.children[write.kind.name, write.name]
            assert found["metadata"]["uid"] == write.uid
            assert found["metadata"]["resourceVersion"] == write.resource_version
            del self.children[write.kind.name, write.name]
            if write.kind == JOB:
                self.pods = {n: p for n, p in self.pods.items() if _owner(p) != write.uid}
        else:
            pod = self.pods[write.pod]
            assert pod["metadata"]["uid"] == write.uid
            _set_condition(pod, **write.condition)

    def _apply(self, write: Apply) -> None:
        found = self.children.get((write.kind.name, write.name))
        assert (found is None) == write.creates
        new = copy.deepcopy(write.manifest)
        if found is not None:
            assert new["metadata"].pop("uid") == found["metadata"]["uid"]
            version = new["metadata"].pop("resourceVersion", None)
            assert version in (None, found["metadata"]["resourceVersion"])
            assert is_controlled_by(found, self.resource["metadata"]["uid"])
            for kept in (
                "uid", "generation", "resourceVersion", "managedFields", "creationTimestamp",
            ):  # fmt: skip
                if kept in found["metadata"]:
                    new["metadata"][kept] = found["metadata"][kept]
            if "status" in found:
                new["status"] = found["status"]
            if revision := annotation(found, rollout.REVISION):
                new["metadata"]["annotations"][rollout.REVISION] = revision
        else:
            new["metadata"]["uid"] = f"uid-{next(self._ids)}"
            new["metadata"]["creationTimestamp"] = to_text(self.now)
        if write.kind == DEPLOYMENT:
            owned: Manifest = {"f:spec": {"f:replicas": {}}} if "replicas" in new["spec"] else {}
            entry = {"manager": "octavo-operator", "operation": "Apply", "fieldsV1": owned}
            new["metadata"]["managedFields"] = [entry]
            had = found["spec"]["replicas"] if found and not self._owned(found) else 1
            new["spec"].setdefault("replicas", had)
        self._store(_with_defaults(new))

    @staticmethod
    def _owned(deployment: Manifest) -> bool:
        entries = deployment["metadata"].get("managedFields", [])
        return any(entry["fieldsV1"] for entry in entries)

    def _store(self, manifest: Manifest) -> None:
        key = manifest["kind"], manifest["metadata"]["name"]
        old = self.children.get(key)
        generation = manifest["metadata"].get("generation", 0)
        if old is None or old.get("spec") != manifest.get("spec"):
            generation += 1
        meta = manifest["metadata"] | {
            "generation": generation,
            "resourceVersion": str(next(self._ids)),
        }
        self.children[key] = manifest | {"metadata": meta}

    # Controllers

    def step(self) -> None:
        """Lets each controller do one thing."""
        self._gone()
        for job in [c for c in self.children.values() if c["kind"] == "Job"]:
            self._run_job(job)
        for deployment in [c for c in self.children.values() if c["kind"] == "Deployment"]:
            self._roll(deployment)
        self._schedule()

    def _gone(self) -> None:
        self.pods = {name: pod for name, pod in self.pods.items() if not pods.is_going(pod)}

    def _run_job(self, job: Manifest) -> None:
        if not self.is_loading:
            _set_condition(job, type="Complete", status="True")

    def _roll(self, deployment: Manifest) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        deployment["status"] = {"observedGeneration": meta["generation"], "replicas": 0}
        rolling = spec["strategy"]["rollingUpdate"]
        wanted = spec["replicas"]
        live = [pod for pod in self.engines() if pods.is_live(pod)]
        template = pods.template_of(spec["template"])
        new = [pod for pod in live if pods.template_of(pod) == template]
        old = [pod for pod in live if pods.template_of(pod) != template]
        deployment["status"] |= {"replicas": len(live), "updatedReplicas": len(new)}
        scaled = self.replica_sets.scaled(deployment, live)
        if scaled is None:
            return
        meta["annotations"][rollout.REVISION] = str(self.replica_sets.number(deployment))
        if spec.get("paused"):
            new, old = [p for p in live if pods.template_of(p) == pods.template_of(scaled)], []
        while len(new) < wanted and len(new) + len(old) < wanted + rolling["maxSurge"]:
            new.append(self._start(meta["name"], scaled))
        for pod in new[wanted:]:
            self._end(pod)
        available = sum(pods.has(pod, "Ready") for pod in [*new, *old])
        for pod in sorted(old, key=lambda p: pods.has(p, "Ready")):
            is_up = pods.has(pod, "Ready")
            if not is_up or available > wanted - rolling["maxUnavailable"]:
                self._end(pod)
                available -= is_up

    def _start(self, owner: str, made_from: Manifest) -> Manifest:
        template = copy.deepcopy(made_from)
        number = next(self._ids)
        meta = template["metadata"] | {
            "name": f"{owner}-{number}",
            "namespace": NAMESPACE,
            "uid": f"pod-{number}",
            "creationTimestamp": to_text(self.now),
        }
        pod: Manifest = template | {
            "kind": "Pod",
            "metadata": meta,
            "status": {"phase": "Pending"},
        }
        self.pods[meta["name"]] = pod
        return pod

    def _end(self, pod: Manifest) -> None:
        pod["metadata"]["deletionTimestamp"] = to_text(self.now)

    def _schedule(self) -> None:
        used = sum(pods.has(pod, "PodScheduled") for pod in self.engines())
        for pod in self.engines():
            if pods.has(pod, "PodScheduled"):
                _set_condition(pod, type="ContainersReady", status="True")
                pod["status"]["phase"] = "Running"
            elif used < self.room:
                used += 1
                _set_condition(pod, type="PodScheduled", status="True")
            elif not pods.unschedulable(pod):
                _set_condition(
                    pod,
                    type="PodScheduled",
                    status="False",
                    reason="Unschedulable",
                    message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    lastTransitionTime=to_text(self.now),
                )
            is_ready = pods.has(pod, "ContainersReady") and pods.has(pod, names.ROUTABLE_GATE)
            reason = {} if is_ready else {"reason": "ReadinessGatesNotReady"}
            _set_condition(pod, type="Ready", status=str(is_ready), **reason)


def _owner(pod: Manifest) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def _set_condition(holder: Manifest, **condition: Any) -> None:
    status = holder.setdefault("status", {})
    others = [c for c in status.get("conditions", []) if c["type"] != condition["type"]]
    status["conditions"] = [*others, condition]


def _with_defaults(manifest: Manifest) -> Manifest:
    """Adds some of what a real API server adds."""
    spec: Manifest = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        spec |= {"clusterIPs": ["None"], "type": "ClusterIP", "sessionAffinity": "None"}
    if manifest["kind"] in ("Deployment", "Job"):
        pod = spec["template"]["spec"]
        pod |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
        for container in pod["containers"]:
            container["terminationMessagePath"] = "/dev/termination-log"
            for variable in container.get("env", []):
                if variable.get("value") == "":
                    del variable["value"]
            for part in ("limits", "requests"):
                amounts = container.get("resources", {}).get(part, {})
                amounts |= {key: str(value) for key, value in amounts.items()}
    return manifest


def at(world: World, **changes: Any) -> World:
    """Returns a copy with other circumstances."""
    return replace(copy.deepcopy(world), **changes)
