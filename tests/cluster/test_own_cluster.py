"""In which order a cluster comes up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.cluster.own_cluster import API_SERVER, OwnCluster


class Part:
    """Notes when it is started."""

    def __init__(self, name: str, story: list[str]) -> None:
        self.alive = False
        self._name = name
        self._story = story

    def start(self) -> None:
        self.alive = True
        self._story.append(self._name)

    def until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        while not condition():
            self._story.append("not ready")


def test_who_needs_the_api_server_is_started_when_that_answers() -> None:
    """The controller manager gives up after ten seconds, and nodes would never be Ready."""
    story: list[str] = []
    answers = [False, False, True]
    api = SimpleNamespace(ready=lambda: answers.pop(0))
    kubectl: Any = SimpleNamespace(api=api)
    names = ("etcd", API_SERVER, "kube-controller-manager", "kwok")
    parts: Any = {name: Part(name, story) for name in names}
    unused: Any = None
    OwnCluster(unused, record=unused, kubectl=kubectl, parts=parts).start()
    assert story == [*names[:2], "not ready", "not ready", *names[2:]]
