"""Upgraded, beside another release, and gone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.charts.rendering import PREVIOUS
from tests.cluster.kubectl import Object
from tests.e2e.conftest import RESTRICTED, SECRET, small
from tests.e2e.load import Questions
from tests.e2e.release import RELEASE, RIGHTS, VALUES, VERSION, Platform
from tests.e2e.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

DEFINITION = "inferenceservices.serving.octavo.dev"


def only(*namespaces: str) -> Object:
    """Returns values of a release that has rights in some namespaces only."""
    return {"rbac": {"clusterScoped": False, "namespaces": list(namespaces)}}


def test_an_upgrade_under_load_fails_nothing(
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
def second(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A release in another namespace, which serves that namespace only, and its service.

    Upgraded from the previous version's chart. Of that version there is no image, and today's
    operator asks for rights that it did not have, so it serves only afterwards.
    """
    with platform.node.namespace() as name:
        kubectl = platform.node.kubectl
        kubectl("label", "namespace", name, RESTRICTED)
        kubectl("create", "secret", "generic", SECRET, "--from-literal=token=one", namespace=name)
        release = Platform(platform.node, tmp_path_factory.mktemp("helm"), name)
        before = json.dumps(SECOND | {"image": {"tag": VERSION}})
        release.helm("install", RELEASE, str(PREVIOUS), "--values", "-", stdin=before)
        release.install(SECOND)
        disk = {"size": "200Mi"}
        kubectl.apply(small("smollm2-cpu", disk=disk), namespace=name, manager="user")
        made = Service(release, name)
        made.settled()
        yield made


def test_two_releases_of_two_namespaces_serve_side_by_side(
    platform: Platform, service: Service, second: Service, questions: Questions
) -> None:
    for of, where in ((service, platform), (second, second.platform)):
        (answer,) = where.ask_all(questions.asked[:1])
        assert answer.content == questions.expected[0]
        assert answer.route[0] in of.names()
    charts = second.platform.helm("history", RELEASE)
    assert "octavo-0.1.0" in charts
    assert f"octavo-{VERSION}" in charts
    roles = "clusterroles,clusterrolebindings"
    selector = "app.kubernetes.io/instance=octavo"
    assert platform.node.kubectl.list(roles, selector=selector) == []


def test_uninstalled_they_leave_nothing_but_resources_unless_told_to_take_them(
    platform: Platform, service: Service, second: Service, questions: Questions
) -> None:
    assert second.platform.uninstall(SECRET) == []
    assert second.kubectl.list("ois", namespace=second.namespace) == []
    (answer,) = platform.ask_all(questions.asked[:1])
    assert answer.content == questions.expected[0], "the other release does not care"
    assert platform.uninstall() == []
    assert service.kubectl.list(RIGHTS, namespace=service.namespace) == []
    assert service.get()
    assert service.kubectl.get("crd", DEFINITION)
    service.kubectl("delete", "ois", service.name, namespace=service.namespace)
    service.until(lambda pods: not pods)
