"""The fault script of a run: plain data, drawn from its own stream, applied one by one.

What ends a fault is an entry of its own, so that whoever shrinks the script may leave either out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.env import stream
from tests.sim.options import Options

from octavo.runtime import failpoint

if TYPE_CHECKING:
    from tests.sim.world import World

REDIS_FAULTS = ("away", "slow", "readonly", "oom", "wrong_reply", "flush", "corrupt")

FAILPOINTS = tuple(sorted(failpoint.NAMES - {"engine.load"}))


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, or is right again."""

    at: float
    """Seconds after the start."""
    kind: str
    target: str
    arg: float = 0.0


def draw_faults(seed: int, options: Options) -> list[Fault]:
    """Draws the script of a seed, in order of time."""
    rng = stream(seed, "faults")
    script: list[Fault] = []
    for _ in range(options.num_faults if options.kinds else 0):
        at = rng.uniform(0.2, options.fault_s)
        if options.bursts and rng.random() < 0.5:
            at = rng.choice(options.bursts) + rng.uniform(0.05, 1.2)
        script += _one(rng, rng.choice(options.kinds), round(at, 3), options)
    return sorted(script, key=lambda f: f.at)


def _one(rng: random.Random, kind: str, at: float, options: Options) -> list[Fault]:
    engine = f"engine{rng.randrange(options.engines)}"
    gateway = f"gateway{rng.randrange(options.gateways)}"
    long = rng.choice((0.3, 1.5, 4.0, 8.0, 1e9))
    until = round(at + long * rng.uniform(0.7, 1.3), 3)
    if kind in ("kill", "restart"):
        return [Fault(at, "kill", engine, float(kind == "restart"))]
    if kind == "pause":
        stop = rng.choice((engine, engine, gateway))
        return [Fault(at, "pause", stop), Fault(until, "resume", stop)]
    if kind == "slow":
        return [Fault(at, "slow", engine, rng.choice((3.0, 20.0))), Fault(until, "slow", engine, 1)]
    if kind in ("cut", "clog"):
        pair = [engine, gateway]
        rng.shuffle(pair)
        ways = [">".join(pair)] + [">".join(reversed(pair))] * rng.randrange(2)
        extra = rng.choice((0.05, 0.5, 2.0))
        undo = "heal" if kind == "cut" else "clog"
        return [Fault(at, kind, way, extra if kind == "clog" else 0) for way in ways] + [
            Fault(until, undo, way) for way in ways
        ]
    if kind == "redis":
        what = rng.choice(REDIS_FAULTS)
        return [Fault(at, "redis", what, 1.0), Fault(until, "redis", what, 0.0)]
    if kind == "wall_jump":
        return [Fault(at, kind, gateway, rng.choice((-3600.0, 3600.0)))]
    if kind == "events":
        return [Fault(at, kind, rng.choice(("drop", "repeat", "swap")), rng.choice((0.1, 0.5)))]
    if kind == "failpoint":
        return [Fault(at, kind, rng.choice(FAILPOINTS), rng.randint(1, 6))]
    if kind == "drain":
        return [Fault(at, kind, engine, rng.choice((0.05, 1.0, 20.0)))]
    if kind == "gateway_drain":
        return [Fault(at, kind, gateway, rng.choice((0.5, 5.0)))]
    if kind == "gateway_kill":
        return [Fault(at, kind, gateway, float(rng.random() < 0.7))]
    return [Fault(at, kind, engine)]


def apply(fault: Fault, world: World) -> None:
    """Does one entry of the script."""
    world.history.fault(fault.kind, fault.target)
    engine = world.engine_named.get(fault.target)
    gateway = world.gateway_named.get(fault.target)
    if engine is not None:
        match fault.kind:
            case "kill":
                engine.kill("killed")
                engine.stays_dead = not fault.arg
            case "pause":
                engine.pause()
            case "resume":
                engine.resume()
            case "slow":
                engine.slow(fault.arg)
            case "drain":
                engine.drain(fault.arg)
            case "step_error":
                engine.break_step()
            case "stuck":
                engine.stick()
    elif gateway is not None:
        match fault.kind:
            case "pause":
                gateway.pause()
            case "resume":
                gateway.resume()
            case "gateway_kill":
                gateway.kill()
                gateway.stays_dead = not fault.arg
            case "gateway_drain":
                gateway.drain(fault.arg)
            case "wall_jump":
                gateway.env.wall_offset_s += fault.arg
    elif ">" in fault.target:
        source, target = fault.target.split(">")
        match fault.kind:
            case "cut":
                world.net.cut(source, target)
            case "heal":
                world.net.heal(source, target)
            case "clog":
                world.net.clog(source, target, fault.arg)
        ill = fault.kind != "heal" and (fault.kind == "cut" or fault.arg > 0)
        world.health.mark(fault.target, fault.kind.replace("heal", "cut"), ill=ill)
    elif fault.kind == "redis":
        world.redis_fault(fault.target, on=bool(fault.arg))
    elif fault.kind == "failpoint":
        world.arm(fault.target, int(fault.arg))
    elif fault.kind == "events":
        world.event_fault(fault.target, fault.arg)
