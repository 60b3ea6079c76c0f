"""What was stored under one definition, under another one: of a version before, or a laxer one."""

from __future__ import annotations

import copy
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.released_engines import kept
from tests.charts.rendering import RELEASED, version_of
from tests.cluster.api import ApiError
from tests.cluster.kubernetes import Kubernetes
from tests.operator.on_api_server import defined, ready, reason, resource
from tests.operator.operator_process import OperatorProcess, account
from tests.operator.reconciling import Reconciler
from tests.operator.test_operator_on_cluster import is_ready, story

from octavo.operator import crd, names
from octavo.operator.kinds import Manifest

__all__ = ["defined"]

STRICT = ("x-kubernetes-validations", "pattern", "minimum", "maximum")

HUB: dict[str, Any] = {"model": {"uri": "hf://org/llama"}}


def schema_of(packaged: Path) -> Manifest:
    """Returns the schema of a version before."""
    with tarfile.open(packaged) as chart:
        file = chart.extractfile("octavo/templates/crd.yaml")
        assert file is not None
        lines = file.read().decode().splitlines()
    text = "\n".join(line for line in lines if "{{" not in line)
    (version,) = yaml.safe_load(text)["spec"]["versions"]
    found: Manifest = version["schema"]["openAPIV3Schema"]
    return found


def known(value: Any, schema: Manifest) -> Any:
    """Returns what a client that knows a schema has left of a value after it was decoded."""
    if isinstance(value, list):
        return [known(each, schema.get("items", {})) for each in value]
    properties = schema.get("properties")
    if not isinstance(value, dict) or properties is None:
        return value
    return {key: known(each, properties[key]) for key, each in value.items() if key in properties}


def lax(schema: Any) -> Any:
    """Returns a schema without rules and bounds, and with all values that were ever choices."""
    if isinstance(schema, list):
        return [lax(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: lax(each) for key, each in schema.items() if key not in STRICT}
    if "ReadWriteOnce" in schema.get("enum", ()):
        found["enum"] = [*schema["enum"], "ReadWriteOncePod"]
    return found


def store(cluster: Kubernetes, namespace: str, *resources: Manifest) -> None:
    """Stores what today's definition refuses; it is in force again afterwards."""
    strict = crd.definition()
    apart = copy.deepcopy(strict)
    (version,) = apart["spec"]["versions"]
    version["schema"] = lax(version["schema"])
    cluster.kubectl.apply(apart)
    try:
        for each in resources:
            applied(cluster, namespace, each)
    finally:
        cluster.kubectl.apply(strict)
    probe = copy.deepcopy(resources[0])
    probe["metadata"] |= {"name": f"{probe['metadata']['name']}-probe", "finalizers": []}
    for _ in range(100):  # until the definition has reached who serves it
        try:
            cluster.kubectl.apply(probe, namespace=namespace)
        except ApiError:
            return
        cluster.kubectl("delete", "ois", probe["metadata"]["name"], namespace=namespace)
    raise AssertionError("the strict definition does not come back")


def applied(cluster: Kubernetes, namespace: str, found: Manifest) -> None:
    for left in reversed(range(100)):
        try:
            cluster.kubectl.apply(found, namespace=namespace)
        except ApiError:
            if not left:
                raise
        else:
            return


@pytest.fixture
def cleared(defined: Kubernetes, namespace: str) -> Iterator[str]:
    """A namespace whose services are gone in the end, whatever holds them."""
    yield namespace
    for each in defined.kubectl.list("ois", namespace=namespace):
        free(defined, namespace, each["metadata"]["name"])


def free(cluster: Kubernetes, namespace: str, name: str) -> None:
    """Takes the finalizers away."""
    patch = json.dumps({"metadata": {"finalizers": None}})
    cluster.kubectl("patch", "ois", name, "--type=merge", "-p", patch, namespace=namespace)


BEFORE = [(chart, each["service"]) for chart in RELEASED for each in kept(chart)]


@pytest.mark.parametrize(
    ("chart", "service"),
    BEFORE,
    ids=[f"{version_of(chart)}-{service['metadata']['name']}" for chart, service in BEFORE],
)
def test_a_client_of_a_version_before_that_writes_what_it_read_changes_nothing(
    defined: Kubernetes, namespace: str, chart: Path, service: Manifest
) -> None:
    name = service["metadata"]["name"]
    defined.kubectl.apply(resource(name, **service["spec"]), namespace=namespace)
    before = defined.kubectl.get("ois", name, namespace=namespace)
    old = known(before, schema_of(chart)) | {"metadata": before["metadata"]}
    defined.kubectl("replace", "--filename=-", namespace=namespace, stdin=json.dumps(old))
    after = defined.kubectl.get("ois", name, namespace=namespace)
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_what_could_not_be_stored_any_more_can_still_be_deleted(
    defined: Kubernetes, cleared: str
) -> None:
    bad = (
        resource("bad", replicas=1, autoscaling={"maxReplicas": 2}),
        resource("quoted", replicas=1, rollout={"maxSurge": "1"}),
    )
    for each in bad:
        each["metadata"]["finalizers"] = ["example.com/guard"]
    store(defined, cleared, *bad)
    for name in ("bad", "quoted"):
        reconciler = Reconciler(defined.kubeconfig, cleared, name)
        reconciler.turn()
        found = defined.kubectl.get("ois", name, namespace=cleared)
        assert found["status"]["reason"] == "InvalidSpec", "a status can be written"
        defined.kubectl("annotate", "ois", name, "note=x", namespace=cleared)
        defined.kubectl("delete", "ois", name, "--wait=false", namespace=cleared)
        reconciler.turn()
        free(defined, cleared, name)
        defined.kubectl.until_gone("ois", name, namespace=cleared)


def test_a_name_that_is_refused_by_now_is_deleted_in_the_foreground_too(
    defined: Kubernetes, cleared: str
) -> None:
    name = "x" * 41
    store(defined, cleared, resource(name))
    defined.kubectl(
        "delete", "ois", name, "--cascade=foreground", "--wait=false", namespace=cleared
    )
    defined.kubectl.until_gone("ois", name, namespace=cleared)


def test_a_service_with_a_volume_that_is_offered_no_more_serves_on(
    defined: Kubernetes, cleared: str
) -> None:
    volume = {"size": "1Gi", "accessMode": "ReadWriteOncePod"}
    store(defined, cleared, resource(**HUB, cache={"volume": volume}, replicas=1))
    reconciler = Reconciler(defined.kubeconfig, cleared, "llama")
    reconciler.until(lambda observed: ready(observed) == "True")
    patch = json.dumps({"spec": {"replicas": 2}})
    defined.kubectl("patch", "ois", "llama", "--type=merge", "-p", patch, namespace=cleared)
    found = reconciler.until(lambda o: o.resource["status"]["replicas"] == 2)
    assert reason(found, "ModelCached") == "Loaded"


def test_an_operator_whose_definition_lacks_a_field_says_so(
    defined: Kubernetes, namespace: str
) -> None:
    account(namespace).bring(defined)
    older = crd.definition()
    (version,) = older["spec"]["versions"]
    version["schema"] = copy.deepcopy(version["schema"])
    del version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["draining"]
    published = f"/openapi/v3/apis/{names.API_VERSION}"
    with OperatorProcess(defined, namespace) as operator:
        defined.kubectl.apply(older)
        try:
            operator.until(
                lambda: "draining" not in defined.kubectl("get", "--raw", published), "published"
            )
            defined.kubectl.apply(resource("chat", replicas=1), namespace=namespace)
            operator.until(
                lambda: ("Warning", "Refused") in story(defined, namespace), "told by an event"
            )
            refused = [e["reason"] for e in operator.events if e["event"] == "refused"]
            assert ".status.draining: field not declared in schema" in refused[0]
            assert "is older than the operator" in refused[0]
        finally:
            defined.kubectl.apply(crd.definition())
        defined.kubectl.until(is_ready, "ois", "chat", namespace=namespace, timeout_s=90)
