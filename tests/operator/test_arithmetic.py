from __future__ import annotations

from dataclasses import dataclass, replace

from tests.operator.building import resource
from tests.operator.world import World

from octavo.operator.kinds import Manifest
from octavo.operator.observed import Gateways


@dataclass
class Pool(World):
    """A service on nodes of several kinds, which its engines get in turn."""

    ids: tuple[str, ...] = ("avx2",)
    exact: bool = True

    def reports(self) -> Gateways:
        told = super().reports()
        return replace(told, reports=tuple(
            replace(report, engines=tuple(
                replace(engine, numerics_id=self.ids[i % len(self.ids)], exact=self.exact)
                for i, engine in enumerate(report.engines)
            ))
            for report in told.reports
        ))  # fmt: skip

    def told(self) -> Manifest:
        self.execute(self.plan())
        return self.condition("Exact")


def settled(*ids: str, exact: bool = True) -> Pool:
    pool = Pool(resource(replicas=2), ids=ids, exact=exact)
    pool.settle()
    return pool


def test_engines_that_compute_alike_are_told_and_nothing_before_one_is_known() -> None:
    pool = Pool(resource(replicas=2))
    assert pool.told() == {}
    pool.settle()
    found = pool.told()
    assert (found["status"], found["reason"]) == ("True", "SameArithmetic")
    assert found["message"] == "all engines compute alike: avx2"


def test_engines_of_different_arithmetic_are_told_with_advice_and_are_ready() -> None:
    pool = settled("avx2", "amx")
    found = pool.told()
    assert (found["status"], found["reason"]) == ("False", "DifferentArithmetic")
    assert found["message"].endswith(": amx, avx2")
    for advice in ("engine.nodeSelector", "--resume any"):
        assert advice in found["message"]
    assert pool.resource["status"]["numericsIDs"] == ["amx", "avx2"]
    assert pool.condition("Ready")["status"] == "True", "they serve all the same"
    pool.ids = ("amx",)
    assert pool.told()["status"] == "True"


def test_engines_that_are_not_exact_are_told_though_they_are_alike() -> None:
    found = settled("avx2", exact=False).told()
    assert (found["status"], found["reason"]) == ("False", "NotExact")


def test_what_was_told_stays_while_no_gateway_tells_and_goes_with_the_engines() -> None:
    pool = settled("avx2", exact=False)
    before = pool.told()
    pool.is_silent = True
    assert pool.told() == before
    pool.edit(resource(replicas=0)["spec"])
    pool.settle()
    assert pool.told() == {}


def test_without_gateways_nothing_is_told() -> None:
    pool = Pool(resource(replicas=2), gateways=False)
    pool.settle()
    assert pool.told() == {}
