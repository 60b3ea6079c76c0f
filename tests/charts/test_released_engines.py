"""An upgrade restarts no engine: for the same service the operator writes the same Deployment.

Where that is to change, every engine of every service is replaced by the next upgrade, models are
loaded anew and caches are lost. If it has to be, CHANGELOG.md says so under "Changed", in the words
of whoever upgrades, and only then the Deployments are written again as if they were those of the
version before: `python -m tests.charts.released_engines VERSION`.
"""

from __future__ import annotations

import pytest
from tests.charts.released_engines import deployment, kept
from tests.charts.rendering import PREVIOUS, RELEASED, Manifest, version_of

BEFORE = [
    pytest.param(each, id=f"{version_of(chart)}-{each['service']['metadata']['name']}")
    for chart in RELEASED
    for each in kept(chart)
]


@pytest.mark.parametrize("before", BEFORE)
def test_an_upgrade_writes_the_same_engines_as_before(before: Manifest) -> None:
    assert deployment(before["service"]) == before["deployment"]


def test_services_of_all_kinds_are_compared() -> None:
    uris = [each["service"]["spec"]["model"]["uri"] for each in kept(PREVIOUS)]
    assert {uri.partition(":")[0] for uri in uris} == {"hf", "s3", "pvc", "oci", "file"}
    engines = [each["service"]["spec"]["engine"] for each in kept(PREVIOUS)]
    assert {engine["device"] for engine in engines} == {"cpu", "cuda"}
