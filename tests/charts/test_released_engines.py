"""An upgrade restarts no engine: for the same service the operator writes the same Deployment.

Where that is to change, every engine of every service is replaced by the next upgrade, models are
loaded anew and caches are lost. If it has to be, CHANGELOG.md says so under "Changed", in the words
of whoever upgrades, and only then the Deployments are written again as if they were those of the
version before: `python -m tests.charts.released_engines VERSION`.
"""

from __future__ import annotations

import json

import pytest
from tests.charts.released_engines import KEPT, deployment
from tests.charts.rendering import Manifest

BEFORE: list[Manifest] = json.loads(KEPT.read_text("utf-8"))


@pytest.mark.parametrize("kept", BEFORE, ids=lambda kept: str(kept["service"]["metadata"]["name"]))
def test_an_upgrade_writes_the_same_engines_as_before(kept: Manifest) -> None:
    assert deployment(kept["service"]) == kept["deployment"]


def test_services_of_all_kinds_are_compared() -> None:
    uris = [kept["service"]["spec"]["model"]["uri"] for kept in BEFORE]
    assert {uri.partition(":")[0] for uri in uris} == {"hf", "s3", "pvc", "oci", "file"}
    engines = [kept["service"]["spec"]["engine"] for kept in BEFORE]
    assert {engine["device"] for engine in engines} == {"cpu", "cuda"}
