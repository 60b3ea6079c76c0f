"""An upgrade restarts no engine: for the same service the operator writes the same Deployment.

Where that is to change, every engine of every service is replaced by the next upgrade, models are
loaded anew and caches are lost. If it has to be, CHANGELOG.md says so under "Changed", in the words
of whoever upgrades, and only then the Deployments are written again as if they were those of the
version before: `python -m tests.charts.released_engines VERSION`.
"""

from __future__ import annotations

import copy
import json

import pytest
from tests.charts.released_engines import KEPT, deployment
from tests.charts.rendering import Manifest
from tests.cluster.kubernetes import Kubernetes
from tests.operator.on_api_server import defined, resource
from tests.operator.reconciling import Reconciler

from octavo.operator.names import REFERENCES
from octavo.operator.plan import FIELD_MANAGER

__all__ = ["defined"]

BEFORE: list[Manifest] = json.loads(KEPT.read_text("utf-8"))


@pytest.mark.parametrize("kept", BEFORE, ids=lambda kept: str(kept["service"]["metadata"]["name"]))
def test_an_upgrade_writes_the_same_engines_as_before(kept: Manifest) -> None:
    assert deployment(kept["service"]) == kept["deployment"]


def test_services_of_all_kinds_are_compared() -> None:
    uris = [kept["service"]["spec"]["model"]["uri"] for kept in BEFORE]
    assert {uri.partition(":")[0] for uri in uris} == {"hf", "s3", "pvc", "oci", "file"}
    engines = [kept["service"]["spec"]["engine"] for kept in BEFORE]
    assert {engine["device"] for engine in engines} == {"cpu", "cuda"}


def test_an_upgrade_leaves_engines_that_run_alone(defined: Kubernetes, namespace: str) -> None:
    """On a real API server, where the version before made them, of other images by default."""
    kubectl = defined.kubectl
    names = []
    for kept in BEFORE:
        engines = copy.deepcopy(kept["deployment"])
        if REFERENCES in engines["spec"]["template"]["metadata"]["annotations"]:
            continue
        names.append(kept["service"]["metadata"]["name"])
        kubectl.apply(resource(names[-1], **kept["service"]["spec"]), namespace=namespace)
        owner = kubectl.get("ois", names[-1], namespace=namespace)["metadata"]["uid"]
        engines["metadata"]["namespace"] = namespace
        engines["metadata"]["ownerReferences"][0]["uid"] = owner
        kubectl.apply(engines, namespace=namespace, manager=FIELD_MANAGER)
    assert len(names) > 2

    def state() -> dict[str, int]:
        found = kubectl.list("deployments", namespace=namespace)
        return {each["metadata"]["name"]: each["metadata"]["generation"] for each in found}

    before = state()
    for name in names:
        Reconciler(defined.kubeconfig, namespace, name).until(lambda _: True)
    assert state() == before
    assert len(kubectl.list("replicasets", namespace=namespace)) == len(names)
