from __future__ import annotations

from typing import Any

import pytest

from octavo.operator import dry_run, names
from octavo.operator.desired_engine import Strategy
from octavo.operator.kinds import Manifest


def deployment(
    template: str, gpus: int = 0, replicas: int = 2, *, kind: str = "nvidia.com/gpu"
) -> Manifest:
    container: dict[str, Any] = {"name": "engine"}
    if gpus:
        container["resources"] = {"limits": {kind: gpus, "memory": "1Gi"}}
    pods = {
        "metadata": {"annotations": {names.TEMPLATE: template}},
        "spec": {"containers": [container]},
    }
    return {"spec": {"replicas": replicas, "template": pods}}


def preview(
    present: Manifest | None, wanted: Manifest, *, replicas: int = 2, surge: int | str = 1
) -> Manifest:
    strategy = Strategy(max_surge=surge, max_unavailable=0)
    return dry_run.preview(
        ["a", "b"], deployment=present, wanted=wanted, replicas=replicas, strategy=strategy
    )


def test_it_says_what_restarts_and_how_many_gpus_that_takes() -> None:
    found = preview(deployment("old", 2), deployment("new", 2))
    assert found == {"changes": ["a", "b"], "restarts": 2, "gpus": 6}


def test_gpus_count_whatever_the_cluster_calls_them() -> None:
    wanted = deployment("new", 1, kind="nvidia.com/mig-3g.40gb")
    assert preview(deployment("old", 1), wanted)["gpus"] == 3


def test_the_same_template_restarts_nothing() -> None:
    found = preview(deployment("same", 1), deployment("same", 1), replicas=3)
    assert (found["restarts"], found["gpus"]) == (0, 3)


def test_a_first_deployment_restarts_nothing() -> None:
    found = preview(None, deployment("new", 1))
    assert (found["restarts"], found["gpus"]) == (0, 2)


def test_engines_that_go_anyway_are_not_restarted() -> None:
    assert preview(deployment("old"), deployment("new"), replicas=1)["restarts"] == 1


@pytest.mark.parametrize(("surge", "gpus"), [("25%", 3), ("100%", 4), ("0%", 2), (0, 2), (3, 5)])
def test_a_share_is_rounded_up(surge: int | str, gpus: int) -> None:
    assert preview(deployment("old", 1), deployment("new", 1), surge=surge)["gpus"] == gpus


def test_a_list_of_changes_has_a_bound() -> None:
    strategy = Strategy(max_surge=1, max_unavailable=0)
    found = dry_run.preview(
        ["x" * 5000] * 500,
        deployment=None,
        wanted=deployment("new"),
        replicas=1,
        strategy=strategy,
    )
    assert len(found["changes"]) == dry_run.MAX_CHANGES
    assert len(found["changes"][0]) == dry_run.MAX_LENGTH
