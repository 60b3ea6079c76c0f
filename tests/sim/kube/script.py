"""What happens in a run of the operator: users' acts and faults, drawn from a seed as data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.sim.env import stream

USERS = ("apply", "bad", "scale", "delete", "secret", "demand")
"""Kinds of what users do."""

TROUBLES = ("conflicts", "busy", "errors", "late_errors", "refusals")
"""Kinds of faults of single calls."""

FAULTS = (
    "kill",
    "kill_after_write",
    "restart",
    "pause",
    "lost_event",
    "watch_silent",
    "watch_dropped",
    "api_away",
    "api_slow",
    *TROUBLES,
    "gateway_silent",
    "gateway_new",
    "engine_failed",
    "pod_lost",
    "drift",
    "child_deleted",
    "no_room",
)
"""Kinds of faults; each is on with p = 1/2."""

_LASTING = {
    *TROUBLES, "watch_silent", "api_away", "api_slow", "gateway_silent", "no_room", "pause",
    "engine_failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One draw."""

    services: int
    operators: int
    gateways: int
    fault_s: float
    """How long users act and faults come."""
    load_s: float
    """How long an engine loads."""
    going_s: float
    """How long an engine that is ended drains."""
    history: int
    """Changes that the API server remembers for watches."""
    kinds: tuple[str, ...]
    delay_s: float
    """How long the API server takes at most, before the healing."""
    core: int
    """The operator that is healed."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a user does, that goes wrong, or that is right again."""

    at: float
    """Seconds after the start."""
    kind: str
    target: str = ""
    arg: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A seed, unrolled."""

    seed: int
    options: Options
    users: Sequence[Act]
    faults: Sequence[Act]


def draw(seed: int) -> Scenario:
    """Draws all of a seed."""
    options = _options(seed)
    return Scenario(
        seed=seed, options=options, users=_users(seed, options), faults=_faults(seed, options)
    )


def _options(seed: int) -> Options:
    rng = stream(seed, "options")
    operators = rng.choice((1, 1, 2))
    return Options(
        services=rng.choice((1, 2, 3)),
        operators=operators,
        gateways=rng.choice((0, 1, 2)),
        fault_s=rng.choice((30.0, 60.0, 90.0)),
        load_s=rng.choice((1.0, 4.0, 12.0)),
        going_s=rng.choice((0.5, 3.0, 10.0)),
        history=rng.choice((20, 200, 1000)),
        kinds=() if rng.random() < 0.1 else tuple(k for k in FAULTS if rng.random() < 0.5),
        delay_s=rng.choice((0.02, 0.02, 1.0)),
        core=rng.randrange(operators),
    )


def _users(seed: int, options: Options) -> tuple[Act, ...]:
    rng, pins = stream(seed, "users"), stream(seed, "pins")
    acts = []
    for name in names(options):
        created = rng.uniform(0.5, 5.0)
        acts.append(Act(round(created, 3), "apply", name, _spec(rng, pins)))
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            at = round(rng.uniform(created, options.fault_s), 3)
            kind = rng.choice(
                ("apply", "apply", "apply", "scale", "delete", "bad", "secret", "demand")
            )
            arg: Any = None
            if kind in ("apply", "bad"):
                arg = _spec(rng, pins)
            elif kind == "scale":
                arg = rng.randint(0, 3)
            elif kind in ("secret", "demand"):
                arg = rng.randint(0, 2)
            acts.append(Act(at, kind, name, arg))
            if kind == "delete" and rng.random() < 0.6:
                before, after = rng.choice((0.2, 2.0)), rng.choice((0.3, 1.0, 8.0))
                acts.append(Act(round(at - before, 3), "apply", name, _spec(rng, pins)))
                acts.append(Act(round(at + after, 3), "apply", name, _spec(rng, pins)))
    return tuple(sorted(acts, key=lambda act: act.at))


def names(options: Options) -> list[str]:
    """Returns the services of a run."""
    return [f"service{number}" for number in range(options.services)]


def _spec(rng: random.Random, pins: random.Random) -> dict[str, Any]:
    uri = rng.choice(("file:///models/a", "pvc://weights/a", "hf://org/a", "hf://org/b"))
    spec: dict[str, Any] = {"model": {"uri": uri}, "engine": {}}
    if uri.startswith("hf://"):
        spec["cache"] = {"volume": {"size": "20Gi"}}
        if rng.random() < 0.3:
            spec["model"]["revision"] = rng.choice(("v1", "v2"))
    if pins.random() < 0.3:
        prefixes = [{"text": pins.choice(("Once upon a time", "Twice"))}]
        spec["cache"] = spec.get("cache", {}) | {"pinnedPrefixes": prefixes}
    if rng.random() < 0.5:
        spec["engine"]["options"] = {"threads": rng.randint(1, 3)}
    if rng.random() < 0.3:
        source = {"secretKeyRef": {"name": "keys", "key": "one"}}
        spec["engine"]["env"] = [{"name": "K", "valueFrom": source}]
    how = rng.choice(("fixed", "fixed", "scaled", "external"))
    if how == "fixed":
        spec["replicas"] = rng.randint(0, 3)
    elif how == "scaled":
        spec["autoscaling"] = {
            "minReplicas": rng.randint(0, 1), "maxReplicas": rng.randint(1, 3), "idleSeconds": 10,
        }  # fmt: skip
    if rng.random() < 0.4:
        spec["rollout"] = {"maxSurge": rng.randint(0, 2), "maxUnavailable": 1}
    return spec


def _faults(seed: int, options: Options) -> tuple[Act, ...]:
    rng = stream(seed, "faults")
    script: list[Act] = []
    for _ in range(rng.randint(1, 10) if options.kinds else 0):
        kind = rng.choice(options.kinds)
        at = round(rng.uniform(0.5, options.fault_s), 3)
        target, arg = _aim(rng, kind, options)
        script.append(Act(at, kind, target, arg))
        if kind in _LASTING:
            until = at + rng.choice((0.5, 3.0, 20.0, 1e9)) * rng.uniform(0.7, 1.3)
            script.append(Act(round(until, 3), f"end_{kind}", target))
    return tuple(sorted(script, key=lambda act: act.at))


def _aim(rng: random.Random, kind: str, options: Options) -> tuple[str, Any]:
    operator = f"operator{rng.randrange(options.operators)}"
    match kind:
        case "kill_after_write" | "lost_event":
            return operator, rng.randint(1, 12)
        case "api_slow":
            return "", rng.choice((0.5, 4.0, 20.0))
        case "gateway_silent" | "gateway_new":
            return f"gateway{rng.randrange(options.gateways)}" if options.gateways else "", None
        case _ if kind in TROUBLES:
            return "", rng.choice((0.2, 0.7))
        case "kill" | "restart" | "pause" | "watch_silent" | "watch_dropped":
            return operator, None
        case _:
            return rng.choice(names(options)), rng.randint(0, 5)
