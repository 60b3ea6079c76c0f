"""The world of one seed: built, disturbed, healed at its core, and judged.

faults      everything goes wrong that the script says, while clients ask
healing     one gateway and one engine and the way between them are well; the rest stays
quiet       every open request has ended; indexes agree; nothing is in use
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from tests.sim.clients import run_client
from tests.sim.conn import Conn
from tests.sim.engine_life import ProcessDeathError, Site
from tests.sim.engines import EnginePlace
from tests.sim.env import stream
from tests.sim.faults import Fault, apply
from tests.sim.gateways import KEYED_GRACE_S, GatewayPlace
from tests.sim.health import Health
from tests.sim.history import History
from tests.sim.loop import SimLoop
from tests.sim.net import Net
from tests.sim.options import Options
from tests.sim.process import LOCAL, current_host
from tests.sim.redis_model import RedisModel
from tests.sim.requests import Spec
from tests.sim.validators import TryValidator, check_alone, check_end

from octavo.gateway.records import KEY_PREFIX, Record

INSPECT_S = 0.1
BOUND_S = 40.0
"""Within so many seconds after the healing every request must have ended."""
QUIET_S = 3.0
"""More than the longest pause before a gateway connects again."""
DEAD_RECORD_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a run is made of."""

    seed: int
    options: Options
    requests: Sequence[Spec]
    faults: Sequence[Fault]


class World:
    """One run."""

    def __init__(self, scenario: Scenario, loop: SimLoop, history: History) -> None:
        seed, options = scenario.seed, scenario.options
        self.scenario = scenario
        self.history = history
        self.net = Net(
            loop,
            stream(seed, "net"),
            min_delay=options.min_delay_s,
            max_delay=options.max_delay_s,
        )
        self.redis = RedisModel(self.net, host="redis", port=6379)
        names = [f"engine{i}" for i in range(options.engines)]
        self.health = Health(self.history, options, names, loop.time)
        site = Site(
            net=self.net, history=self.history, health=self.health, options=options, seed=seed
        )
        self.engines = [EnginePlace(i, site) for i in range(options.engines)]
        self.gateways = [GatewayPlace(i, site, self.engines) for i in range(options.gateways)]
        self.engine_named = {e.name: e for e in self.engines}
        self.gateway_named = {g.name: g for g in self.gateways}
        self._loop = loop
        self._redis_away = False
        self._armed: dict[str, int] = {}
        self._events = stream(seed, "events")
        self._validator = TryValidator(self.history, options, self.health)

    async def run(self) -> None:
        """Runs the scenario to its end or to the first violation."""
        await self.history.until_violated(self._story(), self._inspect())
        await self._shut_down()

    async def _inspect(self) -> None:
        while True:
            await asyncio.sleep(INSPECT_S)
            for gateway in self.gateways:
                gateway.inspect()
            self._validator.check_new()

    async def _story(self) -> None:
        scenario = self.scenario
        for engine in self.engines:
            engine.start()
        for gateway in self.gateways:
            gateway.start()
        await self._until(lambda: all(g.is_ready for g in self.gateways), 10.0, "nobody is ready")
        self.health.forget()
        clients = [
            asyncio.create_task(run_client(spec, self.gateways, self.history))
            for spec in scenario.requests
        ]
        began = self._loop.time()
        try:
            for fault in scenario.faults:
                if fault.at > scenario.options.fault_s:
                    break
                await asyncio.sleep(max(0.0, began + fault.at - self._loop.time()))
                apply(fault, self)
            await asyncio.sleep(max(0.0, began + scenario.options.fault_s - self._loop.time()))
            self._heal()
            if clients:
                await asyncio.wait(clients, timeout=BOUND_S)
            stopped = [g.name for g in self.gateways if g.paused]
            late = [t.spec.name for t in self.history.tries if not (t.end or t.gateway in stopped)]
            self.history.check(not late, "C2", f"still open after {BOUND_S} s: {late}")
            keyed = any(spec.key for spec in scenario.requests)
            await asyncio.sleep(QUIET_S + KEYED_GRACE_S * keyed)
            self._check_quiet()
            await self._check_records()
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)

    async def _until(self, holds: Callable[[], bool], limit_s: float, what: str) -> None:
        end = self._loop.time() + limit_s
        while not holds():
            if self._loop.time() > end:
                self.history.violate("C2", what)
                return
            await asyncio.sleep(0.05)

    def _heal(self) -> None:
        """Makes one gateway, one engine and their links well; what else is broken stays so."""
        options = self.scenario.options
        gateway, engine = self.gateways[options.core[0]], self.engines[options.core[1]]
        self.history.trace("heal", gateway.name, engine.name)
        for a, b in ((gateway.name, engine.name), (engine.name, gateway.name)):
            self.net.heal(a, b)
            self.health.well(f"{a}>{b}")
        self.net.event_fault = None
        for place in self.engines:
            place.slow(1.0)  # what is slow for ever has no bound
            if place.life is not None:  # the next message shows that one before it was lost
                place.life.shell.feed.set_stage(place.life.shell.feed.stage)
        engine.heal()
        gateway.heal()
        if options.redis_heals:
            for what in ("away", "slow", "readonly", "oom"):
                self.redis_fault(what, on=False)

    def _check_quiet(self) -> None:
        """Nobody asks any more: nothing is in use, indexes say what engines have (E4, G1, G2)."""
        check = self.history.check
        for gateway in self.gateways:
            if not (gateway.alive and gateway.is_up) or gateway.paused:
                continue
            for replica in gateway.replicas:
                who = f"{gateway.name}, {replica.name}"
                in_flight = replica.table.in_flight
                check(in_flight == 0, "G1", f"{who}: {in_flight} attempts are open")
                check(replica.index.num_promised() == 0, "G1", f"{who}: blocks are promised")
            check(gateway.dispatcher.num_open == 0, "G1", f"{gateway.name}: generations are open")
            check(gateway.records.num_open == 0, "G1", f"{gateway.name}: records are open")
        for engine in self.engines:
            life = engine.life
            if life is None or engine.paused or life.stuck:
                continue
            reachable = [g for g in self.gateways if self._steady(engine, g)]
            if len(reachable) == len(self.gateways):
                count = life.engine.core.num_open
                check(count == 0, "E4", f"{engine.name}: {count} choices of nobody are open")
            for gateway in reachable:
                self._check_index(gateway, engine)

    def _steady(self, engine: EnginePlace, gateway: GatewayPlace) -> bool:
        now = self._loop.time()
        up = gateway.alive and gateway.is_up
        return up and self.health.steady(engine.name, gateway.name, now, now)

    def _check_index(self, gateway: GatewayPlace, engine: EnginePlace) -> None:
        assert engine.life is not None
        replica = next(r for r in gateway.replicas if r.name == engine.name)
        held = replica.index.held()
        truth = {h for h, _ in engine.life.engine.cache.snapshot()}
        who = f"{gateway.name}'s index of {engine.name}"
        ghosts = len(held - engine.life.stored)
        self.history.check(not ghosts, "G2", f"{who} has {ghosts} blocks that never were")
        detail = f"{who} has {len(held)} blocks, the engine {len(truth)}"
        self.history.check(held == truth, "G2", detail)

    async def _check_records(self) -> None:
        """No key without an end, no record that says a dead gateway runs something (R2, R3)."""
        died = [at for g in self.gateways for at in g.deaths]
        if died and self.scenario.seed % 4 == 0:
            await asyncio.sleep(max(0.0, max(died) + DEAD_RECORD_S - self._loop.time()))
        self._check_redis()
        check_end(self.history)
        if self.scenario.seed % 5 == 0:
            check_alone(self.history, self.scenario.options)

    def _check_redis(self) -> None:
        for key, ttl_s in self.redis.keys():  # noqa: SIM118 - no dictionary
            self.history.check(ttl_s is not None, "R2", f"{key!r} lives for ever")
            value = self.redis.value(key)
            if key.startswith(KEY_PREFIX.encode()) and isinstance(value, bytes):
                self._check_record(value)

    def _check_record(self, value: bytes) -> None:
        try:
            record = msgspec.json.decode(value, type=Record)
        except msgspec.DecodeError:  # a fault has put it there
            return
        sent = self.history.sent.get(record.id)
        if record.final or sent is None:
            return
        died = [at for at in self.gateway_named[sent[-1].gateway].deaths if at > sent[-1].at]
        since = self._loop.time() - died[0] if died else 0.0
        detail = f"{record.id} is {record.state}, {since:.0f} s after its gateway died"
        self.history.check(since < DEAD_RECORD_S, "R3", detail)

    async def _shut_down(self) -> None:
        for gateway in self.gateways:
            await gateway.stop()
        for engine in self.engines:
            engine.stop()
        await asyncio.sleep(0.1)

    def redis_fault(self, what: str, *, on: bool) -> None:
        """Begins or ends a fault of Redis."""
        redis = self.redis
        match what:
            case "away" if on != self._redis_away:
                self._redis_away = on
                self.net.kill_host("redis") if on else redis.start()
            case "slow":
                redis.slow_s = 2.0 if on else 0.0
            case "readonly":
                redis.readonly = on
            case "oom":
                redis.full = on
            case "wrong_reply" if on:
                redis.num_mixed += 3
            case "flush" if on:
                redis.flush()
            case "corrupt" if on:
                for key, _ in redis.keys()[::2]:
                    redis.corrupt(key)

    def arm(self, failpoint: str, passes: int) -> None:
        """Kills whoever passes the failpoint for the n-th time from now."""
        self._armed[failpoint] = passes

    def passed(self, failpoint: str) -> None:
        """A process passes a failpoint."""
        host = current_host()
        if host == LOCAL:
            return
        self.history.count(f"failpoint.{failpoint}")
        left = self._armed.get(failpoint, 0) - 1
        self._armed[failpoint] = max(left, -1)
        if left != 0:
            return
        self.history.fault("failpoint", f"{failpoint} at {host}")
        if host in self.engine_named:
            raise ProcessDeathError
        self.gateway_named[host].kill()
        raise asyncio.CancelledError  # nothing more of it is heard

    def event_fault(self, what: str, share: float) -> None:
        """Loses, repeats or swaps some messages of all state streams, until the healing."""
        held: dict[Conn, list[bytes]] = {}

        def disturb(stream: Conn, data: bytes) -> list[bytes]:
            if self._events.random() >= share:
                return [data, *held.pop(stream, [])]
            if what == "swap":
                held.setdefault(stream, []).append(data)
                return []
            return [data, data] if what == "repeat" else []

        self.net.event_fault = disturb
