from __future__ import annotations

import json

import pytest
from tests.operator.engine_pods import ended, pod, unplaced, waiting
from tests.operator.world import START

from octavo.operator import failures, pods
from octavo.operator.kinds import Manifest
from octavo.operator.timestamps import to_text

LOG_TAIL = (
    '{"event": "stage", "stage": "memory"}\n'
    "error[OCT-1204]: the model does not fit: 3 GB of KV cache; free 1 GB\n"
    "  help: lower --max-model-len, set --kv-bytes, or free memory\n"
)


def failure(candidate: Manifest) -> failures.Failure:
    found = failures.of_pod(candidate, START)
    assert found is not None
    return found


def test_the_scheduler_s_own_sentence_is_told() -> None:
    found = failure(unplaced("0/3 nodes are available: 3 Insufficient nvidia.com/gpu."))
    assert found.reason == "Unschedulable"
    assert found.sentence == "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."


def test_an_image_that_cannot_be_pulled_keeps_one_sentence_through_its_pauses() -> None:
    cause = 'failed to resolve "engine:1": not found'
    pulling = failure(pod(containers=[waiting("ErrImagePull", cause)]))
    pausing = failure(
        pod(containers=[waiting("ImagePullBackOff", 'Back-off pulling image "engine:1"')])
    )
    assert pulling.reason == pausing.reason == "ImagePullFailed"
    assert pulling.message == pausing.message == "the image engine:1 cannot be pulled"
    assert (pulling.detail, pausing.detail) == (cause, "")


def test_a_container_over_its_limit_is_told_what_to_do() -> None:
    spec = {"containers": [{"name": "engine", "resources": {"limits": {"memory": "2Gi"}}}]}
    found = failure(pod(containers=[ended(137, reason="OOMKilled")], spec=spec))
    assert found.reason == "OutOfMemory"
    assert "more memory than its limit of 2Gi" in found.message
    assert "spec.engine.resources.limits.memory" in found.message


def test_what_a_killed_container_logged_last_explains_nothing() -> None:
    found = failure(pod(containers=[ended(137, '{"stage": "ready", "text": "", "done": true}')]))
    assert (found.reason, found.sentence) == ("Failed", "engine was killed")


def test_the_engine_s_last_error_is_told_with_its_help() -> None:
    found = failure(pod(containers=[ended(4, LOG_TAIL)]))
    assert found.reason == "DoesNotFit"
    assert found.message == (
        "OCT-1204: the model does not fit: 3 GB of KV cache; free 1 GB"
        " (lower --max-model-len, set --kv-bytes, or free memory)"
    )


def test_the_loader_s_last_error_is_told_with_its_help() -> None:
    words = {"code": "OCT-1212", "text": "the hub refuses org/x: 401", "help": "give HF_TOKEN"}
    found = failure(pod(containers=[ended(1, json.dumps(words))]))
    assert found.reason == "ModelForbidden"
    assert found.message == "OCT-1212: the hub refuses org/x: 401 (give HF_TOKEN)"


@pytest.mark.parametrize(
    "message",
    [
        "error[OCT-1206]: there is no setting --treads (command line); did you mean --threads?\n",
        "error[OCT-1205]: threads = 'x' (flag --threads): Expected `int`, got `str`\n  help: see\n",
        "error[OCT-1211]: option '--x' requires an argument",
        "",
    ],
)
def test_a_bad_argument_is_called_so(message: str) -> None:
    found = failure(pod(containers=[ended(2, message)]))
    assert found.reason == "BadArgument"
    assert message.strip().partition("]: ")[2].partition("\n")[0] in found.message


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (3, "CannotReach"), (4, "DoesNotFit"), (5, "InternalError"), (70, "Stuck"),
        (71, "DeviceFailed"), (72, "DeviceLost"), (1, "Failed"),
    ],
)  # fmt: skip
def test_an_exit_status_alone_has_a_meaning(status: int, reason: str) -> None:
    found = failure(pod(containers=[ended(status, "last\nwords")]))
    assert found.reason == reason
    assert found.sentence == f"engine ended with status {status}: last words"


def test_of_a_long_log_the_end_is_shown() -> None:
    found = failure(pod(containers=[ended(1, "x" * 3000 + " the end")]))
    assert found.detail.endswith("the end")
    assert len(found.detail) <= 400


def test_an_engine_that_starts_again_still_has_its_reason_until_it_is_ready() -> None:
    end = {"terminated": {"exitCode": 5, "message": "boom"}}
    again: Manifest = {"name": "engine", "ready": False, "state": {"running": {}}, "lastState": end}
    assert failure(pod(containers=[again])).reason == "InternalError"
    assert failures.of_pod(pod(containers=[again | {"ready": True}]), START) is None


def test_a_missing_secret_is_told_in_kubelet_s_words() -> None:
    found = failure(pod(containers=[waiting("CreateContainerConfigError", 'secret "a" not found')]))
    assert (found.reason, found.message) == ("ContainerNotCreated", 'secret "a" not found')


def test_a_container_is_given_time_to_be_made() -> None:
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": to_text(START - 59)}
    fresh = pod(containers=[waiting("ContainerCreating")], conditions=[placed])
    assert failures.of_pod(fresh, START) is None
    assert failures.of_pod(fresh, START + 2) is not None


def test_a_healthy_pod_has_no_failure() -> None:
    assert failures.of_pod(pod(ready=True), START) is None
    assert failures.of_pods([], START) is None


def test_the_newest_pod_speaks_for_all() -> None:
    older = pod("a", containers=[ended(2)])
    newer = pod("b", containers=[ended(4)])
    newer["metadata"]["creationTimestamp"] = to_text(START + 5)
    found = failures.of_pods([newer, older, pod("c", ready=True)], START)
    assert found is not None
    assert found.reason == "DoesNotFit"


def test_what_a_node_ended_is_told_until_a_later_pod_is_ready() -> None:
    evicted = pod("b", phase="Failed", containers=[ended(137)])
    words = "The node was low on resource: ephemeral-storage."
    evicted["status"] |= {"reason": "Evicted", "message": words}
    before, after = (pod(name, ready=True, routable=True) for name in "ac")
    loads = pod("c")
    before["metadata"]["creationTimestamp"] = to_text(START - 5)
    for later in (after, loads):
        later["metadata"]["creationTimestamp"] = to_text(START + 5)
    found = failures.of_pods([before, evicted, loads], START)
    assert found is not None
    assert (found.reason, found.detail) == ("Evicted", words)
    assert failures.of_pods([before, evicted, after], START) is None
    evicted["metadata"]["deletionTimestamp"] = to_text(START)
    assert failures.of_pods([before, evicted, loads], START) is None


@pytest.mark.parametrize("told_by", ["its containers", "its conditions", "its making"])
def test_what_a_node_ended_long_ago_explains_no_later_start(told_by: str) -> None:
    """Kubernetes keeps an evicted pod for ever, and a service that slept has no ready one."""
    long_ago, end = to_text(START - 30 * 86400.0), to_text(START - 10.0)
    evicted = pod("b", phase="Failed")
    evicted["metadata"]["creationTimestamp"] = end if told_by == "its making" else long_ago
    evicted["status"] |= {"reason": "Evicted", "message": "The node was low on memory."}
    if told_by == "its containers":
        terminated = {"exitCode": 137, "finishedAt": end}
        evicted["status"]["containerStatuses"] = [{"state": {"terminated": terminated}}]
    if told_by == "its conditions":
        pods.condition(evicted, "Ready")["lastTransitionTime"] = end
    loads = pod("c")
    loads["metadata"]["creationTimestamp"] = to_text(START)
    found = failures.of_pods([evicted, loads], START)
    assert found is not None
    assert found.reason == "Evicted"
    assert failures.of_pods([evicted, loads], START + failures.RECENT_S) is None


@pytest.mark.parametrize("message", ["{", '{"code": 5}', "error[OCT-", "error[OCT-12]", "\ud800"])
def test_no_message_makes_it_raise(message: str) -> None:
    assert failure(pod(containers=[ended(1, message)])).reason == "Failed"


def test_a_node_that_does_not_answer_is_told_and_a_gate_that_opens_is_not() -> None:
    def failure_of(reason: str) -> failures.Failure | None:
        found = pod(ready=True, spec={"nodeName": "a", "containers": []})
        pods.condition(found, "Ready")["reason"] = reason
        return failures.of_pod(found, START)

    assert failure_of("ReadinessGatesNotReady") is None
    lost = failure_of("")
    assert lost is not None
    assert lost.reason == "NodeLost"
    assert "the node a does not answer" in lost.message
