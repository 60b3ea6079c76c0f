"""Simulated clients: they ask, read or stop reading, leave, and ask again elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.sim.connection import Connection
from tests.sim.gateways import GatewayPlace
from tests.sim.history import History, Try
from tests.sim.requests import Spec

STALL_S = 6.0
"""How long a client that does not read stays."""
DEADLINE_SLACK_S = 1.0


async def run_client(spec: Spec, gateways: Sequence[GatewayPlace], history: History) -> None:
    """Sends one request, or the same one twice at once, as proxies do."""
    await asyncio.sleep(spec.at)
    async with asyncio.TaskGroup() as tasks:
        for i in range(2 if spec.twice else 1):
            tasks.create_task(_insist(spec, gateways, history, first=i))


async def _insist(
    spec: Spec, gateways: Sequence[GatewayPlace], history: History, *, first: int
) -> None:
    """Sends a request, and again as often as the client is willing to."""
    for i in range(1 + spec.retries):
        place = _reachable(gateways, spec.gateway + first + i)
        attempt = Try(
            spec=spec,
            label=f"{spec.name}.{first}{i}",
            gateway=place.name,
            began=asyncio.get_running_loop().time(),
        )
        history.tries.append(attempt)
        if place.alive:
            await _ask(attempt, place, history)
        else:
            attempt.end, attempt.ended = "refused", attempt.began
        await _look_up(attempt, gateways, history)
        answered = attempt.status in range(200, 500) and attempt.status not in (408, 409, 429)
        if attempt.end == "left" or (attempt.end == "complete" and answered):
            return
        history.count("client.retry")
        await asyncio.sleep(float(attempt.headers.get("retry-after", "1")))


def _reachable(gateways: Sequence[GatewayPlace], first: int) -> GatewayPlace:
    """What a load balancer in front of the gateways would choose."""
    ring = [gateways[(first + i) % len(gateways)] for i in range(len(gateways))]
    fit = [g for g in ring if g.alive and not g.draining]
    return fit[0] if fit else ring[0]


async def _ask(attempt: Try, place: GatewayPlace, history: History) -> None:
    spec, connection = attempt.spec, Connection(attempt, history)
    place.serve(connection)
    patience = spec.leave_after_s
    if spec.stall_after is not None:
        patience = min(patience or STALL_S, STALL_S)
    if spec.timeout_s:
        patience = min(patience or 1e9, spec.timeout_s + DEADLINE_SLACK_S)
    try:
        async with asyncio.timeout(patience):
            await connection.over.wait()
    except TimeoutError:
        late = spec.timeout_s and patience == spec.timeout_s + DEADLINE_SLACK_S
        excused = place.was_paused_since(attempt.began)
        history.check(not late or excused, "C6", f"{spec.name} has no answer after its deadline")
        history.count("client.left")
        connection.end("left")
        if not spec.key:
            place.forget_soon(attempt)


async def _look_up(attempt: Try, gateways: Sequence[GatewayPlace], history: History) -> None:
    """Reads the record of a request that has ended; it must be its own, whoever is asked (R3)."""
    others = [g for g in gateways if g.alive and not g.paused]
    if not attempt.id or not others:
        return
    place = others[len(attempt.body) % len(others)]
    record = await place.record(attempt.id)
    if record is not None:
        history.count("record.read")
        label = str(record["client"]).split(".")[0]
        mine = record["id"] == attempt.id and label == attempt.spec.name
        history.check(mine, "R3", f"{place.name} has {record['id']} of {label} as {attempt.label}")
