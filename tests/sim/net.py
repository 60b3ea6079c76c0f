"""Hosts and the way between them, with faults: what a kernel and a wire do, no more.

Connections are in `conn`, byte streams over them in `stream`. What a cut swallows arrives after it
is healed, as TCP sends again. All chance comes from `rng`. A stopped host takes nothing, while its
kernel still accepts connections and data; its processes (see `loop`) share its fate.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TypeAlias

from tests.sim.conn import Conn, Mark
from tests.sim.loop import SimLoop

RETRANSMIT_S = 0.2
"""Longest wait for TCP's next try after a cut is healed."""

Address: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Listener:
    accept: Callable[[Conn], None]
    context: Context


class Net:
    """All hosts; faults are by pair of hosts, one way.

    Args:
        min_delay: of a packet, in seconds, as `max_delay`.
    """

    def __init__(
        self,
        loop: SimLoop,
        rng: random.Random,
        *,
        min_delay: float = 0.0002,
        max_delay: float = 0.003,
    ) -> None:
        self.loop = loop
        loop.net = self
        self.context = Context()
        """Of no process: the wire goes on when both ends are stopped."""
        self.conns: dict[Conn, None] = {}
        """Every end that an application holds open, oldest first."""
        self.event_fault: Callable[[Conn, bytes], list[bytes]] | None = None
        """What becomes of a message of a state stream, by the stream's connection."""
        self._rng = rng
        self._min_delay = min_delay
        self._max_delay = max_delay
        self._listeners: dict[Address, _Listener] = {}
        self._cuts: dict[tuple[str, str], None] = {}
        self._clogs: dict[tuple[str, str], float] = {}
        self._paused: dict[str, None] = {}
        self._stalled: list[Conn] = []

    def listen(self, host: str, port: int, accept: Callable[[Conn], None]) -> None:
        """Takes connections; `accept` runs in the process that calls this."""
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is in use")
        self._listeners[host, port] = _Listener(accept, copy_context())

    def unlisten(self, host: str) -> None:
        """Closes all ports of a host; connections stay."""
        self._listeners = {a: x for a, x in self._listeners.items() if a[0] != host}

    def open(self, src: str, dst: str, port: int) -> Conn:
        """Begins to connect; what is sent before the other side answers waits."""
        conn = Conn(self, src, dst, port)
        conn.peer = Conn(self, dst, src, port)
        conn.peer.peer = conn
        self.conns[conn] = None
        conn.launch(Mark.SYN)
        return conn

    async def connect(self, src: str, dst_host: str, port: int) -> Conn:
        """Connects; raises ConnectionRefusedError; hangs while the way is cut."""
        conn = self.open(src, dst_host, port)
        try:
            await conn.established()
        except asyncio.CancelledError:
            conn.abort()
            raise
        return conn

    def cut(self, a: str, b: str) -> None:
        """Nothing from `a` arrives at `b` any more."""
        self._cuts[a, b] = None

    def heal(self, a: str, b: str) -> None:
        """Ends a cut and a clog; what was sent meanwhile arrives soon, in order."""
        self._cuts.pop((a, b), None)
        self._clogs.pop((a, b), None)
        self._retransmit()

    def heal_all(self) -> None:
        """Ends every cut and clog."""
        self._cuts.clear()
        self._clogs.clear()
        self._retransmit()

    def clog(self, a: str, b: str, extra_delay: float) -> None:
        """Delays what `a` sends to `b` from now on by so many seconds."""
        self._clogs[a, b] = extra_delay

    def pause_host(self, host: str) -> None:
        """SIGSTOP: nothing is read there, and its processes stand still."""
        self._paused[host] = None
        for process in self.loop.processes_at(host):
            self.loop.pause(process)

    def resume_host(self, host: str) -> None:
        """SIGCONT."""
        self._paused.pop(host, None)
        for process in self.loop.processes_at(host):
            self.loop.resume(process)
        self._retransmit()

    def kill_host(self, host: str) -> None:
        """SIGKILL of all there: peers see the loss after what was already sent, unless cut off.

        The host can be used again at once, by new processes.
        """
        self.unlisten(host)
        self._paused.pop(host, None)
        for process in self.loop.processes_at(host):
            self.loop.kill(process)
        for conn in [c for c in self.conns if c.local == host]:
            conn.lose("the process was killed")
        self._retransmit()

    def answers(self, a: str, b: str) -> bool:
        """Whether a ping of `a` would be answered by `b`."""
        cuts = self._cuts
        return (a, b) not in cuts and (b, a) not in cuts and b not in self._paused

    def delay(self, a: str, b: str) -> float:
        """Draws how long a packet travels."""
        delay = self._rng.uniform(self._min_delay, self._max_delay)
        return delay + self._clogs.get((a, b), 0.0) if self._clogs else delay

    def holds(self, conn: Conn, item: object) -> bool:
        """Whether what `conn` sent cannot arrive now."""
        if (conn.local, conn.remote) in self._cuts:
            return True
        # The kernel of a stopped process still accepts and acknowledges.
        return conn.remote in self._paused and item not in (Mark.SYN, Mark.ROOM)

    def stall(self, conn: Conn) -> None:
        """Remembers to go on with a connection when something is healed."""
        self._stalled.append(conn)

    def accept(self, conn: Conn) -> bool:
        """Hands an arriving connection to who listens; False when nobody does."""
        listener = self._listeners.get((conn.local, conn.port))
        if listener is None:
            return False
        self.loop.call_soon(listener.accept, conn, context=listener.context)
        return True

    def _retransmit(self) -> None:
        stalled, self._stalled = self._stalled, []
        for conn in stalled:
            conn.go_on(self._rng.uniform(0.0, RETRANSMIT_S))
