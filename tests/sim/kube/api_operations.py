"""Operations on an API server, drawn for the conformance tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from octavo.operator.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    LEASE,
    POD,
    Kind,
    Manifest,
)

NAMES = st.sampled_from([*"xxxxxxy"])
BOUNDS = st.sampled_from(["", "", "", "uid", "version", "other uid", "other version"])
MANAGERS = st.sampled_from(["a", "b"])
TEXTS = st.sampled_from(["1", "2"])
TIME = "2026-05-28T20:26:40Z"


def some(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[Manifest]:
    """Any of these fields."""
    return st.fixed_dictionaries({}, optional=optional)


def entries(
    key: str, values: st.SearchStrategy[Any], whole: Manifest | None = None, **more: Any
) -> Any:
    """A list whose entries have a key of their own."""
    entry = st.fixed_dictionaries({key: values} | (whole or {}), optional=more)
    return st.lists(entry, min_size=1, max_size=2, unique_by=lambda e: e[key])


METADATA = some(
    labels=st.dictionaries(st.sampled_from(["l", "m"]), TEXTS, min_size=1),
    annotations=st.dictionaries(st.sampled_from(["n"]), TEXTS, min_size=1),
)
PATCHED = some(
    labels=st.dictionaries(st.sampled_from(["l", "m"]), st.one_of(TEXTS, st.none()), min_size=1),
    annotations=st.one_of(st.none(), st.just({"n": "3"})),
)
CONDITIONS = entries(
    "type",
    st.sampled_from(["One", "Two"]),
    {"status": st.sampled_from(["True", "False"]), "lastTransitionTime": st.just(TIME)},
    reason=TEXTS,
)
CONTAINER = st.fixed_dictionaries(
    {"name": st.just("c"), "image": st.sampled_from(["i:1", "i"])},
    optional={
        "args": st.lists(TEXTS, min_size=1, max_size=2),
        "env": entries("name", st.sampled_from(["E", "F", "G"]), value=st.sampled_from(["", "1"])),
        "ports": entries("containerPort", st.sampled_from([1, 2])),
        "resources": some(
            limits=some(
                memory=st.sampled_from(["1Gi", "1024Mi", "1.5Gi"]),
                cpu=st.sampled_from(["500m", "0.5", 2]),
            )
        ),
    },
)
TOLERATION = st.fixed_dictionaries({"key": TEXTS, "operator": st.just("Exists")})
DEPLOYMENT_CONDITIONS = entries(
    "type",
    st.sampled_from(["One", "Two"]),
    {
        "status": st.sampled_from(["True", "False"]),
        "lastUpdateTime": st.just(TIME),
        "lastTransitionTime": st.just(TIME),
    },
)
TEMPLATE = some(
    metadata=some(annotations=st.dictionaries(st.just("n"), TEXTS, min_size=1)),
    spec=some(
        containers=st.lists(CONTAINER, min_size=1, max_size=1),
        nodeSelector=st.dictionaries(TEXTS, TEXTS, min_size=1),
        tolerations=st.lists(TOLERATION, min_size=1, max_size=2),
        terminationGracePeriodSeconds=st.sampled_from([5, 30]),
    ),
)
DEPLOYMENTS = some(
    replicas=st.sampled_from([0, 1, 2, 0, 1, 2, -1]),
    paused=st.booleans(),
    template=TEMPLATE,
    strategy=st.just({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}),
)
SERVICES = some(
    model=st.fixed_dictionaries(
        {"uri": st.sampled_from(["file:///m", "file:///n", "file:///m", 5])},
        optional={"servedNames": st.lists(TEXTS, min_size=1, unique=True)},
    ),
    replicas=st.sampled_from([0, 1, 2, 0, 1, 2, -1, "1"]),
    engine=some(
        device=st.sampled_from(["cpu", "cuda"]),
        env=entries("name", st.sampled_from(["E", "F"]), value=TEXTS),
        tolerations=st.lists(some(key=TEXTS), min_size=1, max_size=2),
        podLabels=st.dictionaries(TEXTS, TEXTS, min_size=1),
        resources=some(limits=some(memory=st.sampled_from(["1Gi", "1024Mi", 5]))),
    ),
    rollout=some(paused=st.booleans(), maxSurge=st.sampled_from([1, 2, "25%", 1, 2, "25%", "x"])),
)
SERVICE_CONDITIONS = st.builds(
    lambda found: [
        {"status": "True", "reason": "A", "message": "", "lastTransitionTime": TIME} | c
        for c in found
    ],
    entries(
        "type", st.sampled_from(["One", "Two"]), status=st.sampled_from(["False", "False", "No"])
    ),
)
LEASES = some(
    holderIdentity=st.sampled_from(["", "me", "you"]),
    leaseDurationSeconds=st.sampled_from([15, 16, 15, 16, 0]),
    renewTime=st.just("2026-05-28T20:26:40.000001Z"),
)
STATUSES: dict[Kind, Any] = {
    INFERENCE_SERVICE: some(
        conditions=SERVICE_CONDITIONS,
        model=TEXTS,
        replicas=st.sampled_from([0, 1, 0, 1, -1]),
        numericsIDs=st.lists(TEXTS, min_size=1, unique=True),
    ),
    POD: some(conditions=CONDITIONS, phase=st.sampled_from(["Running", "Succeeded"])),
    DEPLOYMENT: some(conditions=DEPLOYMENT_CONDITIONS, replicas=st.sampled_from([0, 1])),
}
# An empty status outside of its subresource raises the version of a real server's objects.
BODIES: dict[Kind, Any] = {
    CONFIG_MAP: some(data=st.dictionaries(st.sampled_from(["a", "b"]), TEXTS, min_size=1)),
    LEASE: some(spec=LEASES),
    DEPLOYMENT: some(spec=DEPLOYMENTS, status=STATUSES[DEPLOYMENT].filter(bool)),
    INFERENCE_SERVICE: some(spec=SERVICES, status=STATUSES[INFERENCE_SERVICE].filter(bool)),
    POD: some(status=STATUSES[POD]),
}
POD_SPEC = {"containers": [{"name": "c", "image": "i:1"}], "automountServiceAccountToken": False}
WHOLE: dict[Kind, Manifest] = {
    DEPLOYMENT: {
        "selector": {"matchLabels": {"app": "x"}},
        "template": {"metadata": {"labels": {"app": "x"}}, "spec": POD_SPEC},
    },
    INFERENCE_SERVICE: {"model": {"uri": "file:///m"}},
    POD: POD_SPEC,
}
"""What a spec needs at least."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One request; `bound` says which preconditions it has."""

    verb: str
    name: str
    manager: str = ""
    body: Manifest = field(default_factory=dict)
    metadata: Manifest = field(default_factory=dict)
    subresource: str = ""
    bound: str = ""
    force: bool = True


def whole(kind: Kind, body: Manifest, is_whole: bool) -> Manifest:
    """Adds what a spec needs at least."""
    if not is_whole or kind not in WHOLE:
        return body
    return body | {"spec": _merged(WHOLE[kind], body.get("spec", {}))}


def _merged(least: Any, given: Any) -> Any:
    if isinstance(least, dict) and isinstance(given, dict):
        return least | {k: _merged(least.get(k), v) for k, v in given.items()}
    return given


def operations(kind: Kind) -> st.SearchStrategy[list[Operation]]:
    """Lists that mostly begin with an object, so that most of the rest meets one."""
    some_bodies, bodies = (
        st.builds(whole, st.just(kind), BODIES[kind], is_whole)
        for is_whole in (st.booleans(), st.just(True))
    )
    writes = {"bound": BOUNDS, "force": st.booleans()}
    applied = _drawn("apply", MANAGERS, bodies, METADATA)
    created = _drawn("create", MANAGERS, bodies, METADATA)
    changes = [
        applied,
        created,
        _drawn("apply", MANAGERS, some_bodies, METADATA, **writes),
        _drawn("apply", MANAGERS, some_bodies, METADATA, force=st.booleans()),
        _drawn("patch", st.just("kubectl"), BODIES[kind], PATCHED, bound=BOUNDS),
        _drawn("delete", bound=BOUNDS),
        st.builds(Operation, st.just("list"), st.sampled_from(["", "l", "l=1"])),
    ]
    if kind in STATUSES:
        told = st.builds(lambda status: {"status": status}, STATUSES[kind])
        status = st.just("status")
        changes += [
            _drawn(verb, MANAGERS, told, subresource=status, **writes)
            for verb in ("apply", "apply", "patch")
        ]
    if kind in (DEPLOYMENT, INFERENCE_SERVICE):
        number = st.builds(lambda n: {"spec": {"replicas": n}}, st.integers(0, 3))
        scale = st.just("scale")
        changes.append(_drawn("patch", MANAGERS, number, subresource=scale, bound=BOUNDS))
    if kind == POD:
        changes.append(_drawn("remove"))
    begin = st.lists(st.one_of(applied, created), min_size=0, max_size=2)
    rest = st.lists(st.one_of(changes), min_size=1, max_size=8)
    return st.builds(lambda first, then: [*first, *then], begin, rest)


def _drawn(verb: str, *parts: Any, **more: Any) -> st.SearchStrategy[Operation]:
    return st.builds(Operation, st.just(verb), NAMES, *parts, **more)
