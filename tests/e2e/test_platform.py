"""From `helm install` to an answer, and what happens to streams when the platform changes.

Real images, a real kubelet, SmolLM2 on the CPU. Each test leaves the service as it found it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from tests.cluster.kubectl import Object
from tests.cluster.kubernetes import condition
from tests.cluster.node import Node
from tests.e2e.release import MODEL, RELEASE, SYSTEM, Load, Platform, example

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

READY_S = 240.0
PARTS = ("operator", "gateway", "valkey")


@pytest.fixture(scope="module")
def platform(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Platform:
    made = Platform(node, tmp_path_factory.mktemp("helm"))
    made.bring_images()
    made.install()
    return made


@pytest.fixture(scope="module")
def home(platform: Platform) -> Iterator[str]:
    """A namespace with the service of the example."""
    with platform.node.namespace() as name:
        enforce = "pod-security.kubernetes.io/enforce=restricted"
        platform.node.kubectl("label", "namespace", name, enforce)
        wanted = example("smollm2-cpu")
        wanted["spec"]["engine"]["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
        platform.node.kubectl.apply(wanted, namespace=name, manager="user")
        settled(platform, name)
        yield name


def settled(platform: Platform, namespace: str, replicas: int = 1) -> Object:
    """Waits until a service is Ready as it is wanted now."""

    def is_settled(found: Object) -> bool:
        status = found.get("status", {})
        current = status.get("observedGeneration") == found["metadata"]["generation"]
        counts = [status.get(name, 0) for name in ("desired", "updated", "routable", "replicas")]
        return current and condition(found, "Ready") == "True" and counts == [replicas] * 4

    try:
        return platform.node.kubectl.until(
            is_settled, "ois", MODEL, namespace=namespace, timeout_s=READY_S
        )
    except AssertionError as error:
        raise AssertionError(f"{error}\n{platform.story(namespace)}") from None


def patch(platform: Platform, namespace: str, spec: str) -> None:
    flags = ("patch", "ois", MODEL, "--type=merge", "--patch", f'{{"spec": {spec}}}')
    platform.node.kubectl(*flags, namespace=namespace)


def bodies(count: int, tokens: int = 48) -> list[dict[str, Any]]:
    return [
        {
            "model": MODEL,
            "prompt": f"Story {number}. Once upon a time there was a",
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number}),
        }
        for number in range(count)
    ]


def undisturbed(platform: Platform, asked: list[dict[str, Any]]) -> list[object]:
    answers = platform.ask_all(asked)
    assert all(answer.ok for answer in answers), [(a.status, a.error) for a in answers]
    return [answer.content for answer in answers]


def survives(platform: Platform, change: Callable[[], object], clients: int = 6) -> int:
    """Changes something under load; returns how many answers were right, and wants all to be."""
    asked = bodies(12)
    expected = undisturbed(platform, asked)
    with Load(platform, asked, clients) as load:
        time.sleep(2.0)
        change()
        time.sleep(2.0)
    assert load.failures(expected) == []
    return len(load.answers)


def test_a_resource_becomes_an_answer(platform: Platform, home: str) -> None:
    found = platform.node.kubectl.get("ois", MODEL, namespace=home)
    assert condition(found, "Routable") == "True"
    url = platform.url

    def ask() -> openai.types.chat.ChatCompletion:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
        )

    answer = platform.node.in_network(ask)
    assert "Paris" in str(answer.choices[0].message.content)
    record = platform.get(f"/v1/requests/{answer.id.removeprefix('chatcmpl-')}")
    assert record["state"] == "finished"
    header, row = platform.node.kubectl("get", "ois", namespace=home).splitlines()
    assert header.split()[:4] == ["NAME", "MODEL", "READY", "REASON"]
    assert row.split()[2] == "True"


def test_an_edit_rolls_once_and_cuts_no_stream(platform: Platform, home: str) -> None:
    before = {pod["metadata"]["name"] for pod in platform.engines(home)}

    def edit() -> None:
        patch(platform, home, '{"engine": {"options": {"maxNumSeqs": 32}}}')
        settled(platform, home)

    assert survives(platform, edit) > 6
    after = {pod["metadata"]["name"] for pod in platform.engines(home)}
    assert not before & after
    sets = platform.node.kubectl.list("replicasets", namespace=home)
    assert len(sets) == 2, "one edit is one rollout"


def test_scaling_up_and_down_cuts_no_stream(platform: Platform, home: str) -> None:
    def scale() -> None:
        for replicas in (2, 1):
            flags = ("scale", "ois", MODEL, f"--replicas={replicas}")
            platform.node.kubectl(*flags, namespace=home)
            settled(platform, home, replicas)
            time.sleep(3.0)

    assert survives(platform, scale) > 6


def test_a_killed_engine_costs_no_stream(platform: Platform, home: str) -> None:
    platform.node.kubectl("scale", "ois", MODEL, "--replicas=2", namespace=home)
    settled(platform, home, 2)
    victim = platform.engines(home)[0]["metadata"]["name"]

    def kill() -> None:
        flags = ("delete", "pod", victim, "--grace-period=0", "--force")
        platform.node.kubectl(*flags, namespace=home)
        settled(platform, home, 2)

    assert survives(platform, kill) > 6
    platform.node.kubectl("scale", "ois", MODEL, "--replicas=1", namespace=home)
    settled(platform, home, 1)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_replaced_fails_no_request(part: str, platform: Platform, home: str) -> None:
    def replace() -> None:
        kubectl, name = platform.node.kubectl, f"deployment/{RELEASE}-{part}"
        kubectl("rollout", "restart", name, namespace=SYSTEM)
        kubectl("rollout", "status", name, "--timeout=120s", namespace=SYSTEM, timeout_s=130.0)

    assert survives(platform, replace) > 6
    settled(platform, home)


def test_an_idle_service_sleeps_and_its_first_request_wakes_it(
    platform: Platform, home: str
) -> None:
    sleeping = (
        '{"replicas": null, "autoscaling": {"minReplicas": 0, "maxReplicas": 1, "idleSeconds": 15}}'
    )
    expected = undisturbed(platform, bodies(1))
    patch(platform, home, sleeping)
    platform.node.kubectl.until(
        lambda d: d["spec"]["replicas"] == 0 and not d["status"].get("replicas"),
        "deployment", f"{MODEL}-engine", namespace=home, timeout_s=120.0,
    )  # fmt: skip
    (answer,) = platform.ask_all(bodies(1))
    assert answer.ok, (answer.status, answer.error)
    assert answer.content == expected[0]
    patch(platform, home, '{"autoscaling": null, "replicas": 1}')
    settled(platform, home)


def test_a_stranger_reaches_neither_engine_nor_store(platform: Platform, home: str) -> None:
    engine = platform.engines(home)[0]["status"]["podIP"]
    pods = platform.node.kubectl.list(
        "pods", namespace=SYSTEM, selector="app.kubernetes.io/component=valkey"
    )
    store = pods[0]["status"]["podIP"]
    probe = (
        "import socket, sys\n"
        "for host, port in (a.split(':') for a in sys.argv[1:]):\n"
        "    try:\n"
        "        socket.create_connection((host, int(port)), 3).close()\n"
        "        print('reached', host)\n"
        "    except OSError as error:\n"
        "        print('cut off', type(error).__name__)\n"
    )
    stranger = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "octavo/gateway:0.1.0", "imagePullPolicy": "Never",
                "command": ["python", "-c", probe, f"{engine}:50051", f"{store}:6379"],
            }],
        },
    }  # fmt: skip
    with platform.node.namespace() as elsewhere:
        platform.node.kubectl.apply(stranger, namespace=elsewhere)
        platform.node.kubectl.until(
            lambda p: p["status"].get("phase") == "Succeeded",
            "pod", "stranger", namespace=elsewhere, timeout_s=60.0,
        )  # fmt: skip
        said = platform.node.kubectl("logs", "stranger", namespace=elsewhere)
    assert [line.partition(" off ")[0] for line in said.splitlines()] == ["cut", "cut"]


def test_uninstalled_it_leaves_the_resources_and_nothing_else(
    platform: Platform, home: str
) -> None:
    platform.helm("uninstall", RELEASE, "--wait")
    assert platform.node.kubectl.get("ois", MODEL, namespace=home)
    left: list[str] = ["unknown"]
    for _ in range(60):  # pods take their time to go
        found = platform.node.kubectl.list("all,secrets,configmaps,leases", namespace=SYSTEM)
        left = [n for each in found if (n := each["metadata"]["name"]) != "kube-root-ca.crt"]
        if not left:
            break
        time.sleep(2.0)
    assert left == []
    platform.node.kubectl("delete", "ois", MODEL, namespace=home)
    platform.node.kubectl.until_gone("deployment", f"{MODEL}-engine", namespace=home)
