"""The operator on a real control plane, whose pods are played by kwok."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.api import ApiError, Object
from tests.cluster.control_plane import ControlPlane
from tests.cluster.kubernetes import Kubernetes, condition
from tests.operator.operator_process import OperatorProcess, account

from octavo.operator.names import DRY_RUN

RESOURCE = "ois"


def service(name: str = "chat", **spec: Any) -> Object:
    """An InferenceService whose model is in the image."""
    spec.setdefault("model", {"uri": "file:///models/chat"})
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"engine": {}, **spec},
    }


def is_ready(found: Object) -> bool:
    """Tells whether a service is Ready, and its status about its present spec."""
    status = found.get("status", {})
    is_current = status.get("observedGeneration") == found["metadata"]["generation"]
    return is_current and condition(found, "Ready") == "True"


def story(cluster: Kubernetes, namespace: str, name: str = "chat") -> list[tuple[str, str]]:
    """Returns type and reason of the events about a service, as `kubectl describe` orders them.

    Which is by second, and within one by name.
    """
    about = f"--field-selector=involvedObject.kind=InferenceService,involvedObject.name={name}"
    shown = cluster.kubectl("get", "events", about, "-o", "json", namespace=namespace)
    told = json.loads(shown)["items"]
    told.sort(key=lambda event: (event["lastTimestamp"], event["metadata"]["name"]))
    return [(event["type"], event["reason"]) for event in told]


@pytest.fixture
def prepared(cluster: Kubernetes, namespace: str) -> str:
    """A namespace with the account and the roles of an operator."""
    account(namespace).bring(cluster)
    return namespace


@pytest.fixture
def operator(cluster: Kubernetes, prepared: str) -> Iterator[OperatorProcess]:
    """An operator that serves a new namespace."""
    with OperatorProcess(cluster, prepared, "--resync-s=2") as running:
        yield running


def writes(control_plane: ControlPlane, namespace: str) -> list[tuple[str, str]]:
    """Returns verb and resource of what the namespace's operator has written."""
    return [
        (event["verb"], event["objectRef"]["resource"])
        for event in control_plane.audit()
        if event["user"]["username"] == account(namespace).user
        and event["verb"] not in ("get", "list", "watch")
        and event.get("objectRef", {}).get("resource") not in ("leases", None)
    ]


def test_an_applied_service_becomes_ready_and_says_so(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    cluster.kubectl.apply(service(replicas=2), namespace=operator.namespace)
    found = cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=operator.namespace)
    assert found["status"]["counts"] == "2/2"
    for kind in ("deployment", "service", "pdb", "networkpolicy"):
        child = cluster.kubectl.get(kind, "chat-engine", namespace=operator.namespace)
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == found["metadata"]["uid"]
        assert "finalizers" not in child["metadata"]
    assert "finalizers" not in found["metadata"]
    assert "annotations" not in found["metadata"], "nothing is remembered in the resource"
    row = cluster.kubectl("get", RESOURCE, namespace=operator.namespace).splitlines()[1].split()
    assert row[:5] == ["chat", "chat", "True", found["status"]["reason"], "2/2"]


def test_nothing_is_written_once_all_is_as_wanted(
    control_plane: ControlPlane, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    control_plane.kubectl.apply(service("a"), service("b", replicas=3), namespace=namespace)
    for name in ("a", "b"):
        control_plane.kubectl.until(is_ready, RESOURCE, name, namespace=namespace)
    settled = rested(control_plane, namespace)
    looks = operator.metric("reconciles_total")
    operator.until(lambda: operator.metric("reconciles_total") > looks + 4, "looked at twice more")
    assert writes(control_plane, namespace)[settled:] == []


def rested(control_plane: ControlPlane, namespace: str) -> int:
    """Waits until the operator has written nothing for a second; returns how much it wrote."""
    number, since = -1, time.monotonic()
    while time.monotonic() - since < 1.0:
        now = len(writes(control_plane, namespace))
        if now != number:
            number, since = now, time.monotonic()
        time.sleep(0.1)
    return number


def revisions(cluster: Kubernetes, namespace: str, name: str = "chat") -> int:
    """Returns how many templates the engines of a service have had."""
    found = cluster.kubectl.get("deployment", f"{name}-engine", namespace=namespace)
    return int(found["metadata"]["annotations"]["deployment.kubernetes.io/revision"])


def test_each_edit_rolls_out_once(cluster: Kubernetes, operator: OperatorProcess) -> None:
    namespace = operator.namespace
    spec: dict[str, Any] = {"replicas": 2, "engine": {}}
    edits: list[dict[str, Any]] = [
        {},
        {"model": {"uri": "file:///models/other"}},
        {"engine": {"options": {"maxNumSeqs": 7}}},
        {"engine": {"env": [{"name": "A", "value": "1"}]}},
        {"engine": {"extraArgs": ["--watermark=0.1"]}},
        {"engine": {"resources": {"limits": {"memory": "2Gi"}}}},
    ]
    for number, edit in enumerate(edits, start=1):
        spec |= edit
        cluster.kubectl.apply(service(**spec), namespace=namespace)
        found = cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        assert found["status"]["observedGeneration"] == number
        assert found["status"]["updated"] == 2, "nobody is ready before the new engines are"
        assert condition(found, "Rollout") == "True"
        assert revisions(cluster, namespace) == number


def test_quick_edits_make_no_second_child(cluster: Kubernetes, operator: OperatorProcess) -> None:
    namespace = operator.namespace
    for number in (1, 2, 3):
        edited = service(replicas=number, engine={"options": {"maxNumSeqs": number}})
        cluster.kubectl.apply(edited, namespace=namespace)
    found = cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    assert found["status"]["counts"] == "3/3"
    for kind in ("deployments", "services", "pdb", "networkpolicies"):
        selector = "serving.octavo.dev/service=chat"
        (child,) = cluster.kubectl.list(kind, namespace=namespace, selector=selector)
        assert child["metadata"]["name"] == "chat-engine"


def test_what_somebody_changes_or_deletes_is_mended(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    before = cluster.kubectl.get("service", "chat-engine", namespace=namespace)["metadata"]["uid"]
    cluster.kubectl("delete", "service", "chat-engine", namespace=namespace)
    patch = '{"spec": {"template": {"spec": {"automountServiceAccountToken": true}}}}'
    cluster.kubectl("patch", "deployment", "chat-engine", "-p", patch, namespace=namespace)
    cluster.kubectl.until(
        lambda s: s["metadata"]["uid"] != before, "service", "chat-engine", namespace=namespace
    )
    cluster.kubectl.until(
        lambda d: d["spec"]["template"]["spec"]["automountServiceAccountToken"] is False,
        "deployment",
        "chat-engine",
        namespace=namespace,
    )


def test_what_others_add_to_a_child_stays(cluster: Kubernetes, operator: OperatorProcess) -> None:
    namespace = operator.namespace
    cluster.kubectl.apply(service(), namespace=namespace)
    cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    cluster.kubectl("label", "deployment", "chat-engine", "cost-centre=7", namespace=namespace)
    cluster.kubectl.apply(service(replicas=2), namespace=namespace)
    cluster.kubectl.until(
        lambda s: is_ready(s) and s["status"]["counts"] == "2/2",
        RESOURCE,
        "chat",
        namespace=namespace,
    )
    found = cluster.kubectl.get("deployment", "chat-engine", namespace=namespace)
    assert found["metadata"]["labels"]["cost-centre"] == "7"


def test_a_service_that_cannot_be_made_says_why_and_holds_up_nobody(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    quota: Object = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "no-claims"},
        "spec": {"hard": {"persistentvolumeclaims": "0"}},
    }
    cluster.kubectl.apply(quota, namespace=namespace)
    cluster.kubectl.until(
        lambda q: "hard" in q.get("status", {}), "quota", "no-claims", namespace=namespace
    )
    greedy = service("greedy", model={"uri": "hf://org/llama"}, cache={"volume": {"size": "20Gi"}})
    # The volume claim is refused here, the Deployment because of a name that the schema lets pass.
    odd = service("odd", engine={"priorityClassName": "no-such-class"})
    cluster.kubectl.apply(greedy, odd, service("good"), namespace=namespace)
    cluster.kubectl.until(is_ready, RESOURCE, "good", namespace=namespace)
    found = cluster.kubectl.until(
        lambda s: condition(s, "Ready") == "False", RESOURCE, "greedy", namespace=namespace
    )
    assert "exceeded quota" in ready_message(found)
    found = cluster.kubectl.until(
        lambda s: "no-such-class" in ready_message(s), RESOURCE, "odd", namespace=namespace
    )
    assert condition(found, "Ready") == "False"
    cluster.kubectl("delete", "quota", "no-claims", namespace=namespace)
    cluster.kubectl.until(
        lambda c: bool(c["metadata"]["uid"]), "pvc", "greedy-models", namespace=namespace
    )


def ready_message(found: Object) -> str:
    """Returns what the Ready condition of a service says."""
    conditions = found.get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in conditions if c["type"] == "Ready"), "")


def test_a_rotated_secret_rolls_out_once(cluster: Kubernetes, operator: OperatorProcess) -> None:
    namespace = operator.namespace

    def secret(token: str) -> Object:
        metadata = {"name": "keys"}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "stringData": {"k": token},
        }

    reference = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}
    cluster.kubectl.apply(service(engine={"env": [reference]}), namespace=namespace)
    waiting = cluster.kubectl.until(
        lambda s: condition(s, "Ready") == "False", RESOURCE, "chat", namespace=namespace
    )
    assert "keys" in str(waiting["status"]["conditions"])
    cluster.kubectl.apply(secret("first"), namespace=namespace)
    cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    before = revisions(cluster, namespace)
    cluster.kubectl.apply(secret("second"), namespace=namespace)
    operator.until(lambda: revisions(cluster, namespace) == before + 1, "rolled out", 60)
    cluster.kubectl.until(
        lambda s: is_ready(s) and s["status"]["updated"] == 1,
        RESOURCE,
        "chat",
        namespace=namespace,
    )
    assert revisions(cluster, namespace) == before + 1


def test_deletion_needs_no_operator(cluster: Kubernetes, prepared: str) -> None:
    with OperatorProcess(cluster, prepared) as operator:
        cluster.kubectl.apply(service(), namespace=prepared)
        cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=prepared)
        operator.kill()
    cluster.kubectl("delete", RESOURCE, "chat", "--timeout=10s", namespace=prepared)
    for kind in ("deployment", "service", "pdb", "networkpolicy"):
        cluster.kubectl.until_gone(kind, "chat-engine", namespace=prepared)


def test_a_namespace_goes_with_its_services_though_no_operator_is_there(
    cluster: Kubernetes, prepared: str
) -> None:
    hub: Object = {"model": {"uri": "hf://org/llama"}, "cache": {"volume": {"size": "20Gi"}}}
    stuck = {"podAnnotations": {"fake.octavo.dev/behaviour": "image-missing"}}
    with OperatorProcess(cluster, prepared) as operator:
        services = (service("loaded", **hub), service("stuck", engine=stuck), service("unseen"))
        cluster.kubectl.apply(*services[:2], namespace=prepared)
        cluster.kubectl.until(is_ready, RESOURCE, "loaded", namespace=prepared)
        cluster.kubectl.until(
            lambda s: condition(s, "Ready") == "False", RESOURCE, "stuck", namespace=prepared
        )
        operator.kill()
    cluster.kubectl.apply(services[2], namespace=prepared)
    cluster.kubectl("delete", "namespace", prepared, "--wait=false")
    cluster.kubectl.until_gone("namespace", prepared, timeout_s=120)


def test_what_happens_without_an_operator_is_made_good(cluster: Kubernetes, prepared: str) -> None:
    with OperatorProcess(cluster, prepared) as operator:
        cluster.kubectl.apply(service("kept"), service("deleted"), namespace=prepared)
        for name in ("kept", "deleted"):
            cluster.kubectl.until(is_ready, RESOURCE, name, namespace=prepared)
        assert operator.terminate() == 0
    cluster.kubectl("delete", RESOURCE, "deleted", namespace=prepared)
    cluster.kubectl("delete", "pdb", "kept-engine", namespace=prepared)
    cluster.kubectl.apply(service("kept", replicas=2), service("new"), namespace=prepared)
    with OperatorProcess(cluster, prepared):
        cluster.kubectl.until(is_ready, RESOURCE, "new", namespace=prepared)
        cluster.kubectl.until(
            lambda s: is_ready(s) and s["status"]["counts"] == "2/2",
            RESOURCE,
            "kept",
            namespace=prepared,
        )
        cluster.kubectl.get("pdb", "kept-engine", namespace=prepared)
        assert revisions(cluster, prepared, "kept") == 1, "a restart restarts no engine"


@pytest.mark.parametrize(
    ("behaviour", "notes", "words"),
    [
        ("image-missing", {"message": "no such image: octavo-engine"}, "no such image"),
        ("crash", {"exit-code": "137", "exit-reason": "OOMKilled"}, "memory"),
        ("crash", {"exit-code": "2", "message": "--dtype: must be one of"}, "--dtype"),
    ],
    ids=["image", "out of memory", "bad argument"],
)
def test_what_is_wrong_with_an_engine_is_said(
    cluster: Kubernetes,
    operator: OperatorProcess,
    behaviour: str,
    notes: dict[str, str],
    words: str,
) -> None:
    notes = {"behaviour": behaviour, **notes}
    annotations = {f"fake.octavo.dev/{name}": value for name, value in notes.items()}
    broken = service(engine={"podAnnotations": annotations})
    cluster.kubectl.apply(broken, namespace=operator.namespace)
    cluster.kubectl.until(
        lambda s: condition(s, "Ready") == "False" and words in ready_message(s),
        RESOURCE,
        "chat",
        namespace=operator.namespace,
    )


def test_events_tell_the_story_of_a_service_in_order(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace = operator.namespace

    def until_told(*wanted: tuple[str, str]) -> None:
        """Waits for events in this order; between them is what there was time to see."""

        def is_told() -> bool:
            told = iter(story(cluster, namespace))
            return all(each in told for each in wanted)

        operator.until(is_told, f"told {wanted}", 60)

    loaded: dict[str, Any] = {
        "model": {"uri": "hf://org/llama"},
        "cache": {"volume": {"size": "1Gi"}},
    }
    cluster.kubectl.apply(service(**loaded), namespace=namespace)
    served = [("Normal", reason) for reason in ("Loading", "Loaded", "Serving")]
    until_told(*served)
    assert story(cluster, namespace)[:2] == [("Normal", "Loading"), ("Normal", "WaitingForModel")]
    annotations = {"fake.octavo.dev/behaviour": "image-missing"}
    broken = service(engine={"podAnnotations": annotations}, **loaded)
    cluster.kubectl.apply(broken, namespace=namespace)
    failed = ("Warning", "ImagePullFailed")
    until_told(*served, failed)
    cluster.kubectl.apply(service(**loaded), namespace=namespace)
    until_told(*served, failed, ("Normal", "Serving"))


def test_what_would_change_is_said_and_not_done(
    control_plane: ControlPlane, operator: OperatorProcess
) -> None:
    namespace, kubectl = operator.namespace, control_plane.kubectl
    kubectl.apply(service(replicas=2), namespace=namespace)
    kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    rested(control_plane, namespace)
    before = kubectl.get("deployment", "chat-engine", namespace=namespace)
    edited = service(replicas=2, engine={"image": "octavo-engine:next"})
    edited["metadata"]["annotations"] = {DRY_RUN: "true"}
    kubectl.apply(edited, namespace=namespace)
    found = kubectl.until(
        lambda s: s["status"].get("plan", {}).get("restarts") == 2, RESOURCE, "chat",
        namespace=namespace,
    )  # fmt: skip
    assert [c for c in found["status"]["plan"]["changes"] if c.endswith(".image")] != []
    rested(control_plane, namespace)
    after = kubectl.get("deployment", "chat-engine", namespace=namespace)
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    kubectl("annotate", RESOURCE, "chat", f"{DRY_RUN}-", namespace=namespace)
    kubectl.until(
        lambda s: is_ready(s) and s["status"]["updated"] == 2 and "plan" not in s["status"],
        RESOURCE, "chat", namespace=namespace,
    )  # fmt: skip
    assert revisions(control_plane, namespace) == 2


def test_a_drained_node_takes_one_engine_after_the_other(
    cluster: Kubernetes, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    with cluster.fake_node() as node:
        here = {"kubernetes.io/hostname": node}
        cluster.kubectl.apply(
            service(replicas=2, engine={"nodeSelector": here}), namespace=namespace
        )
        cluster.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
        # The first may go; its successor finds no place, so the second has to stay.
        with pytest.raises(ApiError, match="violate the pod's disruption budget"):
            cluster.kubectl("drain", node, "--delete-emptydir-data", "--timeout=5s")
        found = cluster.kubectl.until(
            lambda s: condition(s, "Scheduled") == "False", RESOURCE, "chat", namespace=namespace
        )
        assert found["status"]["routable"] == 1


def test_an_api_server_that_is_away_changes_nothing(
    control_plane: ControlPlane, operator: OperatorProcess
) -> None:
    namespace = operator.namespace
    control_plane.kubectl.apply(service(), namespace=namespace)
    control_plane.kubectl.until(is_ready, RESOURCE, "chat", namespace=namespace)
    rested(control_plane, namespace)
    before = control_plane.kubectl.get(RESOURCE, "chat", namespace=namespace)
    control_plane.kill("kube-apiserver")
    try:
        operator.until(
            lambda: [e for e in operator.events if e["event"] == "listing_failed"],
            "noticed that the API server is away",
        )
        assert operator.status("/healthz") == 200
    finally:
        control_plane.restart("kube-apiserver")
    control_plane.kubectl.apply(service("later"), namespace=namespace)
    control_plane.kubectl.until(is_ready, RESOURCE, "later", namespace=namespace)
    after = control_plane.kubectl.get(RESOURCE, "chat", namespace=namespace)
    assert after["status"] == before["status"]
    assert operator.is_running
