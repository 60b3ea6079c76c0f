"""From `helm install` to an answer, and what happens to streams when a service changes.

Real images, a real kubelet, SmolLM2 on the CPU. Each test leaves one engine, which is Ready.
"""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from tests.charts.rendering import PREVIOUS, VERSION, version_of
from tests.cluster.api import Object
from tests.cluster.kubernetes import condition
from tests.cluster.node_files import NODE
from tests.e2e.collector import TRACEPARENT, Collector, check
from tests.e2e.conftest import PINNED, SECRET, small
from tests.e2e.load import Questions, bodies, spread
from tests.e2e.release import MODEL, PARTS, RELEASE, VALUES, Platform, uids
from tests.e2e.service import Service
from tests.faults.stream_client import ask

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

STREAMS, TOKENS = 20, 16


@pytest.fixture
def unnamed(former: Platform, service: Service) -> Iterator[Service]:
    """Another service, which names no image, and has no engine that would need one."""
    wanted = small("smollm2-cpu")
    wanted["metadata"]["name"], wanted["spec"]["replicas"] = "unnamed", 0
    del wanted["spec"]["engine"]["image"]
    service.kubectl.apply(wanted, namespace=service.namespace, manager="user")
    made = Service(former, service.namespace, "unnamed")
    until_image(made, version_of(PREVIOUS))
    yield made
    service.kubectl("delete", "ois", made.name, namespace=service.namespace)


def until_image(service: Service, version: str) -> None:
    """Waits until engines that start now would have the default image of a version."""

    def has_it(deployment: Object) -> bool:
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        return bool(container["image"] == f"octavo/engine:{version}-cpu")

    name = f"{service.name}-engine"
    service.kubectl.until(has_it, "deployment", name, namespace=service.namespace)


def test_an_upgrade_from_the_version_before_restarts_no_engine_and_cuts_none_of_20_streams(
    former: Platform, service: Service, unnamed: Service
) -> None:
    """All other parts are replaced. A new default image is for engines that start later."""
    stories = Questions(former, STREAMS, TOKENS)
    engines, before = service.processes(), {part: uids(former.pods(part)) for part in PARTS}

    def upgrade() -> None:
        former.install(VALUES)
        former.until_looked_at(len((service, unnamed)))

    stories.during(upgrade, clients=STREAMS)
    assert service.processes() == engines
    after = {part: former.pods(part) for part in PARTS}
    assert all(uids(after[part]).isdisjoint(before[part]) for part in PARTS)
    until_image(unnamed, version_of(PREVIOUS))
    unnamed.patch(engine={"options": {"maxNumSeqs": 32}})
    until_image(unnamed, VERSION)


def test_a_resource_becomes_an_answer(platform: Platform, service: Service) -> None:
    assert condition(service.get(), "Routable") == "True"
    url = platform.url

    def ask_openai() -> openai.types.chat.ChatCompletion:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        return client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=12,
        )

    answer = platform.node.in_network(ask_openai)
    assert "Paris" in str(answer.choices[0].message.content)
    first, *others = platform.finished_records(answer.id.removeprefix("chatcmpl-"))
    assert others, "who did not answer has the record from the store only"
    assert all(record == first for record in others)
    told = platform.node.kubectl("get", "ois", namespace=service.namespace)
    header, row = told.splitlines()
    assert header.split()[:4] == ["NAME", "MODEL", "READY", "REASON"]
    assert row.split()[2] == "True"


def test_a_pinned_prefix_is_there_before_anybody_asks(platform: Platform, service: Service) -> None:
    asked = bodies(1, tokens=1)[0] | {"prompt": f"{PINNED} Then it"}
    (answer,) = platform.ask_all([asked])
    assert answer.ok
    assert answer.cached_tokens >= 16
    assert answer.route[0] in service.names()


def test_gateway_and_engine_tell_one_trace(
    platform: Platform, service: Service, node_collector: Collector
) -> None:
    (answer,) = platform.ask_all(bodies(1, 4), headers=[{"traceparent": TRACEPARENT}])
    assert answer.ok
    check(node_collector.both())


def test_an_edit_rolls_once_and_cuts_none_of_20_streams(
    service: Service, questions: Questions
) -> None:
    before, engines = service.rollouts(), service.names()

    def edit() -> None:
        service.patch(engine={"options": {"maxNumSeqs": 32}})
        service.settled()

    questions.during(edit, clients=STREAMS)
    assert not engines & service.names()
    assert service.rollouts() == before + 1


def test_a_rotated_secret_rolls_once_and_cuts_no_stream(
    service: Service, questions: Questions
) -> None:
    before, engines = service.rollouts(), service.names()
    kubectl, namespace = service.kubectl, service.namespace

    def rotate() -> None:
        rotated = '{"stringData": {"token": "two"}}'
        kubectl("patch", "secret", SECRET, "--type=merge", "--patch", rotated, namespace=namespace)
        service.until_new(engines)
        service.settled()

    questions.during(rotate)
    assert not engines & service.names()
    assert service.rollouts() == before + 1


def test_scaled_up_each_engine_gets_its_prefixes_and_scaled_down_no_stream_is_cut(
    platform: Platform, service: Service, questions: Questions
) -> None:
    questions.during(lambda: service.scale(3))
    for body, first in spread(platform, "Scaled", service.names()):
        (again,) = platform.ask_all([body])
        engine, hit_tokens = again.route
        assert engine == first.route[0]
        assert min(hit_tokens, again.cached_tokens) > 0.9 * again.prompt_tokens
    questions.during(lambda: service.scale(1))


def test_an_idle_service_sleeps_and_its_first_request_wakes_it(
    platform: Platform, service: Service, questions: Questions
) -> None:
    service.patch(
        replicas=None, autoscaling={"minReplicas": 0, "maxReplicas": 1, "idleSeconds": 10}
    )
    service.until(lambda pods: not pods, timeout_s=120.0)
    kubectl, url = platform.node.kubectl, platform.url

    def may_start(_: object) -> None:
        """The client has heard that its request is held."""
        kubectl("uncordon", NODE)

    kubectl("cordon", NODE)
    answer = platform.run(lambda session: ask(session, url, questions.asked[0], on_first=may_start))
    assert answer.ok, (answer.status, answer.error)
    assert answer.content == questions.expected[0]
    assert answer.num_comments >= 1
    service.patch(autoscaling=None, replicas=1)
    service.settled()


def test_helm_test_fails_without_an_engine_and_passes_with_one(
    platform: Platform, service: Service
) -> None:
    platform.install({"test": {"model": MODEL}}, "--reuse-values")
    service.patch(replicas=0)
    service.until(lambda pods: not pods, timeout_s=120.0)
    with pytest.raises(AssertionError, match="HTTP Error 503"):
        platform.helm("test", RELEASE, "--logs")
    service.scale(1)
    # Last, as what fails stays for whoever wants to read its log.
    platform.helm("test", RELEASE, "--logs")


PROBE = """
import socket, sys
for host, port in (a.split(':') for a in sys.argv[1:]):
    try:
        socket.create_connection((host, int(port)), 3).close()
        print('reached', host)
    except OSError as error:
        print('cut off', type(error).__name__)
"""


def test_a_stranger_reaches_the_gateway_and_neither_engine_nor_store(
    platform: Platform, service: Service
) -> None:
    (engine,), (store,) = service.engines(), platform.pods("valkey")
    targets = [
        f"{pod['status']['podIP']}:{port}"
        for pod, port in ((engine, 50051), (store, 6379), (platform.pods("gateway")[0], 8000))
    ]
    stranger = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": f"octavo/gateway:{VERSION}", "imagePullPolicy": "Never",
                "command": ["python", "-c", PROBE, *targets],
            }],
        },
    }  # fmt: skip
    with platform.node.namespace() as elsewhere:
        platform.node.kubectl.apply(stranger, namespace=elsewhere)
        platform.node.kubectl.until(
            lambda p: p["status"].get("phase") == "Succeeded",
            "pod", "stranger", namespace=elsewhere,
        )  # fmt: skip
        said = platform.node.kubectl("logs", "stranger", namespace=elsewhere)
    assert [line.partition(" ")[0] for line in said.splitlines()] == ["cut", "cut", "reached"]
