"""The path from what happens to what is written, on a cluster in memory without controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.operator import building
from tests.operator.fake_cluster import Call, FakeCluster

from octavo.operator import controller
from octavo.operator.cluster import (
    ClusterError,
    ConflictError,
    FailedError,
    Key,
    RefusedError,
    UnavailableError,
)
from octavo.operator.config import OperatorConfig
from octavo.operator.controller import Controller
from octavo.operator.kinds import (
    CHILD_KINDS,
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    NETWORK_POLICY,
    POD_MONITOR,
    SECRET,
    SERVICE,
    Kind,
    Manifest,
)
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.mirror import WATCHED_KINDS
from octavo.runtime.env import SystemEnv

TEAM = building.NAMESPACE
LLAMA = Key(TEAM, "llama")


class Killed(BaseException):
    """The operator's process ends here."""


class FewTimes:
    """An error for the first calls."""

    def __init__(self, times: int, error: ClusterError) -> None:
        self._left = [error] * times

    def __call__(self, call: Call) -> ClusterError | None:
        return self._left.pop() if self._left else None


class World:
    """A cluster and the operator on it; `restart` makes a new operator that knows nothing."""

    def __init__(
        self,
        cluster: FakeCluster | None = None,
        *,
        may_act: bool = True,
        namespaces: tuple[str, ...] = (),
        network_policies: bool = True,
    ) -> None:
        self.cluster = cluster or FakeCluster()
        self.metrics = OperatorMetrics(CollectorRegistry())
        config = OperatorConfig(
            resync_s=1.0,
            request_timeout_s=1.0,
            workers=3,
            namespaces=namespaces,
            network_policies=network_policies,
        )
        self.controller = Controller(
            self.cluster,
            config,
            reports=None,
            may_act=lambda: may_act,
            metrics=self.metrics,
            env=SystemEnv(),
        )
        self.cluster.watchers[:] = [self._watch]
        self._loops: list[asyncio.Task[None]] = []

    def _watch(self, kind: Kind, event: str, manifest: Manifest) -> None:
        if kind in WATCHED_KINDS:
            self.controller.notice(kind, event, manifest)

    def apply(self, name: str = "llama", *, namespace: str = TEAM, **spec: Any) -> None:
        """Somebody applies an InferenceService."""
        made = building.resource(name, **spec)
        metadata = {"name": name, "namespace": namespace}
        self.cluster.put(INFERENCE_SERVICE, {"metadata": metadata, "spec": made["spec"]})

    async def settle(self) -> None:
        """Lists all and works on what is to be done now, until nothing is."""
        await self.controller.sync()
        for _ in range(30):
            before = self.cluster.version
            for service in tuple(self.controller.mirror.services):
                await self.controller.reconcile(service)
            if self.cluster.version == before:
                return
        raise AssertionError("it does not come to rest")

    async def run(self) -> None:
        """Starts the loops, as a process has them."""
        await self.controller.start()
        loops = [self.controller.run_worker() for _ in range(3)]
        self._loops = [asyncio.create_task(loop) for loop in (*loops, self.controller.run_resync())]

    async def stop(self) -> None:
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits until something holds, which is looked at whenever the loop comes round."""
        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.005)

    def deployment(self, name: str = "llama") -> Manifest | None:
        return self.cluster.peek(DEPLOYMENT, f"{name}-engine", TEAM)

    def condition(self, kind: str = "Ready", name: str = "llama") -> Manifest:
        found = self.cluster.peek(INFERENCE_SERVICE, name, TEAM)
        conditions = ((found or {}).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == kind), {})

    @property
    def num_statuses(self) -> int:
        """How often somebody tried to write a status."""
        return len([call for call in self.cluster.calls if call.subresource == "status"])

    def num_looks(self, result: str) -> float:
        """How many looks at services came to this."""
        name = "octavo_operator_reconciles_total"
        return self.metrics.registry.get_sample_value(name, {"result": result}) or 0.0

    def state(self) -> dict[tuple[str, str], object]:
        """Returns what there is, without what differs from run to run."""
        found: dict[tuple[str, str], object] = {}
        for kind in (INFERENCE_SERVICE, *CHILD_KINDS):
            for manifest in self.cluster.all(kind):
                reasons = [
                    (c["type"], c["status"], c["reason"])
                    for c in (manifest.get("status") or {}).get("conditions") or []
                ]
                found[kind.name, manifest["metadata"]["name"]] = (manifest.get("spec"), reasons)
        return found


def run(
    case: Callable[[World], Awaitable[None]],
    *,
    may_act: bool = True,
    namespaces: tuple[str, ...] = (),
) -> None:
    async def wrapped() -> None:
        world = World(may_act=may_act, namespaces=namespaces)
        try:
            async with asyncio.timeout(60):
                await case(world)
        finally:
            await world.stop()

    asyncio.run(wrapped())


def test_a_resource_becomes_its_children_and_then_nothing_is_written() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        kinds = {name for name, _ in world.state()}
        assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
        await world.until(lambda: len(world.controller.queue) <= 1)
        num_writes = len(world.cluster.writes)
        for _ in range(3):
            await world.controller.sync()
            await asyncio.sleep(0.1)
        assert len(world.cluster.writes) == num_writes

    run(case)


def test_an_edit_is_written_once() -> None:
    async def case(world: World) -> None:
        world.apply(replicas=1)
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        world.cluster.calls.clear()
        world.apply(replicas=2)
        await world.until(lambda: (world.deployment() or {})["spec"]["replicas"] == 2)
        await asyncio.sleep(0.2)
        assert [call.kind for call in world.cluster.writes if not call.subresource][:1] == [
            DEPLOYMENT
        ]
        assert [c.kind for c in world.cluster.writes].count(DEPLOYMENT) == 1

    run(case)


def test_an_event_that_no_watch_told_is_found_by_the_next_listing() -> None:
    async def case(world: World) -> None:
        world.apply(replicas=1)
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        world.cluster.watchers.clear()
        world.apply(replicas=2)
        await world.until(lambda: (world.deployment() or {})["spec"]["replicas"] == 2)
        world.cluster.remove(SERVICE, Key(TEAM, "llama-engine"))
        await world.until(lambda: world.cluster.peek(SERVICE, "llama-engine", TEAM))
        text = generate_latest(world.metrics.registry).decode()
        assert "octavo_operator_missed_changes_total 0.0" not in text

    run(case)


def test_a_bad_resource_gets_a_condition_and_holds_up_nobody() -> None:
    async def case(world: World) -> None:
        world.apply("good")
        world.apply("bad", model={"uri": "gopher://x"})
        world.cluster.put(
            INFERENCE_SERVICE,
            {"metadata": {"name": "worse", "namespace": TEAM}, "spec": ["what?"]},
        )
        await world.run()
        await world.until(lambda: world.deployment("good"))
        for name in ("bad", "worse"):
            await world.until(lambda name=name: world.condition(name=name))  # type: ignore[misc]
            assert world.condition(name=name)["status"] == "False"
            assert world.deployment(name) is None

    run(case)


@pytest.mark.parametrize(
    "error",
    [ConflictError("first"), UnavailableError("away"), UnavailableError("no", retry_after_s=0.2)],
    ids=["409", "500", "429"],
)
def test_a_failure_is_tried_again_and_concerns_only_its_service(error: ClusterError) -> None:
    async def case(world: World) -> None:
        world.cluster.fail(error, when=lambda call: call.is_write and "weak" in call.name)
        world.apply("weak")
        world.apply("strong")
        await world.run()
        await world.until(lambda: world.condition("Routable", "strong"))
        await world.until(lambda: len([c for c in world.cluster.writes if "weak" in c.name]) > 1)
        assert world.condition(name="weak") == {}, "what was not done is not claimed"
        world.cluster.faults.clear()
        await world.until(lambda: world.condition("Routable", "weak"))

    run(case)


def test_a_status_that_is_refused_is_an_event_and_tried_again() -> None:
    async def case(world: World) -> None:
        refusal = RefusedError("the definition is too old")
        world.cluster.fail(refusal, when=lambda call: call.subresource == "status")
        world.apply()
        await world.run()
        await world.until(
            lambda: len([c for c in world.cluster.calls if c.subresource == "status"]) > 2
        )
        (event,) = world.cluster.all(EVENT)
        assert (event["type"], event["reason"]) == ("Warning", "Refused")
        assert event["message"] == "the definition is too old"
        text = generate_latest(world.metrics.registry).decode()
        assert 'octavo_operator_reconciles_total{result="refused"}' in text
        world.cluster.faults.clear()
        await world.until(lambda: world.condition("Routable"))

    run(case)


def test_a_status_that_is_refused_after_a_conflict_is_an_event_too() -> None:
    async def case(world: World) -> None:
        refusal = RefusedError("the definition is too old")
        world.cluster.fail(refusal, when=lambda call: call.subresource == "status")
        conflict = FewTimes(1, ConflictError("first"))
        world.cluster.faults.append(lambda call: conflict(call) if call.is_write else None)
        world.apply()
        await world.run()
        await world.until(lambda: world.num_statuses > 2)
        (event,) = world.cluster.all(EVENT)
        assert event["message"] == "the definition is too old"

    run(case)


def test_a_failure_amid_refusals_of_the_status_is_tried_again_and_posts_no_second_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "FIRST_BACKOFF_S", 0.001)

    async def case(world: World) -> None:
        refusal = RefusedError("the definition is too old")
        world.cluster.fail(refusal, when=lambda call: call.subresource == "status")
        world.apply()
        await world.run()
        await world.until(lambda: world.num_statuses > controller.LASTING)
        failed = FewTimes(1, FailedError("failed calling webhook"))
        world.cluster.faults.append(
            lambda call: failed(call) if call.is_write and call.kind == SERVICE else None
        )
        world.cluster.remove(SERVICE, Key(TEAM, "llama-engine"))
        await world.until(lambda: world.cluster.peek(SERVICE, "llama-engine", TEAM))
        before = world.num_statuses
        await world.until(lambda: world.num_statuses > before + 2)
        assert [call.kind for call in world.cluster.writes].count(EVENT) == 1
        assert world.num_looks("cluster_error") == 1

    run(case)


def test_the_first_failure_after_an_outage_is_not_one_that_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "FIRST_BACKOFF_S", 0.001)

    async def case(world: World) -> None:
        away = FewTimes(controller.LASTING, UnavailableError("away"))
        failed = FewTimes(1, FailedError("failed calling webhook"))
        world.cluster.faults.append(
            lambda call: (
                away(call) or failed(call) if call.is_write and call.kind == SERVICE else None
            )
        )
        world.apply()
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        assert world.num_looks("cluster_error") == controller.LASTING + 1

    run(case)


def test_a_fault_of_ours_concerns_only_its_service() -> None:
    async def case(world: World) -> None:
        def break_down(call: Call) -> ClusterError | None:
            if call.is_write and "weak" in call.name:
                raise ZeroDivisionError
            return None

        world.cluster.faults.append(break_down)
        world.apply("weak")
        world.apply("strong")
        await world.run()
        await world.until(lambda: world.condition("Routable", "strong"))
        world.cluster.faults.clear()
        await world.until(lambda: world.condition("Routable", "weak"))
        text = generate_latest(world.metrics.registry).decode()
        assert 'octavo_operator_reconciles_total{result="failed"}' in text

    run(case)


def test_an_api_server_that_is_away_changes_no_condition() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.settle()
        before = world.cluster.peek(INFERENCE_SERVICE, "llama", TEAM)
        world.cluster.fail(UnavailableError("away"))
        with suppress(UnavailableError):
            await world.controller.sync()
        for _ in range(3):
            await world.controller.reconcile(LLAMA)
        world.cluster.faults.clear()
        await world.settle()
        assert world.cluster.peek(INFERENCE_SERVICE, "llama", TEAM) == before

    run(case)


def test_the_start_waits_for_the_api_server() -> None:
    async def case(world: World) -> None:
        world.cluster.fail(UnavailableError("away"))
        starting = asyncio.create_task(world.controller.start())
        await world.until(lambda: len(world.cluster.calls) >= 2)
        assert not starting.done()
        world.cluster.faults.clear()
        await starting
        assert world.controller.synced_at is not None

    run(case)


def refuse(world: World, *namespaces: str) -> None:
    """Lets no kind be listed in some namespaces from now on."""
    world.cluster.fail(
        RefusedError("forbidden"), when=lambda c: c.verb == "list" and c.name in namespaces
    )


def test_a_namespace_that_may_not_be_listed_holds_up_no_other() -> None:
    async def case(world: World) -> None:
        refuse(world, "gone")
        world.apply("before", namespace="gone")
        world.apply()
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        assert {call.name for call in world.cluster.writes if "before" in call.name} == set()
        world.cluster.faults.clear()
        await world.until(lambda: world.cluster.peek(DEPLOYMENT, "before-engine", "gone"))

    run(case, namespaces=(TEAM, "gone"))


def test_what_is_known_of_a_namespace_goes_with_the_right_to_list_it() -> None:
    async def case(world: World) -> None:
        world.apply("there", namespace="gone")
        world.apply()
        await world.settle()
        refuse(world, "gone")
        await world.controller.sync()
        assert tuple(world.controller.mirror.services) == (LLAMA,)
        # A watch may still tell of it, but of one object and not of those that belong to it.
        world.cluster.calls.clear()
        world.apply("there", namespace="gone", replicas=2)
        assert await world.controller.reconcile(Key("gone", "there")) is None
        assert world.cluster.calls == []

    run(case, namespaces=(TEAM, "gone"))


def test_nothing_is_written_from_what_was_forgotten_in_the_middle_of_a_look() -> None:
    async def case(world: World) -> None:
        service = Key("gone", "there")
        world.apply("there", namespace="gone")
        world.apply()
        await world.settle()
        read = world.controller._references.read

        async def closed(*arguments: Any) -> Any:
            refuse(world, "gone")
            await world.controller.sync()
            return await read(*arguments)

        with mock.patch.object(world.controller._references, "read", closed):
            world.cluster.calls.clear()
            assert await world.controller.reconcile(service) is None
        assert world.cluster.writes == []

    run(case, namespaces=(TEAM, "gone"))


@pytest.mark.parametrize("namespaces", [(), (TEAM,), (TEAM, "gone")])
def test_an_optional_kind_that_may_not_be_listed_holds_up_nothing(
    namespaces: tuple[str, ...],
) -> None:
    async def case(world: World) -> None:
        world.cluster.served.add(POD_MONITOR)
        world.cluster.fail(
            RefusedError("forbidden"), when=lambda c: c.verb == "list" and c.kind == POD_MONITOR
        )
        world.apply()
        await world.settle()
        assert world.deployment()
        assert world.cluster.all(POD_MONITOR) == []

    run(case, namespaces=namespaces)


@pytest.mark.parametrize("namespaces", [(), (TEAM,), (TEAM, "gone")])
def test_the_start_waits_for_a_namespace_that_may_be_listed(namespaces: tuple[str, ...]) -> None:
    async def case(world: World) -> None:
        refuse(world, "*", TEAM, "gone")
        starting = asyncio.create_task(world.controller.start())
        await world.until(lambda: len(world.cluster.calls) > 2 * len(namespaces))
        assert not starting.done()
        assert world.controller.scopes.states() == {(name,): False for name in namespaces}
        world.cluster.faults.clear()
        await starting
        assert world.controller.scopes.states() == {(name,): True for name in namespaces}

    run(case, namespaces=namespaces)


@pytest.mark.parametrize("namespaces", [(TEAM,), (TEAM, "gone")])
def test_rights_that_are_lost_everywhere_are_told_and_nothing_is_forgotten(
    namespaces: tuple[str, ...],
) -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.settle()
        refuse(world, TEAM, "gone")
        with pytest.raises(RefusedError):
            await world.controller.sync()
        assert world.controller.scopes.states() == {(name,): False for name in namespaces}
        assert tuple(world.controller.mirror.services) == (LLAMA,)

    run(case, namespaces=namespaces)


def test_what_is_refused_is_said_in_a_condition_and_tried_again() -> None:
    async def case(world: World) -> None:
        refused = RefusedError('pods "x" is forbidden: exceeded quota')
        world.cluster.fail(refused, when=lambda call: call.is_write and call.kind == DEPLOYMENT)
        world.apply()
        await world.settle()
        ready = world.condition()
        assert ready["status"] == "False"
        assert "exceeded quota" in ready["message"]
        assert world.cluster.peek(SERVICE, "llama-engine", TEAM), "what is behind it is written"
        world.cluster.faults.clear()
        await world.settle()
        assert world.deployment()
        assert "exceeded quota" not in str(world.condition())

    run(case)


def test_what_an_api_server_fails_at_for_long_is_said_until_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller, "FIRST_BACKOFF_S", 0.001)

    async def case(world: World) -> None:
        world.apply()
        await world.run()
        await world.until(lambda: world.condition("Routable"))
        failed = FailedError('failed calling webhook "validate.example.com"')
        world.cluster.fail(failed, when=lambda call: call.is_write and call.kind == SERVICE)
        world.cluster.remove(SERVICE, Key(TEAM, "llama-engine"))
        world.apply(replicas=2)
        await world.until(lambda: "validate.example.com" in world.condition().get("message", ""))
        assert world.condition()["observedGeneration"] == 2
        assert (world.deployment() or {})["spec"]["replicas"] == 2, "what is behind it is written"
        world.cluster.faults.clear()
        await world.until(lambda: "webhook" not in world.condition()["message"])

    run(case)


def test_somebody_who_undoes_our_writes_is_answered_ever_more_slowly() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.settle()
        waits = []
        for _ in range(8):
            found = world.deployment()
            assert found is not None
            found["spec"]["template"]["spec"]["enableServiceLinks"] = True
            world.cluster.put(DEPLOYMENT, found)
            waits.append(await world.controller.reconcile(LLAMA))
        numbers = [wait for wait in waits if wait is not None]
        assert len(numbers) == 8
        assert numbers == sorted(numbers)
        assert numbers[-1] > 50 * numbers[0]

    run(case)


def test_without_the_lease_nothing_is_written() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.run()
        await asyncio.sleep(0.3)
        assert world.cluster.writes == []

    run(case, may_act=False)


def test_a_deleted_resource_is_forgotten() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.settle()
        world.cluster.remove(INFERENCE_SERVICE, LLAMA)
        world.cluster.calls.clear()
        assert await world.controller.reconcile(LLAMA) is None
        assert world.cluster.calls == []

    run(case)


def test_a_changed_secret_reaches_the_template() -> None:
    async def case(world: World) -> None:
        model = {"uri": "pvc://weights/llama", "secretRef": {"name": "hub"}}
        secret = {"metadata": {"name": "hub", "namespace": TEAM}, "data": {"token": "b2xk"}}
        world.cluster.put(SECRET, secret)
        world.apply(model=model)
        await world.settle()
        found = world.deployment()
        assert found is not None
        world.cluster.put(SECRET, secret | {"data": {"token": "bmV3"}})
        fresh = World(world.cluster)
        await fresh.settle()
        changed = world.deployment()
        assert changed is not None
        before, after = (d["spec"]["template"]["metadata"]["annotations"] for d in (found, changed))
        assert before != after
        assert "b2xk" not in str(found)

    run(case)


def test_policies_that_are_wanted_no_more_go_and_nothing_else_does() -> None:
    async def case(world: World) -> None:
        world.apply(**FROM_HUB)
        await world.settle()
        assert len(world.cluster.all(NETWORK_POLICY)) == 2
        others = {name for name in world.state() if name[0] != "NetworkPolicy"}
        without = World(world.cluster, network_policies=False)
        await without.settle()
        assert without.state().keys() == others
        await World(world.cluster).settle()
        assert len(world.cluster.all(NETWORK_POLICY)) == 2

    run(case)


def test_an_optional_kind_is_used_where_it_is_served() -> None:
    async def case(world: World) -> None:
        world.apply()
        await world.settle()
        assert world.cluster.all(POD_MONITOR) == []
        world.cluster.served.add(POD_MONITOR)
        await world.settle()
        assert [m["metadata"]["name"] for m in world.cluster.all(POD_MONITOR)] == ["llama-engine"]

    run(case)


FROM_HUB = building.from_hub()
EDIT: Manifest = {"replicas": 3, "engine": {"resources": {"limits": {"memory": "2Gi"}}}}


@pytest.mark.parametrize("spec", [{}, FROM_HUB], ids=["ready model", "model to load"])
@pytest.mark.parametrize("late", [False, True], ids=["before", "after its effect"])
def test_an_operator_killed_at_any_write_leads_to_the_same_end(spec: Manifest, late: bool) -> None:
    """Kills it at its first, second, … write of a first reconcile and of an update."""

    async def ends(kill_at: int | None) -> tuple[object, int]:
        cluster = FakeCluster()
        num_writes = 0

        def count(call: Call) -> ClusterError | None:
            nonlocal num_writes
            if call.is_write:
                num_writes += 1
                if num_writes == kill_at:
                    raise Killed
            return None

        (cluster.late_faults if late else cluster.faults).append(count)
        for edit in ({}, EDIT):
            world = World(cluster)
            world.apply(**(spec | edit))
            try:
                await world.settle()
            except Killed:
                world = World(cluster)
                await world.settle()
        return world.state(), num_writes

    async def case() -> None:
        undisturbed, num_writes = await ends(None)
        assert num_writes > 8
        for kill_at in range(1, num_writes + 1):
            assert (await ends(kill_at))[0] == undisturbed, f"killed at write {kill_at}"

    asyncio.run(case())
