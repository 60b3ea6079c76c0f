"""One run of the operator: a Kubernetes, gateways, operators, users and faults.

Two phases. While users act and faults come, `invariants` judges each write. Then a core is healed
(the API server, the gateways, one operator), all else stays as it is, and within BOUND_S all comes
to rest: no operator writes for QUIET_S (O1). What is then there is what the same specs lead to when
nothing ever happened (O4); a bad resource has a condition and no more (O6).
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any, Final

from tests.sim.env import WALL_OFFSET_S, stream
from tests.sim.history import History
from tests.sim.kube.api_model import ApiModel
from tests.sim.kube.api_server import ApiServer
from tests.sim.kube.controllers import Controllers, lose
from tests.sim.kube.gateways import Gateways
from tests.sim.kube.invariants import NAMESPACE, Invariants
from tests.sim.kube.operators import OperatorPlace
from tests.sim.kube.script import TROUBLES, USERS, Act, Scenario
from tests.sim.loop import SimLoop

from octavo.operator import conditions, names, pods
from octavo.operator.cluster import ClusterError, Key
from octavo.operator.kinds import (
    CHILD_KINDS,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    JOB,
    POD,
    SECRET,
    SERVICE,
    VOLUME_CLAIM,
    Manifest,
    object_of,
)

TURN_S: Final = 0.25
BOUND_S: Final = 400.0
"""Virtual seconds after the healing until all has been at rest for QUIET_S."""
QUIET_S: Final = 100.0

USER: Final = "user"
TWO_DECIDE: Final = {"replicas": 1, "autoscaling": {"minReplicas": 0, "maxReplicas": 1}}
"""What an API server with the definition's rules takes only from before it had them."""


class World:
    """One run.

    Args:
        scenario: what happens in it.
        loop: runs it.
        history: gets what is violated.
    """

    def __init__(self, scenario: Scenario, loop: SimLoop, history: History) -> None:
        options = scenario.options
        self.scenario, self.history = scenario, history
        self.model = ApiModel(wall=self._wall, history=options.history)
        self.server = ApiServer(self.model, stream(scenario.seed, "api"), options.delay_s)
        self.gateways = Gateways(self.model, options.gateways, loop.time)
        self.controllers = Controllers(
            self.model, wall=self._wall, load_s=options.load_s, going_s=options.going_s
        )
        self.operators = {
            f"operator{n}": OperatorPlace(
                f"operator{n}",
                loop=loop,
                server=self.server,
                gateways=self.gateways if options.gateways else None,
                history=history,
                seed=scenario.seed,
                leased=options.operators > 1,
            )
            for n in range(options.operators)
        }
        self.invariants = Invariants(self.model, self.operators, history, loop.time, self._wall)
        self.server.before.append(self.invariants.asked)
        self.server.after.append(self.invariants.wrote)
        self._loop = loop
        self._began = loop.time()
        self._secret(0)

    def _wall(self) -> float:
        return asyncio.get_running_loop().time() + WALL_OFFSET_S

    async def run(self) -> None:
        """Runs to the end or to the first violation."""
        await self.history.until_violated(self._story(), self._turn())
        for operator in self.operators.values():
            operator.stays_dead = True
            operator.kill()

    async def _turn(self) -> None:
        while True:
            await asyncio.sleep(TURN_S)
            if not self.server.is_away:
                self.controllers.turn()

    async def _story(self) -> None:
        for operator in self.operators.values():
            operator.start()
        options = self.scenario.options
        script = sorted((*self.scenario.users, *self.scenario.faults), key=lambda act: act.at)
        for act in script:
            if act.at > options.fault_s:
                break
            await self._until(act.at)
            self._do(act)
        await self._until(options.fault_s)
        self._heal()
        await self._come_to_rest()
        self._check_end()

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, self._began + at - self._loop.time()))

    def _heal(self) -> None:
        self.history.trace("heal")
        self.server.heal()
        self.gateways.heal()
        self.controllers.room = 100
        core = self.operators[f"operator{self.scenario.options.core}"]
        core.heal()

    async def _come_to_rest(self) -> None:
        end = self._loop.time() + BOUND_S
        healed = self._loop.time()
        while self._loop.time() < max(healed, self.invariants.written_at) + QUIET_S:
            if self._loop.time() > end:
                self.history.violate("O1", f"operators still write after {BOUND_S} s")
                return
            await asyncio.sleep(1.0)
        for operator in self.operators.values():
            operator.check()

    # Acts

    def _do(self, act: Act) -> None:
        if act.kind in USERS:
            self.history.trace("user", act.kind, act.target, act.arg)
            try:
                self._user(act)
            except ClusterError as error:
                self.history.trace("refused", error.message)
        else:
            self.history.fault(act.kind, act.target)
            self._fault(act)

    def _user(self, act: Act) -> None:
        key = Key(NAMESPACE, act.target)
        match act.kind:
            case "apply":
                self._apply(act.target, act.arg)
            case "bad":
                self._apply(act.target, act.arg | TWO_DECIDE)
            case "scale" if self.model.get(INFERENCE_SERVICE, key) is not None:
                change = {"spec": {"replicas": act.arg}}
                deployment = Key(NAMESPACE, names.engine(act.target))
                if self._is_external(key) and self.model.get(DEPLOYMENT, deployment) is not None:
                    self.model.patch(DEPLOYMENT, deployment, change, manager="autoscaler")
            case "delete" if self.model.get(INFERENCE_SERVICE, key) is not None:
                self.model.delete(INFERENCE_SERVICE, key)
            case "secret":
                self._secret(act.arg)
            case "demand":
                self.gateways.demand[f"{NAMESPACE}/{act.target}"] = act.arg

    def _apply(self, name: str, spec: dict[str, Any]) -> None:
        metadata = {"name": name, "namespace": NAMESPACE}
        manifest = object_of(INFERENCE_SERVICE, metadata, spec=copy.deepcopy(spec))
        self.model.apply(INFERENCE_SERVICE, manifest, manager=USER)

    def _is_external(self, key: Key) -> bool:
        spec = (self.model.get(INFERENCE_SERVICE, key) or {}).get("spec") or {}
        return not {"replicas", "autoscaling"} & spec.keys()

    def _secret(self, version: int) -> None:
        metadata = {"name": "keys", "namespace": NAMESPACE}
        secret = object_of(SECRET, metadata, data={"one": f"value{version}"})
        self.model.apply(SECRET, secret, manager=USER)

    def _fault(self, act: Act) -> None:
        kind = act.kind
        if act.target in self.operators:
            self._fault_of_operator(self.operators[act.target], act)
        elif kind in ("gateway_silent", "end_gateway_silent"):
            silent = self.gateways.silent
            (silent.add if kind == "gateway_silent" else silent.discard)(act.target)
        elif kind in ("gateways_cut_off", "end_gateways_cut_off"):
            self.gateways.are_cut_off = kind == "gateways_cut_off"
        elif kind == "gateway_new":
            self.gateways.renew(act.target)
        elif kind in ("api_away", "end_api_away"):
            self.server.is_away = kind == "api_away"
        elif kind in ("api_slow", "end_api_slow"):
            self.server.slow_s = act.arg or self.scenario.options.delay_s
        elif kind in ("no_room", "end_no_room"):
            self.controllers.room = act.arg if kind == "no_room" else 100
        elif kind == "end_engine_failed":
            self.gateways.failed.clear()
        elif kind.startswith("end_"):
            self.server.troubles.pop(kind.removeprefix("end_"), None)
        elif kind in TROUBLES:
            self.server.troubles[kind] = act.arg
        else:
            self._fault_of_object(act)

    def _fault_of_operator(self, operator: OperatorPlace, act: Act) -> None:
        cluster = operator.cluster
        match act.kind:
            case "kill":
                operator.kill()
            case "restart":
                operator.stop()
            case "pause":
                operator.pause()
            case "end_pause":
                operator.resume()
            case "kill_after_write":
                operator.dies_in = act.arg
            case "lost_event" if cluster:
                cluster.lose_in = act.arg
            case "watch_silent" | "end_watch_silent" if cluster:
                cluster.silent = act.kind == "watch_silent"
            case "watch_dropped" if cluster:
                cluster.dropped = True

    def _fault_of_object(self, act: Act) -> None:
        engines = self._engines(act.target)
        match act.kind:
            case "pod_lost" if engines:
                lose(self.model, engines[act.arg % len(engines)])
            case "engine_failed" if ready := [p for p in engines if pods.has(p, "Ready")]:
                self.gateways.failed.add(ready[act.arg % len(ready)]["metadata"]["uid"])
            case "drift":
                self._drift(Key(NAMESPACE, names.engine(act.target)), act.arg)
            case "child_deleted":
                kind = [k for k in CHILD_KINDS if k is not DEPLOYMENT][act.arg]
                for child in self._children(act.target):
                    if child["kind"] == kind.name:
                        self.model.delete(kind, Key(NAMESPACE, child["metadata"]["name"]))
                    if child["kind"] == kind.name == VOLUME_CLAIM.name:
                        self._lose_users_of(child)

    def _lose_users_of(self, claim: Manifest) -> None:
        """The node that had a volume is gone, with all that ran there."""
        for pod in self.model.list(POD, NAMESPACE).items:
            if pods.uses_claim(pod, claim["metadata"]["name"]):
                lose(self.model, pod)

    def _drift(self, key: Key, arg: int) -> None:
        """Somebody edits what is ours."""
        kind = DEPLOYMENT if arg % 2 else SERVICE
        change: Manifest = {"spec": {"progressDeadlineSeconds": arg}} if arg % 2 else {
            "spec": {"publishNotReadyAddresses": False}
        }  # fmt: skip
        if self.model.get(kind, key) is not None:
            self.model.patch(kind, key, change, manager="somebody")

    def _engines(self, service: str) -> list[Manifest]:
        return self.model.list(POD, NAMESPACE, labels=names.selector(service)).items

    def _children(self, service: str) -> list[Manifest]:
        return [
            child
            for kind in CHILD_KINDS
            if kind in self.model.served
            for child in self.model.list(
                kind, NAMESPACE, labels={names.SERVICE_LABEL: service}
            ).items
        ]

    # The end

    def _check_end(self) -> None:
        resources = {r["metadata"]["name"]: r for r in self.model.list(INFERENCE_SERVICE).items}
        for name in sorted({act.target for act in self.scenario.users} - resources.keys()):
            left = [(c["kind"], c["metadata"]["name"]) for c in self._children(name)]
            self.history.check(not left, "O1", f"{name} is gone, and {left} are not")
        for name, resource in resources.items():
            status = resource.get("status") or {}
            seen, is_at = status.get("observedGeneration"), resource["metadata"]["generation"]
            detail = f"{name} is at generation {is_at}, and its status at {seen}"
            self.history.check(seen == is_at, "O1", detail)
            shut = [p for p in self._engines(name) if pods.is_live(p) and not pods.is_routable(p)]
            self.history.check(not shut, "O1", f"{len(shut)} engines of {name} get no requests")
            if _is_bad(resource):
                reason = _reason(status, "Ready")
                self.history.check(reason == "InvalidSpec", "O6", f"{name} is bad, but {reason}")
            elif _reason(status, "ModelCached") == "Loaded":
                self._check_volume(name)

    def _check_volume(self, name: str) -> None:
        """A model is where it is said to be (O5)."""
        volume = self.model.get(VOLUME_CLAIM, Key(NAMESPACE, names.models(name)))
        uid = volume["metadata"]["uid"] if volume else ""
        jobs = [c["metadata"]["name"] for c in self._children(name) if c["kind"] == JOB.name]
        is_there = any((uid, job) in self.controllers.loaded for job in jobs)
        self.history.check(is_there, "O5", f"the model of {name} is not in its volume")

    def essence(self) -> dict[str, object]:
        """Returns what each good service has come to, however it came about (O4)."""
        return {
            resource["metadata"]["name"]: self._essence(resource)
            for resource in self.model.list(INFERENCE_SERVICE).items
            if not _is_bad(resource)
        }

    def _essence(self, resource: Manifest) -> object:
        name, spec = resource["metadata"]["name"], resource["spec"]
        status = resource.get("status") or {}
        words = {c["type"]: (c["status"], c["reason"]) for c in status.get("conditions") or []}
        children = {}
        for child in self._children(name):
            kept = child.get("spec") or child["data"]
            if child["kind"] == "Deployment" and "replicas" not in spec:
                # Whoever decides their number remembers what was.
                kept = {field: value for field, value in kept.items() if field != "replicas"}
            key = child["kind"], child["metadata"]["name"]
            children[key] = None if child["kind"] == "Job" else kept
        if "replicas" not in spec:
            return children
        routable = sum(pods.is_live(p) and pods.is_routable(p) for p in self._engines(name))
        return children, words, routable


def _reason(status: Manifest, type: str) -> str:
    return str(conditions.find(status.get("conditions") or [], type).get("reason", ""))


def _is_bad(resource: Manifest) -> bool:
    return all(field in resource["spec"] for field in TWO_DECIDE)
