"""The definition, and what is written, against a real API server: its CEL, defaults, columns."""

from __future__ import annotations

import json

import pytest
from tests.cluster.api import ApiError
from tests.cluster.kubernetes import Kubernetes
from tests.operator.building import defaulted
from tests.operator.on_api_server import defined, ready, replicas, resource, settled
from tests.operator.reconciling import Reconciler

__all__ = ["defined"]

from octavo.operator import crd, names, schema
from octavo.operator.kinds import Manifest
from octavo.operator.plan import Apply

CLAIM = {"uri": "pvc://weights/llama"}
HUB = {"uri": "hf://org/llama"}
VOLUME = {"volume": {"size": "20Gi"}}


def refusal(cluster: Kubernetes, namespace: str, found: Manifest) -> str:
    with pytest.raises(ApiError) as caught:
        cluster.kubectl.apply(found, namespace=namespace)
    return str(caught.value)


def test_the_server_takes_the_definition_and_finds_nothing_to_warn_of(defined: Kubernetes) -> None:
    found = defined.kubectl.get("customresourcedefinition", crd.definition()["metadata"]["name"])
    said = {c["type"]: (c["status"], c.get("message")) for c in found["status"]["conditions"]}
    assert said["Established"][0] == "True"
    assert "NonStructuralSchema" not in said
    assert found["status"]["acceptedNames"]["shortNames"] == [names.SHORT_NAME]


def test_defaults_are_those_of_the_schema(defined: Kubernetes, namespace: str) -> None:
    full = resource(model=HUB, cache=VOLUME, autoscaling={"maxReplicas": 3})
    defined.kubectl.apply(full, namespace=namespace)
    found = defined.kubectl.get("ois", "llama", namespace=namespace)
    assert found["spec"] == defaulted(json.loads(json.dumps(full["spec"])), schema.spec())
    assert found["spec"]["engine"] == {"device": "cpu", "imagePullPolicy": "IfNotPresent"}
    assert "replicas" not in found["spec"]


REFUSED: dict[str, tuple[Manifest, str]] = {
    "name too long": (resource("x" * 41), "metadata.name has at most 40 characters"),
    "name with a digit in front": (resource("9b"), "metadata.name must begin with a letter"),
    "name with a dot": (resource("a.b"), "metadata.name must begin with a letter"),
    "two who decide": (
        resource(replicas=1, autoscaling={"maxReplicas": 2}),
        "replicas and autoscaling exclude one another",
    ),
    "fewest above most": (
        resource(autoscaling={"minReplicas": 3, "maxReplicas": 2}),
        "minReplicas must not be above maxReplicas",
    ),
    "no uri": (resource(model={"uri": "ftp://x"}), "uri must be one of hf://ORGANISATION/NAME"),
    "a shell in the uri": (resource(model={"uri": "hf://o/x; touch /tmp/p"}), "uri must be one of"),
    "a path out of the volume": (resource(model={"uri": "pvc://c/../x"}), "uri must be one of"),
    "no volume": (resource(model=HUB), "say with cache.volume.size how large"),
    "a volume that only one pod can have": (
        resource(model=HUB, cache={"volume": {"size": "20Gi", "accessMode": "ReadWriteOncePod"}}),
        'accessMode: Unsupported value: "ReadWriteOncePod": supported values: "ReadWriteOnce"',
    ),
    "revision of a claim": (
        resource(model=CLAIM | {"revision": "v1"}),
        "only hf:// and s3:// models have a revision",
    ),
    "no memory for the disk": (
        resource(cache={"disk": {"size": "50Gi"}}),
        "disk needs host: blocks come to the disk from there",
    ),
    "nothing of a volume": (
        resource(model=HUB, cache={"volume": {"size": 0}}),
        "size of a volume must be above 0",
    ),
    "less than nothing": (
        resource(engine={"resources": {"limits": {"memory": -1}}}),
        "spec.engine.resources.limits.memory",
    ),
    "nothing of memory": (resource(cache={"host": "0Gi"}), "host must be above 0"),
    "nothing of a disk": (
        resource(cache={"host": "4Gi", "disk": {"size": 0}}),
        "size of a disk must be above 0",
    ),
    "text and messages": (
        resource(
            cache={
                "pinnedPrefixes": [{"text": "x", "messages": [{"role": "user", "content": "y"}]}]
            }
        ),
        "a pinned prefix has either text or messages",
    ),
    "neither text nor messages": (
        resource(cache={"pinnedPrefixes": [{"cacheSalt": "x"}]}),
        "a pinned prefix has either text or messages",
    ),
    "too much to pin": (
        resource(
            cache={
                "pinnedPrefixes": [
                    {"text": "x" * 40_000},
                    {"messages": [{"role": "user", "content": "ü" * 25_537}]},
                ]
            }
        ),
        "pinnedPrefixes have at most 65536 characters together",
    ),
    "pins without a cache": (
        resource(
            cache={"pinnedPrefixes": [{"text": "x"}]},
            engine={"options": {"prefixCaching": False}},
        ),
        "need engine.options.prefixCaching, which is off",
    ),
    "a tier as an option": (
        resource(engine={"options": {"hostCacheBytes": "4Gi"}}),
        ".spec.engine.options.hostCacheBytes: field not declared in schema",
    ),
    "nothing could change": (
        resource(rollout={"maxSurge": "00%", "maxUnavailable": 0}),
        "maxSurge and maxUnavailable cannot both be 0",
    ),
    "a number as text": (resource(rollout={"maxSurge": "1"}), "spec.rollout.maxSurge"),
    "fewer than none": (resource(rollout={"maxSurge": -1}), "spec.rollout.maxSurge"),
    "more than pods are counted": (resource(rollout={"maxSurge": 2**31}), "spec.rollout.maxSurge"),
    "more than all": (resource(rollout={"maxUnavailable": "101%"}), "spec.rollout.maxUnavailable"),
    "an argument of ours": (
        resource(engine={"extraArgs": ["--listen=0.0.0.0:1"]}),
        "extraArgs cannot have --model",
    ),
    "a label of ours": (
        resource(engine={"podLabels": {"app.kubernetes.io/name": "x"}}),
        "keys that begin with serving.octavo.dev/",
    ),
    "value twice": (
        resource(
            engine={
                "env": [
                    {
                        "name": "A",
                        "value": "1",
                        "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}},
                    }
                ]
            }
        ),
        "a variable has either value or valueFrom",
    ),
    "value from nowhere": (
        resource(engine={"env": [{"name": "A", "valueFrom": {}}]}),
        "valueFrom takes either secretKeyRef or configMapKeyRef",
    ),
    "no quantity": (
        resource(engine={"resources": {"limits": {"memory": "20gi"}}}),
        "spec.engine.resources.limits.memory",
    ),
    "empty quantity": (
        resource(engine={"resources": {"limits": {"memory": ""}}}),
        "spec.engine.resources.limits.memory",
    ),
    "negative replicas": (resource(replicas=-1), "spec.replicas"),
    "unknown field": (resource(replica=1), ".spec.replica: field not declared in schema"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_words_that_help(
    defined: Kubernetes, namespace: str, case: str
) -> None:
    found, sentence = REFUSED[case]
    assert sentence in refusal(defined, namespace, found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"size": "20Gi", "storageClassName": "fast"},
            "storageClassName of a volume cannot change",
        ),
        ({"size": "20Gi", "accessMode": "ReadWriteMany"}, "accessMode of a volume cannot change"),
    ],
)
def test_what_cannot_change_says_what_to_do(
    defined: Kubernetes, namespace: str, change: Manifest, sentence: str
) -> None:
    defined.kubectl.apply(resource(model=HUB, cache=VOLUME), namespace=namespace)
    said = refusal(defined, namespace, resource(model=HUB, cache={"volume": change}))
    assert sentence in said
    assert "delete this InferenceService and create it again" in said
    for size in (30 * 2**30, "20Gi"):  # what did not grow has to have a way back
        resized = resource(model=HUB, cache={"volume": {"size": size}})
        defined.kubectl.apply(resized, namespace=namespace)


def test_scale_sets_replicas_and_has_a_selector(defined: Kubernetes, namespace: str) -> None:
    reconciler = settled(defined, namespace, replicas=1)
    defined.kubectl("scale", "ois/llama", "--replicas=2", namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")
    path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.PLURAL}/llama/scale"
    scale = json.loads(defined.kubectl("get", "--raw", path))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (2, 2)
    assert scale["status"]["selector"] == names.selector_text("llama")
    pods = defined.kubectl.list("pods", namespace=namespace, selector=scale["status"]["selector"])
    assert len(pods) == 2


def test_who_lets_the_operator_decide_cannot_be_scaled_by_hand(
    defined: Kubernetes, namespace: str
) -> None:
    defined.kubectl.apply(resource(autoscaling={"maxReplicas": 2}), namespace=namespace)
    with pytest.raises(ApiError, match="replicas and autoscaling exclude one another"):
        defined.kubectl("scale", "ois/llama", "--replicas=2", namespace=namespace)


def test_columns_tell_the_state(defined: Kubernetes, namespace: str) -> None:
    settled(defined, namespace, replicas=1)
    header, row = defined.kubectl("get", "ois", namespace=namespace).splitlines()
    assert header.split() == [
        "NAME", "MODEL", "READY", "REASON", "REPLICAS", "HIT", "RATE", "AGE",
    ]  # fmt: skip
    assert row.split()[:5] == ["llama", "llama", "True", "Serving", "1/1"]
    assert "octavo-gateway" in defined.kubectl("get", "ois", "-o", "wide", namespace=namespace)
    assert "llama" in defined.kubectl("get", "octavo", namespace=namespace)


SPECS: dict[str, Manifest] = {
    "claim": {"model": CLAIM, "replicas": 2},
    "hub": {"model": HUB | {"revision": "main"}, "cache": VOLUME, "replicas": 1},
    "everything": {
        "model": CLAIM | {"servedNames": ["a", "b/c"], "secretRef": {"name": "hub"}},
        "replicas": 1,
        "rollout": {"maxSurge": "50%", "maxUnavailable": 1, "drainSeconds": 0},
        "engine": {
            "device": "cpu",
            "image": "mine:1",
            "imagePullSecrets": [{"name": "pull"}],
            "options": {"kvBytes": "1Gi", "threads": 2, "prefixCaching": False, "watermark": 0.1},
            "extraArgs": ["--x=$(HOME)"],
            "env": [
                {"name": "A", "value": ""},
                {"name": "B", "value": "1"},
                {"name": "C", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
                {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://x:4317"},
            ],
            "resources": {
                "limits": {"cpu": "2000m", "memory": "2048Mi"},
                "requests": {"cpu": "0.5", "memory": 1073741824},
            },
            "nodeSelector": {"kubernetes.io/hostname": "cpu-node"},
            "tolerations": [
                {"key": "a", "operator": "Exists"},
                {"operator": "Exists", "effect": "NoSchedule"},
            ],
            "affinity": {
                "nodeAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "preference": {
                                "matchExpressions": [{"key": "zone", "operator": "Exists"}]
                            },
                        }
                    ]
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 5,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"a": "b"}},
                            },
                        }
                    ]
                },
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
            "serviceAccountName": "default",
            "podSecurityContext": {"runAsUser": 1000, "supplementalGroups": [7]},
            "podLabels": {"team": "x"},
            "podAnnotations": {"note": "x y"},
        },
    },
    "tiers": {
        "replicas": 1,
        "cache": {
            "host": "1024Mi",
            "disk": {"size": "2048Mi"},
            "pinnedPrefixes": [
                {"text": "x" * 40_000, "ttlSeconds": 60},
                {"messages": [{"role": "user", "content": "ü" * 25_536}], "cacheSalt": "$(HOME)"},
            ],
        },
    },
    "gpu": {"replicas": 1, "engine": {"device": "cuda"}},
    "scaled": {
        "autoscaling": {"minReplicas": 1, "maxReplicas": 2},
        "rollout": {"maxSurge": "200%", "maxUnavailable": "100%"},
    },
    "left to others": {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
}


@pytest.mark.parametrize("case", SPECS)
def test_what_the_server_makes_of_our_objects_costs_no_further_write(
    defined: Kubernetes, namespace: str, case: str
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hub"},
              "stringData": {"token": "t"}}  # fmt: skip
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {
            "accessModes": ["ReadOnlyMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    defined.kubectl.apply(secret, claim, resource(**SPECS[case]), namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    reconciler.until(lambda observed: ready(observed) == "True")
    assert reconciler.refusals == []
    assert reconciler.plan().is_empty
    applied = [w for w in reconciler.writes if isinstance(w, Apply)]
    assert len(applied) == len({(write.kind, write.name) for write in applied})


def test_what_engines_keep_of_prompts_can_change(defined: Kubernetes, namespace: str) -> None:
    def mounted() -> Manifest:
        found = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
        return {v["name"]: v for v in found["spec"]["template"]["spec"]["volumes"]}

    def pins() -> list[str]:
        selector = f"{names.SERVICE_LABEL}=llama"
        found = defined.kubectl.list("configmaps", namespace=namespace, selector=selector)
        return [config_map["metadata"]["name"] for config_map in found]

    def cached(prefix: str, **disk: str) -> Manifest:
        prefixes = [{"text": prefix}]
        return {"host": "1Gi", "disk": {"size": "2Gi"} | disk, "pinnedPrefixes": prefixes}

    reconciler = settled(defined, namespace, replicas=1, cache=cached("one"))
    (before,) = pins()
    assert mounted()["kv-blocks"]["emptyDir"] == {"sizeLimit": "2Gi"}
    a_class = defined.kubectl.list("storageclasses")[0]["metadata"]["name"]
    changed = resource(replicas=1, cache=cached("two", storageClassName=a_class))
    defined.kubectl.apply(changed, namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True" and pins() != [before])
    (after,) = pins()
    assert mounted()["pins"]["configMap"]["name"] == after != before
    assert mounted()["kv-blocks"].keys() == {"name", "ephemeral"}
    applied = [(w.kind.name, w.name) for w in reconciler.writes if isinstance(w, Apply)]
    assert applied.count(("Deployment", "llama-engine")) == 2
    defined.kubectl.apply(resource(replicas=1), namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True" and not pins())
    assert mounted().keys() == {"tmp", "shm"}


def test_what_only_the_server_finds_is_told_in_its_words(
    defined: Kubernetes, namespace: str
) -> None:
    wrong = resource(replicas=1, engine={"tolerations": [{"effect": "NoSchedule"}]})
    defined.kubectl.apply(wrong, namespace=namespace)
    reconciler = Reconciler(defined.kubeconfig, namespace, "llama")
    reconciler.turn()
    reconciler.turn()
    found = defined.kubectl.get("ois", "llama", namespace=namespace)
    told = next(c for c in found["status"]["conditions"] if c["type"] == "Ready")
    assert told["reason"] == "WriteRefused"
    assert "operator must be Exists when `key` is empty" in told["message"]
    # The rest of the objects is there.
    assert defined.kubectl.get("service", "llama-engine", namespace=namespace)
    defined.kubectl.apply(resource(replicas=1), namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")


def test_a_removed_field_is_removed_and_a_foreign_one_stays(
    defined: Kubernetes, namespace: str
) -> None:
    placed = {"nodeSelector": {"kubernetes.io/os": "linux"}, "image": "mine:1"}
    reconciler = settled(defined, namespace, replicas=1, engine=placed)
    patch = {"metadata": {"labels": {"team": "x"}}, "spec": {"minReadySeconds": 1}}
    defined.kubectl(
        "patch", "deployment", "llama-engine", "--patch", json.dumps(patch), namespace=namespace
    )
    assert not [w for w in reconciler.plan().writes if isinstance(w, Apply)]
    defined.kubectl.apply(resource(replicas=1), namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")
    found = defined.kubectl.get("deployment", "llama-engine", namespace=namespace)
    pod = found["spec"]["template"]["spec"]
    assert "nodeSelector" not in pod
    assert pod["containers"][0]["image"] == "octavo-engine:cpu"
    assert found["metadata"]["labels"]["team"] == "x"
    assert found["spec"]["minReadySeconds"] == 1


def test_a_number_given_away_is_not_reset(defined: Kubernetes, namespace: str) -> None:
    reconciler = settled(defined, namespace, replicas=3)
    defined.kubectl.apply(resource(), namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")
    assert replicas(defined, namespace) == 3
    defined.kubectl("scale", "deployment/llama-engine", "--replicas=2", namespace=namespace)
    threads = resource(engine={"options": {"threads": 2}})
    defined.kubectl.apply(threads, namespace=namespace)
    reconciler.until(lambda observed: ready(observed) == "True")
    assert replicas(defined, namespace) == 2


def test_a_write_made_from_an_old_state_of_a_borrowed_number_fails(
    defined: Kubernetes, namespace: str
) -> None:
    reconciler = settled(defined, namespace, replicas=3)
    defined.kubectl.apply(resource(engine={"options": {"threads": 2}}), namespace=namespace)
    (write,) = [w for w in reconciler.plan().writes if isinstance(w, Apply)]
    defined.kubectl("scale", "deployment/llama-engine", "--replicas=5", namespace=namespace)
    with pytest.raises(ApiError, match="the object has been modified"):
        defined.kubectl(
            "apply", "--server-side", "--force-conflicts", "--field-manager=octavo-operator",
            "--filename=-", namespace=namespace, stdin=json.dumps(write.manifest),
        )  # fmt: skip
    assert replicas(defined, namespace) == 5
