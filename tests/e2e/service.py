"""One InferenceService on a real node: what a user does to it, and what it has become."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from tests.cluster.api import Object
from tests.cluster.kubectl import POLL_S
from tests.cluster.kubernetes import condition
from tests.e2e.release import MODEL, Platform

READY_S = 240.0
CHILDREN = "deployments,services,pdb,networkpolicies,persistentvolumeclaims,jobs"


class Service:
    """One InferenceService.

    Args:
        platform: serves it.
        namespace: where it lives.
        name: its name.
    """

    def __init__(self, platform: Platform, namespace: str, name: str = MODEL) -> None:
        self.platform = platform
        self.namespace = namespace
        self.name = name
        self.selector = f"serving.octavo.dev/service={name}"
        self.kubectl = platform.node.kubectl

    def get(self) -> Object:
        """Returns the resource."""
        return self.kubectl.get("ois", self.name, namespace=self.namespace)

    def patch(self, **spec: object) -> None:
        """Changes fields of the spec; None removes one."""
        flags = ("patch", "ois", self.name, "--type=merge", "--patch", json.dumps({"spec": spec}))
        self.kubectl(*flags, namespace=self.namespace)

    def scale(self, replicas: int) -> None:
        """Scales as `kubectl scale` does; returns when it is settled."""
        flags = ("scale", "ois", self.name, f"--replicas={replicas}")
        self.kubectl(*flags, namespace=self.namespace)
        self.settled(replicas)

    def settled(self, replicas: int = 1) -> None:
        """Waits until it is Ready as it is wanted now."""

        def is_settled(found: Object) -> bool:
            status = found.get("status", {})
            is_current = status.get("observedGeneration") == found["metadata"]["generation"]
            counts = [status.get(name) for name in ("desired", "updated", "routable", "replicas")]
            is_ready = {condition(found, kind) for kind in ("Ready", "Rollout")} == {"True"}
            return is_current and is_ready and counts == [replicas] * 4

        try:
            self.kubectl.until(
                is_settled, "ois", self.name, namespace=self.namespace, timeout_s=READY_S
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}") from None

    def until_reason(self, reason: str) -> None:
        """Waits until its status gives a reason why it is Ready or not."""
        self.kubectl.until(
            lambda found: found["status"]["reason"] == reason,
            "ois", self.name, namespace=self.namespace,
        )  # fmt: skip

    def engines(self) -> list[Object]:
        """Returns the engine pods that are not going."""
        selector = f"{self.selector},app.kubernetes.io/component=engine"
        return self.platform.node.live_pods(self.namespace, selector)

    def by_name(self) -> dict[str, Object]:
        """Returns the engine pods that are not going by their names, as routes have them."""
        return {f"{self.namespace}/{pod['metadata']['name']}": pod for pod in self.engines()}

    def processes(self) -> list[tuple[str, object]]:
        """Returns which pods the engines are, and which containers of theirs run since when."""
        found = self.engines()
        return [(pod["metadata"]["uid"], pod["status"]["containerStatuses"]) for pod in found]

    def names(self) -> set[str]:
        """Returns the names of the engines, as routes have them."""
        return set(self.by_name())

    def until(self, condition: Callable[[list[Object]], bool], timeout_s: float = 60.0) -> None:
        """Waits for something about the engine pods, those that are going among them."""
        end = time.monotonic() + timeout_s
        while not condition(
            pods := self.kubectl.list("pods", namespace=self.namespace, selector=self.selector)
        ):
            assert time.monotonic() < end, json.dumps([p["status"] for p in pods], indent=1)
            time.sleep(POLL_S)

    def until_new(self, engines: set[str]) -> None:
        """Waits until there is an engine besides these."""
        old = {name.partition("/")[2] for name in engines}
        self.until(lambda pods: any(pod["metadata"]["name"] not in old for pod in pods))

    def until_going(self) -> str:
        """Waits until an engine is going and returns its pod's name."""
        going: list[str] = []

        def is_going(pods: list[Object]) -> bool:
            ends = (p["metadata"] for p in pods if p["metadata"].get("deletionTimestamp"))
            going.extend(end["name"] for end in ends)
            return bool(going)

        self.until(is_going)
        return going[0]

    def rollouts(self) -> int:
        """Returns how many revisions its Deployment has had."""
        name = f"{self.name}-engine"
        found = self.kubectl.get("deployment", name, namespace=self.namespace)
        return int(found["metadata"]["annotations"]["deployment.kubernetes.io/revision"])

    def shape(self) -> object:
        """Returns what it has become: the specs of all its objects, its conditions, its counts."""
        found = self.kubectl.list(CHILDREN, namespace=self.namespace, selector=self.selector)
        children = {
            (child["kind"], child["metadata"]["name"]): (
                child["spec"],
                len(child["metadata"]["ownerReferences"]),
            )
            for child in found
        }
        status = self.get()["status"]
        conditions = sorted((c["type"], c["status"], c["reason"]) for c in status["conditions"])
        return children, conditions, status["counts"]

    def story(self) -> str:
        """Returns what kubectl tells of it."""
        return self.kubectl("get", "ois,pods", namespace=self.namespace) + self.kubectl(
            "describe", "ois", self.name, namespace=self.namespace
        )
