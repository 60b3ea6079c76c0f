"""The engines' Deployments that an operator writes, kept of each version that is released.

`python -m tests.charts.released_engines VERSION` writes them as those of a version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import yaml
from tests.charts.rendering import RELEASED, ROOT, Manifest, version_of
from tests.operator.building import INSTALLATION, defaulted

from octavo.operator import desired, schema, spec
from octavo.operator.desired import Circumstances
from octavo.operator.desired_engine import Strategy
from octavo.operator.spec import InferenceService

_PLACED: Final[dict[str, Any]] = {
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "serviceAccountName": "engines",
}
_WORDS: Final[dict[str, Any]] = {
    "options": {"kvBytes": "1Gi", "threads": 2, "maxModelLen": 4096},
    "extraArgs": ["--watermark=0.1", "$(HOME)"],
    "env": [
        {"name": "A", "value": "1"},
        {"name": "K", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}},
    ],
    "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}},
    "podLabels": {"team": "x"},
    "podAnnotations": {"note": "y"},
    "podSecurityContext": {"runAsUser": 7},
    "imagePullSecrets": [{"name": "pull"}],
}
_SPECS: Final[dict[str, dict[str, Any]]] = {
    "hub": {
        "model": {"uri": "hf://org/llama", "revision": "v1", "secretRef": {"name": "hub"}},
        "cache": {"volume": {"size": "20Gi", "storageClassName": "fast"}},
        "engine": {"device": "cuda"} | _PLACED,
    },
    "bucket": {
        "model": {"uri": "s3://models/llama/llama.gguf", "servedNames": ["a", "b/c"]},
        "cache": {"volume": {"size": "20Gi"}},
        "engine": _WORDS,
        "rollout": {"maxSurge": 0, "maxUnavailable": 1, "drainSeconds": 60},
        "replicas": 3,
    },
    "claim": {"model": {"uri": "pvc://weights/llama"}, "engine": {"image": "mine:1"}},
    "image": {"model": {"uri": "oci://registry.example/llama:1"}, "engine": {}},
    "file": {"model": {"uri": "file:///models/llama"}, "engine": {}},
}


def kept(chart: Path) -> list[Manifest]:
    """Returns services and their engines, as they were kept beside a packaged chart."""
    found: list[Manifest] = json.loads(_place(version_of(chart)).read_text("utf-8"))
    return found


def _place(version: str) -> Path:
    return RELEASED[0].with_name(f"octavo-{version}-engines.json")


def services() -> list[Manifest]:
    """Returns the examples and services that use all of the engine's fields, as stored."""
    examples = [
        yaml.safe_load(path.read_text("utf-8")) for path in sorted((ROOT / "examples").iterdir())
    ]
    others = [{"metadata": {"name": name}, "spec": spec} for name, spec in _SPECS.items()]
    return [
        {
            "metadata": {"name": each["metadata"]["name"], "namespace": "serving", "uid": "1"},
            "spec": defaulted(each["spec"], schema.spec()),
        }
        for each in [*examples, *others]
    ]


def deployment(stored: Manifest) -> Manifest:
    """Returns the engines' Deployment of a service as it was stored."""
    service = spec.parse({**stored, "spec": defaulted(stored["spec"], schema.spec())})
    assert isinstance(service, InferenceService), service
    rollout = service.spec.rollout
    given = Circumstances(
        installation=INSTALLATION,
        references="aa" if spec.references_of(service.spec) else "",
        kinds=frozenset(),
        image=service.spec.engine.image or f"octavo/engine-{service.spec.engine.device}:1",
        strategy=Strategy(max_surge=rollout.max_surge, max_unavailable=rollout.max_unavailable),
        replicas=service.spec.replicas,
    )
    (found,) = [c for c in desired.children(service, given) if c["kind"] == "Deployment"]
    return found


def main() -> None:
    """Writes what the operator makes of the services beside the packaged charts."""
    (version,) = sys.argv[1:]
    found = [{"service": each, "deployment": deployment(each)} for each in services()]
    _place(version).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
