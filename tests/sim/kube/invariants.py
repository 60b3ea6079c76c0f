"""What must hold of operators while a run goes on, judged by what reaches the API server.

O0  nothing crashes, and no look at a service ends by an exception
O2  the number of engines has one writer; of several operators only the holder of the Lease writes
O3  operators end no pod, and replace engines one by one only where there was no room
O5  a status claims nothing that was not so within the time that an operator may be blind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from tests.sim.history import History
from tests.sim.kube.api_model import ApiModel, Change
from tests.sim.kube.api_server import Call
from tests.sim.kube.operators import LEASE as LEASE_NAME
from tests.sim.kube.operators import OperatorPlace

from octavo.operator import names, pods
from octavo.operator.cluster import Key
from octavo.operator.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    LEASE,
    POD,
    SECRET,
    Manifest,
)
from octavo.operator.lease import DURATION_S
from octavo.operator.timestamps import age_s

BLIND_S: Final = 75.0
"""How old what an operator acts on may be: a listing ago, and the time that one may take."""

NAMESPACE: Final = "team"
LEASE_KEY: Final = Key(*LEASE_NAME.split("/"))


class Invariants:
    """Listens to all that happens at the API server.

    Args:
        model: the API server's objects.
        operators: by name.
        history: gets what is violated.
        now: the loop's clock.
        wall: Unix time.
    """

    def __init__(
        self,
        model: ApiModel,
        operators: Mapping[str, OperatorPlace],
        history: History,
        now: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        self.written_at = 0.0
        """When an operator last wrote anything but its Lease and events."""
        self._model, self._operators, self._history = model, operators, history
        self._now, self._wall = now, wall
        self._routable: dict[str, tuple[str, tuple[float, float]]] = {}
        """Of which service each engine was that was routable, and from when until when, by UID."""
        self._numbers: dict[str, set[int]] = {}
        """Of services whose number of engines is none of the operators' business: what it was when
        it became so, or may have been on its way to, and what somebody made it since."""
        self._last_wanted: dict[str, tuple[float, set[int]]] = {}
        """When which numbers were last what a user wanted."""
        self._short_of_room: set[str] = set()
        self._wishes: dict[str, Manifest] = {}
        self._one_by_one: dict[str, float] = {}
        """When a user last wanted a service's engines replaced so."""
        model.subscribe(self._changed)

    def asked(self, call: Call) -> None:
        """An operator asks for a write."""
        operator = self._operators[call.operator]
        if call.kind is LEASE or operator.identity is None:
            return
        spec = (self._model.get(LEASE, LEASE_KEY) or {}).get("spec") or {}
        age = age_s(spec.get("renewTime"), self._wall())
        holds = spec.get("holderIdentity") == operator.identity and age <= DURATION_S
        detail = f"{call.operator} asks to {call.verb} {call.kind.name} {call.name} without a Lease"
        self._history.check(holds, "O2", detail)

    def wrote(self, call: Call) -> None:
        """A write of an operator has taken effect."""
        self._history.trace(
            call.operator, call.life, call.verb, call.kind.name, call.name, call.subresource
        )
        if call.kind in (LEASE, EVENT):
            return
        self.written_at = self._now()
        if call.verb == "delete":
            self._check_delete(call)
        elif call.kind is DEPLOYMENT:
            self._check_deployment(call)
        elif call.kind is INFERENCE_SERVICE:
            self._check_status(call)

    def _check_delete(self, call: Call) -> None:
        kept = call.kind in (POD, DEPLOYMENT, INFERENCE_SERVICE, SECRET)
        self._history.check(not kept, "O3", f"{call.operator} deletes {call.kind.name} {call.name}")

    def _check_deployment(self, call: Call) -> None:
        service = call.name.removesuffix("-engine")
        found = self._model.get(DEPLOYMENT, Key(NAMESPACE, call.name))
        assert found is not None
        number, allowed = found["spec"]["replicas"], self._numbers.get(service)
        if allowed is not None:
            detail = f"{call.operator} makes the replicas of {service} {number}, not {allowed}"
            self._history.check(number in allowed, "O2", detail)
        if found["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 0:
            is_wanted = _is_one_by_one(self._wishes.get(service, {})) or (
                self._now() - self._one_by_one.get(service, -BLIND_S) < BLIND_S
            )
            detail = f"{service} is replaced one by one, though there was room"
            self._history.check(is_wanted or service in self._short_of_room, "O3", detail)

    def _check_status(self, call: Call) -> None:
        claimed = (call.manifest or {}).get("status") or {}
        found = self._model.get(INFERENCE_SERVICE, Key(NAMESPACE, call.name))
        assert found is not None
        generation, seen = found["metadata"]["generation"], claimed.get("observedGeneration", 0)
        detail = f"{call.name} is at generation {generation}, and {seen} is said to be observed"
        self._history.check(seen <= generation, "O5", detail)
        routable = claimed.get("routable")
        if routable is not None:
            least, most = self._lately(call.name)
            detail = f"{call.name} claims {routable} routable engines, not {least} to {most}"
            self._history.check(least <= routable <= most, "O5", detail)
            is_ready = pods.has({"status": claimed}, "Ready")
            wants = bool(claimed.get("desired"))
            detail = f"{call.name} claims to be Ready with {routable} routable engines"
            self._history.check(not (is_ready and wants) or routable > 0, "O5", detail)

    def _lately(self, service: str) -> tuple[int, int]:
        """Returns how many engines were routable all the time lately, and how many ever were.

        What is known of one may be older than what is known of another.
        """
        since = self._now() - BLIND_S
        spans = [span for s, span in self._routable.values() if s == service and span[1] >= since]
        return sum(begin <= since and end == inf for begin, end in spans), len(spans)

    def _changed(self, change: Change) -> None:
        name = change.manifest["metadata"]["name"]
        if change.kind is POD:
            self._count(change.event, change.manifest)
        elif change.kind is INFERENCE_SERVICE:
            self._note_wishes(name, change)
        elif change.kind is DEPLOYMENT and change.event != "DELETED":
            self._note_number(name.removesuffix("-engine"), change.manifest)

    def _note_number(self, service: str, deployment: Manifest) -> None:
        entries = deployment["metadata"]["managedFields"]
        is_others = any(entry["manager"] == "autoscaler" for entry in entries)
        if service in self._numbers and is_others:
            self._numbers[service].add(deployment["spec"]["replicas"])

    def _note_wishes(self, name: str, change: Change) -> None:
        before, self._wishes[name] = self._wishes.get(name, {}), change.manifest.get("spec") or {}
        spec = self._wishes[name]
        if _is_one_by_one(before):
            self._one_by_one[name] = self._now()
        wanted = _numbers(spec)
        if before:
            self._last_wanted[name] = self._now(), _numbers(before)
        if change.event == "DELETED" or wanted:
            self._numbers.pop(name, None)
        elif name not in self._numbers:
            found = self._model.get(DEPLOYMENT, Key(NAMESPACE, names.engine(name)))
            at, last = self._last_wanted.get(name, (-BLIND_S, set()))
            lately = last if self._now() - at < BLIND_S else set()
            self._numbers[name] = {found["spec"]["replicas"] if found else 1} | lately

    def _count(self, event: str, pod: Manifest) -> None:
        service = (pod["metadata"].get("labels") or {}).get(names.SERVICE_LABEL, "")
        if pods.unschedulable(pod):
            self._short_of_room.add(service)
        uid, is_gone = pod["metadata"]["uid"], event == "DELETED"
        is_routable = pods.is_live(pod) and pods.is_routable(pod) and not is_gone
        _, (begin, end) = self._routable.get(uid, (service, (inf, -inf)))
        if is_routable:
            self._routable[uid] = service, (min(begin, self._now()), inf)
        elif end == inf:
            self._routable[uid] = service, (begin, self._now())


def _is_one_by_one(spec: Manifest) -> bool:
    return (spec.get("rollout") or {}).get("maxSurge") == 0


def _numbers(spec: Manifest) -> set[int]:
    """Returns how many engines a spec may lead to; none where it leaves that to others."""
    if (rule := spec.get("autoscaling")) is not None:
        return set(range(rule["minReplicas"], rule["maxReplicas"] + 1))
    return {spec["replicas"]} if "replicas" in spec else set()
