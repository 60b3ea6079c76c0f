"""Kubernetes' own controllers and one node, small: Deployments, Jobs, garbage, pods that load.

They work in turns on the model itself, with none of the operators' troubles, as long as the API
server is there. A Deployment owns its pods without a ReplicaSet between, and keeps its templates.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from tests.operator.replica_sets import ReplicaSets
from tests.sim.kube.api_model import ApiModel

from octavo.operator import names, pods, rollout
from octavo.operator.cluster import Key, key_of
from octavo.operator.kinds import DEPLOYMENT, JOB, POD, VOLUME_CLAIM, Manifest
from octavo.operator.observed import annotation
from octavo.operator.timestamps import age_s, from_text, to_text

MANAGER = "kubernetes"
JOB_LABEL = "batch.kubernetes.io/job-name"
NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


class Controllers:
    """All of them, and the node.

    Args:
        model: where objects are.
        wall: Unix time.
        load_s: how long engines and loaders take.
        going_s: how long a pod takes to end.
    """

    def __init__(
        self, model: ApiModel, *, wall: Callable[[], float], load_s: float, going_s: float
    ) -> None:
        self.room = 100
        """Engines that there is room for."""
        self.loaded: set[tuple[str, str]] = set()
        """What loaders have done: UID of the volume's claim, name of the Job."""
        self._model, self._wall = model, wall
        self._load_s, self._going_s = load_s, going_s
        self._numbers = itertools.count(1)
        self._replica_sets = ReplicaSets()

    def turn(self) -> None:
        """Lets each do what there is to do."""
        self._model.collect()
        for job in self._model.list(JOB).items:
            self._run(job)
        for deployment in self._model.list(DEPLOYMENT).items:
            self._roll(deployment)
        for claim in self._model.list(VOLUME_CLAIM).items:
            self._release(claim)
        self._keep_pods()

    def owned(self, owner: Manifest) -> list[Manifest]:
        """Returns the pods that an object owns, by name."""
        uid = owner["metadata"]["uid"]
        found = self._model.list(POD, owner["metadata"]["namespace"]).items
        mine = [pod for pod in found if _owner(pod) == uid]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["name"]))

    def _run(self, job: Manifest) -> None:
        if job["metadata"].get("deletionTimestamp") or pods.has(job, "Complete"):
            return
        mine = self.owned(job)
        if any(pod["status"].get("phase") == "Succeeded" for pod in mine):
            self._say(JOB, job, {"conditions": [{"type": "Complete", "status": "True"}]})
        elif not any(pods.is_live(pod) for pod in mine):
            self._start(job, job["spec"]["template"], {JOB_LABEL: job["metadata"]["name"]})

    def _release(self, claim: Manifest) -> None:
        """Lets a claim go that no pod on the node uses any more."""
        meta = claim["metadata"]
        found = self._model.list(POD, meta["namespace"]).items
        if meta.get("deletionTimestamp") and not any(
            pod["spec"].get("nodeName") and pods.uses_claim(pod, meta["name"]) for pod in found
        ):
            change = {"metadata": {"finalizers": None}}
            self._model.patch(VOLUME_CLAIM, key_of(claim), change, manager=MANAGER)

    def _roll(self, deployment: Manifest) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        if meta.get("deletionTimestamp"):
            return
        wanted = int(spec["replicas"])
        live = [pod for pod in self.owned(deployment) if pods.is_live(pod)]
        template = pods.template_of(spec["template"])
        new = [pod for pod in live if pods.template_of(pod) == template]
        old = [pod for pod in live if pods.template_of(pod) != template]
        rolling = spec["strategy"]["rollingUpdate"]
        ready = sum(pods.has(pod, "Ready") for pod in live)
        status = {
            "observedGeneration": meta["generation"], "replicas": len(live),
            "updatedReplicas": len(new), "readyReplicas": ready, "availableReplicas": ready,
        }  # fmt: skip
        self._say(DEPLOYMENT, deployment, status)
        scaled = self._replica_sets.scaled(deployment, live)
        if scaled is None:
            return
        self._tell_revision(deployment)
        if spec.get("paused"):
            new, old = [p for p in live if pods.template_of(p) == pods.template_of(scaled)], []
        while len(new) < wanted and len(new) + len(old) < wanted + rolling["maxSurge"]:
            new.append(self._start(deployment, scaled, {}))
        for pod in sorted(new, key=lambda p: not pods.has(p, "Ready"))[wanted:]:
            self._end(pod)
        for pod in sorted(old, key=lambda p: pods.has(p, "Ready")):
            is_up = pods.has(pod, "Ready")
            if not is_up or ready > wanted - rolling["maxUnavailable"]:
                self._end(pod)
                ready -= is_up

    def _tell_revision(self, deployment: Manifest) -> None:
        number = str(self._replica_sets.number(deployment))
        if annotation(deployment, rollout.REVISION) != number:
            change = {"metadata": {"annotations": {rollout.REVISION: number}}}
            self._model.patch(DEPLOYMENT, key_of(deployment), change, manager=MANAGER)

    def _start(self, owner: Manifest, made_from: Manifest, labels: dict[str, str]) -> Manifest:
        meta, template = owner["metadata"], copy.deepcopy(made_from)
        reference = {
            "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"],
            "uid": meta["uid"], "controller": True,
        }  # fmt: skip
        template["metadata"] |= {
            "name": f"{meta['name']}-{next(self._numbers)}",
            "namespace": meta["namespace"],
            "labels": template["metadata"]["labels"] | labels,
            "ownerReferences": [reference],
        }
        made = self._model.create(POD, template, manager=MANAGER)
        return self._say(POD, made, {"phase": "Pending"})

    def _end(self, pod: Manifest) -> None:
        self._model.delete(POD, key_of(pod))

    def _keep_pods(self) -> None:
        found = self._model.list(POD).items
        used = sum(bool(pod["spec"].get("nodeName")) for pod in found if _is_engine(pod))
        for pod in found:
            if not pod["spec"].get("nodeName"):
                if self._lacks_volume(pod):
                    continue
                if not _is_engine(pod) or used < self.room:
                    used += _is_engine(pod)
                    self._place(pod)
                elif not pods.unschedulable(pod):
                    self._condition(
                        pod, "PodScheduled", "False", reason="Unschedulable", message=NO_ROOM
                    )
            elif pods.is_going(pod):
                if self._wall() >= _going_since(pod) + self._going_s:
                    self._model.remove(POD, key_of(pod))
            else:
                self._live(pod)

    def _lacks_volume(self, pod: Manifest) -> bool:
        """Whether a pod mounts its service's volume, and that is not there or goes."""
        claim = self.volume(pod["metadata"])
        mounts = pods.uses_claim(pod, names.models(_service(pod["metadata"])))
        return mounts and (claim is None or pods.is_going(claim))

    def volume(self, of: Manifest) -> Manifest | None:
        """Returns the claim of the service that something with that metadata is a part of."""
        key = Key(of["namespace"], names.models(_service(of)))
        return self._model.get(VOLUME_CLAIM, key)

    def _place(self, pod: Manifest) -> None:
        change = {"spec": {"nodeName": "node"}}
        placed = self._model.patch(POD, key_of(pod), change, manager=MANAGER)
        self._condition(placed, "PodScheduled", "True")

    def _live(self, pod: Manifest) -> None:
        if pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        since = pods.condition(pod, "PodScheduled").get("lastTransitionTime")
        is_loaded = age_s(since, self._wall()) >= self._load_s
        if not _is_engine(pod):
            if is_loaded:
                claim, labels = self.volume(pod["metadata"]), pod["metadata"]["labels"]
                assert claim is not None, "a pod holds its claim"
                self.loaded.add((claim["metadata"]["uid"], labels[JOB_LABEL]))
                self._say(POD, pod, {"phase": "Succeeded"})
            return
        if is_loaded and not pods.has(pod, "ContainersReady"):
            pod = self._condition(pod, "ContainersReady", "True")
            pod = self._say(POD, pod, {"phase": "Running"})
        is_ready = pods.has(pod, "ContainersReady") and pods.has(pod, names.ROUTABLE_GATE)
        if pods.has(pod, "Ready") != is_ready:
            reason = {} if is_ready else {"reason": "ReadinessGatesNotReady"}
            self._condition(pod, "Ready", str(is_ready), **reason)

    def _condition(self, pod: Manifest, type: str, status: str, **more: str) -> Manifest:
        others: Iterable[Any] = (pod.get("status") or {}).get("conditions") or []
        made = {"type": type, "status": status, "lastTransitionTime": to_text(self._wall()), **more}
        conditions = [c for c in others if c["type"] != type]
        return self._say(POD, pod, {"conditions": [*conditions, made]})

    def _say(self, kind: Any, found: Manifest, status: Manifest) -> Manifest:
        change = {"status": status}
        return self._model.patch(kind, key_of(found), change, manager=MANAGER, subresource="status")


def _is_engine(pod: Manifest) -> bool:
    return (pod["metadata"].get("labels") or {}).get(names.COMPONENT_LABEL) == names.ENGINE


def _service(metadata: Manifest) -> str:
    return str((metadata.get("labels") or {}).get(names.SERVICE_LABEL, ""))


def _going_since(pod: Manifest) -> float:
    """Returns when a pod was deleted: Kubernetes writes down when it has to be gone."""
    meta = pod["metadata"]
    at = from_text(meta["deletionTimestamp"])
    assert at is not None
    return at - float(meta["deletionGracePeriodSeconds"])


def _owner(pod: Manifest) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{}]
    return str(owners[0].get("uid", ""))


def lose(model: ApiModel, pod: Manifest) -> None:
    """A pod is gone with its node, without an end."""
    model.delete(POD, key_of(pod))
    key = Key(pod["metadata"]["namespace"], pod["metadata"]["name"])
    if model.get(POD, key) is not None:
        model.remove(POD, key)
