"""Renders the chart with the real helm, each set of values once."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.binaries import program

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "octavo"
VERSION = str(yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["appVersion"])
"""Of the project."""


def version_of(packaged: Path) -> str:
    """Returns the version of a chart by the name of its package."""
    return packaged.stem.removeprefix("octavo-")


RELEASED = sorted(
    (ROOT / "tests" / "charts" / "released").glob("*.tgz"),
    key=lambda path: [int(number) for number in version_of(path).split(".")],
)
"""The charts of the versions before, as they were packaged, the latest one last."""
PREVIOUS = RELEASED[-1]

Manifest = dict[str, Any]
Values = Mapping[str, Any]

MONITORING = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
"""Kinds of a cluster with the Prometheus operator."""


def refusal(values: Values, *, name: str = "octavo") -> str:
    """Returns what helm says when it refuses values."""
    done = _helm(json.dumps(values), name, "serving", ())
    assert done.returncode != 0, "helm took the values"
    return done.stderr


def render(
    values: Values | None = None,
    *,
    name: str = "octavo",
    namespace: str = "serving",
    kinds: tuple[str, ...] = (),
) -> list[Manifest]:
    """Returns the objects of a release, hooks included."""
    done = _helm(json.dumps(values or {}), name, namespace, kinds)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


@functools.cache
def _helm(
    values: str, name: str, namespace: str, kinds: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    versions = [word for kind in kinds for word in ("--api-versions", kind)]
    command = [program("helm"), "template", name, str(CHART), "--namespace", namespace, *versions]
    return subprocess.run(
        [*command, "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def notes(values: Values | None = None) -> str:
    """Returns the notes of a release."""
    command = [program("helm"), "install", "octavo", str(CHART), "--namespace", "serving"]
    done = subprocess.run(
        [*command, "--dry-run=client", "--output", "json", "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    text: str = json.loads(done.stdout)["info"]["notes"]
    return text


def only(objects: list[Manifest], kind: str, name: str) -> Manifest:
    """Returns the one object of that kind and name."""
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod or the template of one, with the name of what has it."""

    owner: str
    metadata: Manifest
    spec: Manifest

    @property
    def container(self) -> Manifest:
        """Its only container."""
        (container,) = self.spec["containers"]
        assert isinstance(container, dict)
        return container

    @property
    def args(self) -> list[str]:
        """The arguments of its process."""
        return list(self.container.get("args", []))


def pods(objects: list[Manifest]) -> Iterator[Pod]:
    """Yields all pods and templates of pods."""
    for each in objects:
        owner = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] == "Pod":
            yield Pod(owner, each["metadata"], each["spec"])
        elif each["kind"] in ("Deployment", "Job"):
            template = each["spec"]["template"]
            yield Pod(owner, template["metadata"], template["spec"])


def pod_of(objects: list[Manifest], component: str) -> Pod:
    """Returns the pod template of one component's Deployment."""
    (found,) = [
        pod
        for pod in pods(objects)
        if pod.owner.startswith("Deployment/")
        and pod.metadata["labels"]["app.kubernetes.io/component"] == component
    ]
    return found
