"""What all tests of the platform on a real node share: one release, one service, questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.charts.rendering import PREVIOUS
from tests.cluster.api import Object
from tests.cluster.node import ADDRESS, Node
from tests.e2e.collector import Collector
from tests.e2e.load import Questions
from tests.e2e.release import TRACES, VALUES, Platform, bring_images, example
from tests.e2e.service import Service

from octavo.runtime import failpoint

RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"
SECRET = "hub"
PINNED = "The binder sews the gatherings in order, glues the spine and lets the book rest. " * 2


@pytest.fixture(scope="session")
def node_collector(node: Node) -> Iterator[Collector]:
    """A collector of traces that pods reach."""
    made = Collector()
    node.in_network(lambda: made.start(f"{ADDRESS}:4317"))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def former(
    node: Node, node_collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Platform:
    """The chart of the version before, installed.

    Today's operator gets by with the rights that it gives; `extraObjects` could add what it lacks.
    """
    bring_images(node)
    made = Platform(node, tmp_path_factory.mktemp("helm"), "octavo-system")
    node.kubectl("create", "namespace", made.namespace)
    node.kubectl("label", "namespace", made.namespace, RESTRICTED)
    made.install(VALUES, chart=PREVIOUS)
    return made


@pytest.fixture(scope="session")
def platform(former: Platform) -> Platform:
    """The chart, to which that of the version before was upgraded."""
    former.install(VALUES)
    return former


@pytest.fixture(scope="session")
def service(former: Platform) -> Iterator[Service]:
    """The service of the example, with a Secret and traces, in a namespace of its own."""
    with former.node.namespace() as name:
        kubectl = former.node.kubectl
        kubectl("label", "namespace", name, RESTRICTED)
        kubectl("create", "secret", "generic", SECRET, "--from-literal=token=one", namespace=name)
        kubectl.apply(small("smollm2-cpu"), namespace=name, manager="user")
        made = Service(former, name)
        made.settled()
        yield made


@pytest.fixture(scope="session")
def questions(platform: Platform, service: Service) -> Questions:
    """Questions with the answers of an undisturbed run."""
    return Questions(platform)


def small(name: str, **cache: Object) -> Object:
    """Returns the resource of an example, for a node with two cores, with more of its cache."""
    wanted = example(name)
    wanted["spec"]["engine"]["options"]["threads"] = 1
    wanted["spec"]["engine"]["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    pins = [{"text": PINNED}]
    wanted["spec"]["cache"] = {"host": "64Mi", "pinnedPrefixes": pins} | cache
    token = {"secretKeyRef": {"name": SECRET, "key": "token"}}
    variables: list[Object] = [{"name": k, "value": v} for k, v in TRACES.items()]
    wanted["spec"]["engine"]["env"] = [
        *variables,
        {"name": "HF_TOKEN", "valueFrom": token},
        # Streams have to be open while something happens, and leave the cores to that.
        {"name": failpoint.VARIABLE, "value": "engine.step=sleep(0.4)"},
    ]
    return wanted
