"""Plans carried out on a cluster in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from tests.operator.fake_cluster import FakeCluster

from octavo.operator.cluster import (
    ConflictError,
    FailedError,
    Key,
    MissingError,
    RefusedError,
    UnavailableError,
)
from octavo.operator.execution import Executor, Outcome
from octavo.operator.kinds import (
    DEPLOYMENT,
    EVENT,
    INFERENCE_SERVICE,
    JOB,
    POD,
    SERVICE,
    Kind,
    Manifest,
)
from octavo.operator.metrics import OperatorMetrics
from octavo.operator.mirror import Mirror
from octavo.operator.observed import Refusal
from octavo.operator.plan import Apply, Delete, Event, PatchPodCondition, Plan, Scale, Write
from octavo.runtime.env import SystemEnv

CHAT = Key("shop", "chat")
STATUS: Manifest = {"observedGeneration": 1}
STARTED = Event(type="Normal", reason="Started", message="The engines were started.")


def child(kind: Kind, name: str, *, owner: str = "uid-cr", **more: object) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {"serving.octavo.dev/service": "chat"},
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        **more,
    }


def apply(kind: Kind, name: str, *, creates: bool = False) -> Apply:
    return Apply(manifest=child(kind, name), creates=creates)


class World:
    """A cluster with one InferenceService, and what carries out plans for it."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.mirror = Mirror()
        self.metrics = OperatorMetrics(CollectorRegistry())
        self.may_act: Callable[[], bool] = lambda: True
        self.executor = Executor(
            self.cluster, self.mirror, may_act=lambda: self.may_act(),
            metrics=self.metrics, env=SystemEnv(),
        )  # fmt: skip
        metadata = {"name": "chat", "namespace": "shop", "uid": "uid-cr"}
        self.resource = self.cluster.put(INFERENCE_SERVICE, {"metadata": metadata, "spec": {}})

    async def execute(
        self, *writes: Write, known: tuple[Refusal, ...] = (), is_lasting: bool = False
    ) -> Outcome:
        plan = Plan(writes=writes, status=STATUS, events=(STARTED,))
        outcome = await self.executor.execute(
            plan, self.resource, known=known, is_lasting=is_lasting
        )
        self.resource = self.mirror.resource(CHAT) or self.resource
        return outcome

    @property
    def done(self) -> list[tuple[str, str]]:
        return [(call.verb + call.subresource, call.name) for call in self.cluster.calls]

    @property
    def status(self) -> object:
        found = self.cluster.peek(INFERENCE_SERVICE, "chat")
        assert found is not None
        return found.get("status")

    def counted(self, labels: str) -> bool:
        text = generate_latest(self.metrics.registry).decode()
        return f"octavo_operator_writes_total{{{labels}}} 1.0" in text


def run(case: Callable[[World], Awaitable[None]]) -> None:
    async def wrapped() -> None:
        await case(World())

    asyncio.run(wrapped())


def test_writes_come_first_then_the_status_then_the_events() -> None:
    async def case(world: World) -> None:
        outcome = await world.execute(
            apply(SERVICE, "chat-engine"), apply(DEPLOYMENT, "chat-engine")
        )
        assert outcome == Outcome(refusals=(), num_writes=2, status_waits=False)
        assert [call.kind for call in world.cluster.calls] == [
            SERVICE, DEPLOYMENT, INFERENCE_SERVICE, EVENT,
        ]  # fmt: skip
        assert world.status == STATUS
        assert [m["kind"] for m in world.mirror.children(CHAT)] == ["Service", "Deployment"]
        assert world.counted('kind="Service",outcome="written",verb="apply"')

    run(case)


def test_a_lease_that_ends_stops_a_plan_before_its_next_write() -> None:
    async def case(world: World) -> None:
        world.may_act = lambda: not world.cluster.writes
        with pytest.raises(UnavailableError, match="lease"):
            await world.execute(apply(SERVICE, "chat-engine"), apply(DEPLOYMENT, "chat-engine"))
        assert [call.kind for call in world.cluster.calls] == [SERVICE]

    run(case)


def test_an_event_is_about_the_resource() -> None:
    async def case(world: World) -> None:
        await world.execute()
        name = world.cluster.calls[-1].name
        event = world.cluster.peek(EVENT, name)
        assert event is not None
        assert event["involvedObject"] == {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "name": "chat",
            "namespace": "shop",
            "uid": "uid-cr",
        }
        assert (event["type"], event["reason"]) == ("Normal", "Started")
        assert event["firstTimestamp"].endswith("Z")

    run(case)


def test_an_event_that_cannot_be_posted_costs_nothing() -> None:
    async def case(world: World) -> None:
        world.cluster.fail(UnavailableError("away"), when=lambda call: call.kind == EVENT)
        assert (await world.execute()).status_waits is False
        assert world.status == STATUS

    run(case)


def test_what_is_new_to_us_is_looked_for_before_it_is_made() -> None:
    async def case(world: World) -> None:
        await world.execute(apply(SERVICE, "chat-engine", creates=True))
        assert world.done[:2] == [("get", "chat-engine"), ("apply", "chat-engine")]
        world.cluster.calls.clear()
        await world.execute(apply(SERVICE, "chat-engine", creates=True))
        assert world.done[:2] == [("get", "chat-engine"), ("apply", "chat-engine")], "ours already"

    run(case)


def test_what_belongs_to_somebody_else_is_left_alone() -> None:
    async def case(world: World) -> None:
        world.cluster.put(SERVICE, child(SERVICE, "chat-engine", owner="another"))
        outcome = await world.execute(
            apply(SERVICE, "chat-engine", creates=True), apply(DEPLOYMENT, "chat-engine")
        )
        (refusal,) = outcome.refusals
        assert (refusal.kind, refusal.name) == ("Service", "chat-engine")
        assert "belongs to somebody else" in refusal.message
        assert [call.kind for call in world.cluster.writes] == [DEPLOYMENT]

    run(case)


@pytest.mark.parametrize(
    "error", [RefusedError("exceeded quota"), MissingError("no such kind")], ids=["403", "404"]
)
def test_a_refusal_does_not_stop_what_is_behind_it_and_holds_the_status_back_once(
    error: RefusedError | MissingError,
) -> None:
    async def case(world: World) -> None:
        world.cluster.fail(error, when=lambda call: call.is_write and call.kind == SERVICE)
        writes = apply(SERVICE, "chat-engine"), apply(DEPLOYMENT, "chat-engine")
        first = await world.execute(*writes)
        assert first.refusals == (
            Refusal(kind="Service", name="chat-engine", message=error.message),
        )
        assert (first.num_writes, first.status_waits) == (1, True)
        assert world.status is None
        second = await world.execute(*writes, known=first.refusals)
        assert (second.refusals, second.status_waits) == (first.refusals, False)
        assert world.status == STATUS
        assert world.counted('kind="Service",outcome="refused",verb="apply"') is False, "twice"

    run(case)


def test_a_refusal_whose_reason_changes_is_the_same_refusal() -> None:
    async def case(world: World) -> None:
        known = (Refusal(kind="Service", name="chat-engine", message="used: 7"),)
        world.cluster.fail(RefusedError("used: 8"), when=lambda call: call.kind == SERVICE)
        outcome = await world.execute(apply(SERVICE, "chat-engine"), known=known)
        assert not outcome.status_waits
        assert outcome.refusals[0].message == "used: 8"

    run(case)


def test_a_write_that_succeeds_at_last_makes_the_status_wait_for_a_new_plan() -> None:
    async def case(world: World) -> None:
        known = (Refusal(kind="Service", name="chat-engine", message="no"),)
        outcome = await world.execute(apply(SERVICE, "chat-engine"), known=known)
        assert outcome == Outcome(refusals=(), num_writes=1, status_waits=True)

    run(case)


def test_a_conflict_ends_the_plan_and_the_object_is_read_again() -> None:
    async def case(world: World) -> None:
        old = world.cluster.put(DEPLOYMENT, child(DEPLOYMENT, "chat-engine"))
        world.mirror.see(DEPLOYMENT, old)
        version = old["metadata"]["resourceVersion"]
        world.cluster.put(DEPLOYMENT, child(DEPLOYMENT, "chat-engine", spec={"by": "another"}))
        write = apply(DEPLOYMENT, "chat-engine")
        write.manifest["metadata"]["resourceVersion"] = version
        with pytest.raises(ConflictError):
            await world.execute(write, apply(SERVICE, "chat-engine"))
        assert world.done == [("apply", "chat-engine"), ("get", "chat-engine")]
        assert world.mirror.children(CHAT)[0]["spec"] == {"by": "another"}

    run(case)


def test_without_an_answer_the_plan_ends() -> None:
    async def case(world: World) -> None:
        world.cluster.fail(UnavailableError("away"), when=lambda call: call.kind == SERVICE)
        with pytest.raises(UnavailableError):
            await world.execute(apply(SERVICE, "chat-engine"), apply(DEPLOYMENT, "chat-engine"))
        assert world.done == [("apply", "chat-engine")]
        assert world.counted('kind="Service",outcome="unavailable",verb="apply"')

    run(case)


def test_a_write_that_keeps_failing_is_as_good_as_refused() -> None:
    async def case(world: World) -> None:
        webhook = FailedError("failed calling webhook")
        world.cluster.fail(webhook, when=lambda c: c.is_write and c.kind == SERVICE)
        writes = apply(SERVICE, "chat-engine"), apply(DEPLOYMENT, "chat-engine")
        with pytest.raises(FailedError):
            await world.execute(*writes)
        assert world.done == [("apply", "chat-engine")], "it may have been a moment's"
        first = await world.execute(*writes, is_lasting=True)
        assert [(r.kind, r.message) for r in first.refusals] == [("Service", webhook.message)]
        assert (first.num_writes, first.status_waits, world.status) == (1, True, None)
        second = await world.execute(*writes, known=first.refusals)
        assert (second.refusals, second.status_waits) == (first.refusals, False)
        assert world.status == STATUS

    run(case)


def test_an_api_server_that_is_away_for_long_still_ends_the_plan() -> None:
    async def case(world: World) -> None:
        world.cluster.fail(UnavailableError("away"), when=lambda call: call.kind == SERVICE)
        with pytest.raises(UnavailableError):
            await world.execute(apply(SERVICE, "chat-engine"), is_lasting=True)

    run(case)


def test_an_object_that_was_made_anew_is_not_written_for_the_former_one() -> None:
    async def case(world: World) -> None:
        world.mirror.see(SERVICE, world.cluster.put(SERVICE, child(SERVICE, "chat-engine")))
        world.cluster.remove(SERVICE, Key("shop", "chat-engine"))
        write = apply(SERVICE, "chat-engine")
        write.manifest["metadata"]["uid"] = "former"
        with pytest.raises(ConflictError):
            await world.execute(write)
        assert world.mirror.children(CHAT) == (), "the next plan knows that it is gone"

    run(case)


def test_a_number_of_replicas_is_set_alone_and_known_afterwards() -> None:
    async def case(world: World) -> None:
        found = world.cluster.put(DEPLOYMENT, child(DEPLOYMENT, "chat-engine", spec={"a": 1}))
        world.mirror.see(DEPLOYMENT, found)
        uid = found["metadata"]["uid"]
        write = Scale(kind=DEPLOYMENT, name="chat-engine", uid=uid, replicas=3)
        assert (await world.execute(write)).num_writes == 1
        assert world.mirror.children(CHAT)[0]["spec"] == {"a": 1, "replicas": 3}
        gone = Scale(kind=DEPLOYMENT, name="gone", uid=uid, replicas=5)
        assert (await world.execute(gone)).num_writes == 0
        former = Scale(kind=DEPLOYMENT, name="chat-engine", uid="former", replicas=5)
        with pytest.raises(ConflictError):
            await world.execute(former)
        assert world.mirror.children(CHAT)[0]["spec"]["replicas"] == 3

    run(case)


def delete(found: Manifest) -> Delete:
    metadata = found["metadata"]
    return Delete(
        kind=JOB,
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
    )


def test_a_deletion_is_of_what_was_read_just_before() -> None:
    async def case(world: World) -> None:
        found = world.cluster.put(JOB, child(JOB, "chat-load-1"))
        outcome = await world.execute(delete(found))
        assert world.done[:3] == [
            ("get", "chat"), ("get", "chat-load-1"), ("delete", "chat-load-1"),
        ]  # fmt: skip
        assert outcome.num_writes == 1
        assert world.cluster.peek(JOB, "chat-load-1") is None

    run(case)


@pytest.mark.parametrize("is_gone", [False, True], ids=["edited", "deleted"])
def test_nothing_is_taken_away_for_a_resource_that_is_not_as_it_was(is_gone: bool) -> None:
    async def case(world: World) -> None:
        job = world.cluster.put(JOB, child(JOB, "chat-load-1"))
        found = world.cluster.put(DEPLOYMENT, child(DEPLOYMENT, "chat-engine"))
        uid = found["metadata"]["uid"]
        world.mirror.see(INFERENCE_SERVICE, world.resource)
        if is_gone:
            world.cluster.remove(INFERENCE_SERVICE, CHAT)
        else:
            world.cluster.put(INFERENCE_SERVICE, {**world.resource, "spec": {"replicas": 3}})
        planned = world.resource
        for write in (
            delete(job),
            Apply(manifest=child(DEPLOYMENT, "chat-engine"), creates=False, takes_away=True),
            Scale(kind=DEPLOYMENT, name="chat-engine", uid=uid, replicas=0, takes_away=True),
        ):
            with pytest.raises(ConflictError, match="not as it was"):
                await world.executor.execute(Plan(writes=(write,)), planned, known=())
        assert world.cluster.writes == []
        known = world.mirror.resource(CHAT)
        assert (known and known["spec"]) == (None if is_gone else {"replicas": 3})

    run(case)


def test_what_has_changed_since_the_plan_is_not_deleted() -> None:
    async def case(world: World) -> None:
        found = world.cluster.put(JOB, child(JOB, "chat-load-1"))
        planned = delete(found)
        newer = world.cluster.put(JOB, child(JOB, "chat-load-1") | {"status": {"active": 1}})
        with pytest.raises(ConflictError):
            await world.execute(planned)
        assert world.cluster.writes == []
        assert world.mirror.children(CHAT) == (newer,), "the next plan knows it as it is"

    run(case)


def test_what_is_gone_needs_no_deletion() -> None:
    async def case(world: World) -> None:
        found = world.cluster.put(JOB, child(JOB, "chat-load-1"))
        world.cluster.remove(JOB, Key("shop", "chat-load-1"))
        assert (await world.execute(delete(found))).num_writes == 0
        assert world.status == STATUS

    run(case)


def test_a_deletion_that_took_effect_unheard_is_not_repeated() -> None:
    async def case(world: World) -> None:
        found = world.cluster.put(JOB, child(JOB, "chat-load-1"))
        world.cluster.late_faults.append(lambda _call: UnavailableError("500"))
        with pytest.raises(UnavailableError):
            await world.execute(delete(found))
        world.cluster.late_faults.clear()
        assert (await world.execute(delete(found))).num_writes == 0

    run(case)


CONDITION = {"type": "serving.octavo.dev/Routable", "status": "True"}


def test_a_pod_s_condition_is_applied_to_the_pod_that_was_meant() -> None:
    async def case(world: World) -> None:
        pod = world.cluster.put(POD, child(POD, "chat-engine-x"))
        write = PatchPodCondition(
            pod="chat-engine-x", uid=pod["metadata"]["uid"], condition=CONDITION
        )
        assert (await world.execute(write)).num_writes == 1
        (kind, sent), *_ = world.cluster.applied
        assert (kind, sent["status"]) == (POD, {"conditions": [CONDITION]})
        assert world.mirror.pods(CHAT)[0]["status"]["conditions"] == [CONDITION]

    run(case)


def test_a_pod_that_is_gone_is_no_error() -> None:
    async def case(world: World) -> None:
        write = PatchPodCondition(pod="chat-engine-x", uid="former", condition=CONDITION)
        outcome = await world.execute(write)
        assert outcome == Outcome(refusals=(), num_writes=0, status_waits=False)

    run(case)


def test_a_pod_that_was_made_anew_is_left_alone() -> None:
    async def case(world: World) -> None:
        world.cluster.put(POD, child(POD, "chat-engine-x"))
        write = PatchPodCondition(pod="chat-engine-x", uid="former", condition=CONDITION)
        with pytest.raises(ConflictError):
            await world.execute(write)
        assert "status" not in (world.cluster.peek(POD, "chat-engine-x") or {})

    run(case)


def test_the_status_of_a_deleted_resource_is_nobody_s() -> None:
    async def case(world: World) -> None:
        world.cluster.remove(INFERENCE_SERVICE, CHAT)
        await world.execute()
        assert world.done == [("applystatus", "chat")], "and no event about it"

    run(case)


def test_a_resource_that_was_made_anew_gets_no_status_of_the_former_one() -> None:
    async def case(world: World) -> None:
        world.cluster.remove(INFERENCE_SERVICE, CHAT)
        metadata = {"name": "chat", "namespace": "shop", "uid": "uid-new"}
        world.cluster.put(INFERENCE_SERVICE, {"metadata": metadata})
        with pytest.raises(ConflictError):
            await world.execute()
        assert world.status is None

    run(case)


def test_an_empty_plan_asks_nothing() -> None:
    async def case(world: World) -> None:
        outcome = await world.executor.execute(Plan(), world.resource, known=())
        assert outcome == Outcome(refusals=(), num_writes=0, status_waits=False)
        assert world.cluster.calls == []

    run(case)
