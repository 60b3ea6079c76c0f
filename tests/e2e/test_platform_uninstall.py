"""Changed, beside another release with a store of its user's, and gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.api import Object
from tests.e2e.conftest import RESTRICTED, SECRET, small
from tests.e2e.load import Questions
from tests.e2e.release import RIGHTS, VALUES, Platform, url_of
from tests.e2e.service import Service
from tests.e2e.stores import OBJECTS, STORED, Stores

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

DEFINITION = "inferenceservices.serving.octavo.dev"


def only(*namespaces: str) -> Object:
    """Returns values of a release that has rights in some namespaces only."""
    return {"rbac": {"clusterScoped": False, "namespaces": list(namespaces)}}


def test_other_values_under_load_fail_nothing(
    platform: Platform, service: Service, questions: Questions
) -> None:
    """More gateways, and rights for one namespace instead of all: everything is replaced."""
    service.scale(1)
    engines = service.names()
    wider: Object = {"gateway": {"replicas": 3}} | only(service.namespace)
    questions.during(lambda: platform.install(wider, "--reuse-values"))
    assert len(platform.pods("gateway")) == 3
    assert service.names() == engines


SECOND = VALUES | only() | {"crds": {"enabled": False}, "cleanup": {"enabled": True}}


@pytest.fixture(scope="module")
def stores(platform: Platform) -> Iterator[Stores]:
    """Two Valkeys of a user's, in a namespace of their own."""
    with platform.node.namespace() as name:
        platform.node.kubectl("label", "namespace", name, RESTRICTED)
        made = Stores(platform.node, name)
        made.start()
        yield made


@pytest.fixture(scope="module")
def second(platform: Platform, stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """A release beside the stores, which serves their namespace only, and its service."""
    kubectl, name = platform.node.kubectl, stores.namespace
    kubectl("create", "secret", "generic", SECRET, "--from-literal=token=one", namespace=name)
    release = Platform(platform.node, tmp_path_factory.mktemp("helm"), name)
    release.install(SECOND | STORED)
    kubectl.apply(small("smollm2-cpu", disk={"size": "200Mi"}), namespace=name, manager="user")
    made = Service(release, name)
    made.settled()
    return made


def test_two_releases_of_two_namespaces_serve_side_by_side(
    platform: Platform, service: Service, second: Service, questions: Questions
) -> None:
    for of, where in ((service, platform), (second, second.platform)):
        (answer,) = where.ask_all(questions.asked[:1])
        assert answer.content == questions.expected[0]
        assert answer.route[0] in of.names()
    roles = "clusterroles,clusterrolebindings"
    selector = "app.kubernetes.io/instance=octavo"
    assert platform.node.kubectl.list(roles, selector=selector) == []


def test_a_store_that_fails_over_fails_no_request_and_has_all_later_records(
    second: Service, stores: Stores, questions: Questions
) -> None:
    """What the old leader takes last is lost. Connections to it are left as it is read-only."""
    questions.during(stores.fail_over, at=second.platform)
    for pod in second.platform.pods("gateway"):
        (answer,) = second.platform.ask_all(questions.asked[:1], url=url_of(pod))
        request = answer.headers["X-Request-Id"]
        first, *others = second.platform.finished_records(request)
        assert others == [first]
        assert '"state":"finished"' in stores.leader("GET", f"octavo:request:{request}")


def test_uninstalled_they_leave_nothing_but_resources_unless_told_to_take_them(
    platform: Platform, service: Service, second: Service, stores: Stores, questions: Questions
) -> None:
    assert second.platform.uninstall(SECRET, *OBJECTS) == []
    assert second.kubectl.list("ois", namespace=second.namespace) == []
    (answer,) = platform.ask_all(questions.asked[:1])
    assert answer.content == questions.expected[0], "the other release does not care"
    assert platform.uninstall() == []
    assert service.kubectl.list(RIGHTS, namespace=service.namespace) == []
    assert service.get()
    assert service.kubectl.get("crd", DEFINITION)
    service.kubectl("delete", "ois", service.name, namespace=service.namespace)
    service.until(lambda pods: not pods)
