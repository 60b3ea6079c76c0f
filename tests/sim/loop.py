"""An asyncio event loop in virtual time: no clock, no selector, no thread, no waiting.

Nothing is ready → the time jumps to the next timer. Task wake-ups that are ready in one turn run
in an order drawn from `rng`; everything else keeps its order, because transports lean on it. One
seed gives one run, also in another process: tasks hash by number, so even the order of a set of
tasks is the same.

Tasks begun with `SimLoop.spawn`, and whatever they begin or schedule, belong to a process: paused,
they and their timers wait as after SIGSTOP; killed, they never run again, not even a `finally`,
until `run` clears up. The loop knows no network: see `net`.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from tests.sim.process import PROCESS, Handle, Process, SimTask, current_host

if TYPE_CHECKING:
    from tests.sim.net import Net

_T = TypeVar("_T")
_Coro = Coroutine[Any, Any, _T] | Generator[Any, None, _T]


class SimError(Exception):
    """The run cannot go on, or ended with errors."""


class DeadlockError(SimError):
    """Nothing is ready and nothing ever will be."""


class LimitError(SimError):
    """Too many turns, or too much virtual time."""


class SimLoop(asyncio.BaseEventLoop):
    """The loop; `run` drives it.

    Args:
        rng: orders task wake-ups.
        start: first value of `time()`.
    """

    _stopping: bool

    def __init__(self, *, rng: random.Random, start: float = 1000.0) -> None:
        super().__init__()
        self.net: Net | None = None
        """Where `create_connection` leads; set by Net."""
        self.steps = 0
        """Turns taken."""
        self.max_steps = 100_000_000
        self.max_time = float("inf")
        self.errors: list[BaseException] = []
        """What nobody caught; one makes the run a failed one."""
        self.leftovers: list[str] = []
        """Names of the tasks that were still alive at the end."""
        self.tasks: dict[SimTask[Any], Process | None] = {}
        """All live tasks, oldest first."""
        self.processes: list[Process] = []
        """All that ever were."""
        self.trace: Callable[[float, str], object] | None = None
        """Called with the time and the name of each task that takes a step."""
        self._rng = rng
        self._now = start
        self._soon: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._num_timers = 0
        self._num_cancelled = 0
        self._num_tasks = 0

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        handle = Handle(self, callback, args, context)
        self._soon.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = Handle(self, callback, args, context, when)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, handle))
        return handle

    def create_task(  # type: ignore[override]
        self, coro: _Coro[_T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[_T]:
        self._num_tasks += 1
        # asyncio's own names count over the whole process, so they differ from run to run.
        name = name or f"{getattr(coro, '__qualname__', 'task')}-{self._num_tasks}"
        SimTask.number = self._num_tasks  # it is hashed before it could be told its own
        task = SimTask(coro, loop=self, name=name, context=context)
        task.number = self._num_tasks
        self.tasks[task] = PROCESS.get() if context is None else context.get(PROCESS)
        task.add_done_callback(self.tasks.pop)
        return task

    def process(self, host: str) -> Process:
        """Returns a new process at a host."""
        process = Process(host)
        self.processes.append(process)
        return process

    def processes_at(self, host: str) -> list[Process]:
        """Returns the living processes of a host."""
        return [p for p in self.processes if p.host == host and not p.dead]

    def spawn(
        self, process: Process, coro: Coroutine[Any, Any, _T], *, name: str | None = None
    ) -> asyncio.Task[_T]:
        """Begins a task that belongs to a process."""
        context = copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(coro, name=name, context=context)

    def pause(self, process: Process) -> None:
        """SIGSTOP: its tasks, callbacks and timers wait."""
        process.stopped = True

    def resume(self, process: Process) -> None:
        """SIGCONT; nothing wakes the dead."""
        if not process.dead:
            self._release(process)

    def kill(self, process: Process) -> None:
        """SIGKILL: nothing of it ever runs again."""
        process.stopped = process.dead = True

    def _release(self, process: Process) -> None:
        process.stopped = False
        self._soon.extend(process.held)
        process.held.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        handle = context.get("handle")
        if isinstance(handle, Handle) and handle.process is not None and handle.process.dead:
            return  # cleared up after the run
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = SimError(context["message"])
        error.add_note(f"{context['message']} (at {self._now:.4f})")
        self.errors.append(error)

    async def create_connection(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        """Connects through the net; `ssl` and sockets do not exist here."""
        from tests.sim.stream import StreamTransport

        names = dict(zip(("host", "port"), args, strict=False)) | kwargs
        assert self.net is not None, "the loop has no net"
        assert not names.get("ssl"), "no TLS in the simulation"
        conn = await self.net.connect(current_host(), names["host"], names["port"])
        protocol = protocol_factory()
        return StreamTransport(conn, protocol), protocol

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Every name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    def run_in_executor(self, *_: object) -> NoReturn:
        raise SimError("no threads in the simulation")

    def add_signal_handler(self, *_: object) -> None:
        """Signals do not exist here."""

    def remove_signal_handler(self, sig: int) -> bool:
        return False

    def _write_to_self(self) -> None:
        """Nobody sleeps."""

    def _timer_handle_cancelled(self, handle: Handle) -> None:
        self._num_cancelled += handle.queued

    def _run_once(self) -> None:
        """One turn: what is ready now, but nothing that it makes ready."""
        self.steps += 1
        if self.steps > self.max_steps:
            raise LimitError(f"more than {self.max_steps} turns; alive: {self.alive()}")
        if not self._soon:
            self._advance()
        batch = list(self._soon)
        self._soon.clear()
        if len(batch) > 1:
            self._shuffle(batch)
        trace = self.trace
        for handle in batch:
            if handle._cancelled:
                continue
            if (process := handle.process) is not None and process.stopped:
                process.held.append(handle)
                continue
            if trace is not None and handle.wakes is not None:
                trace(self._now, handle.wakes.get_name())
            handle._run()

    def _advance(self) -> None:
        """Moves the time on, and what is due then into the queue."""
        timers = self._timers
        if self._num_cancelled > 1000 and self._num_cancelled * 2 > len(timers):
            timers[:] = [t for t in timers if not t[2]._cancelled]
            heapq.heapify(timers)
            self._num_cancelled = 0
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)[2].queued = False
            self._num_cancelled -= 1
        if not timers:
            if not self._stopping:
                raise DeadlockError(f"nothing will ever happen; alive: {self.alive()}")
            return
        self._now = max(self._now, timers[0][0])
        if self._now > self.max_time:
            raise LimitError(f"later than {self.max_time} s; alive: {self.alive()}")
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            handle.queued = False
            self._num_cancelled -= handle._cancelled
            self._soon.append(handle)

    def _shuffle(self, batch: list[Handle]) -> None:
        places = [i for i, handle in enumerate(batch) if handle.wakes is not None]
        if len(places) > 1:
            order = places[:]
            self._rng.shuffle(order)
            wakes = [batch[i] for i in order]
            for i, handle in zip(places, wakes, strict=True):
                batch[i] = handle

    def alive(self) -> str:
        """Describes the tasks that have not ended, and where they wait."""
        return ", ".join(_where(task) for task in self.tasks) or "none"

    def end(self) -> None:
        """Cancels and awaits what is left of a run; what then goes wrong counts for the living."""
        self.leftovers = [t.get_name() for t, p in self.tasks.items() if p is None or not p.dead]
        self.max_time = self._now + 1000
        self.max_steps = self.steps + 1_000_000
        for process in self.processes:
            self._release(process)
        while tasks := dict(self.tasks):
            for task in tasks:
                task.cancel()
            self.run_until_complete(_gather(list(tasks)))
            for task, owner in tasks.items():
                if task.cancelled() or (owner is not None and owner.dead):
                    continue
                if (error := task.exception()) is not None:
                    message = "a task that was left over failed"
                    self.call_exception_handler({"message": message, "exception": error})
        self.run_until_complete(self.shutdown_asyncgens())


async def _gather(tasks: list[SimTask[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _where(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f" ({frames[0].f_code.co_qualname}:{frames[0].f_lineno})" if frames else ""
    return task.get_name() + place


def run(
    main: Callable[[], Coroutine[Any, Any, _T]],
    *,
    rng: random.Random,
    limit_s: float = 10_000.0,
    max_steps: int = 100_000_000,
    loop: SimLoop | None = None,
) -> _T:
    """Runs a coroutine to its end in a loop of its own, which is closed afterwards.

    Args:
        limit_s: virtual seconds it may take.
        loop: a new one, for callers who want to read its errors and leftovers later.

    Raises:
        SimError: it hung, went on for too long, or an exception was left to nobody.
    """
    loop = loop or SimLoop(rng=rng)
    loop.max_time, loop.max_steps = loop.time() + limit_s, max_steps
    collecting = gc.isenabled()
    gc.disable()  # finalizers would run at moments that no seed decides
    is_frozen = gc.get_freeze_count() > 0  # by whoever does many runs
    if not is_frozen:
        gc.freeze()
    try:
        try:
            result = contextvars.Context().run(loop.run_until_complete, main())
        finally:
            loop.end()
            gc.collect()  # tells of exceptions that nobody retrieved
    finally:
        loop.close()
        if not is_frozen:
            gc.unfreeze()
        if collecting:
            gc.enable()
    if loop.errors:
        first = loop.errors[0]
        raise SimError(f"{len(loop.errors)} exceptions left to nobody: {first!r}") from first
    return result
