"""What runs, stops and dies as one in a simulated loop, and how its tasks and callbacks know it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

_T = TypeVar("_T")

LOCAL = "local"
"""The host of whatever runs in no process."""


class Process:
    """What runs, stops and dies as one, at one host."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.stopped = False
        self.dead = False
        self.held: list[Handle] = []
        """What would have run while it was stopped."""


PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)


def current_host() -> str:
    """Returns the host of the running process."""
    process = PROCESS.get()
    return LOCAL if process is None else process.host


class SimTask(asyncio.Task[_T]):
    """A task with a number that is the same in every run of a seed."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class Handle(asyncio.TimerHandle):
    """A callback, due now or later, and the process whose it is."""

    __slots__ = ("process", "queued", "wakes")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
        when: float | None = None,
    ) -> None:
        context = copy_context() if context is None else context
        super().__init__(when or 0.0, callback, args, loop, context)
        self.queued = when is not None
        """Whether it is among the timers."""
        self.process = context.get(PROCESS)
        owner = getattr(callback, "__self__", None)
        self.wakes: SimTask[Any] | None = None
        """The task that takes a step."""
        if type(owner) is SimTask and getattr(callback, "__name__", "task_wakeup") == "task_wakeup":
            self.wakes = owner
