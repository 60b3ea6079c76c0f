"""The scheduling policies: in which order waiting requests are let in.

    priority   the more important first, then the earlier
    fcfs       the earlier first; priorities are refused
    shortest   among equally important ones the shorter, unless a longer one has waited for it
    fair       among equally important ones the key that was served least; see fair_queue

Who runs keeps to (priority, arrival) under all of them, and so do victims. A request that one order
likes and the other does not could lose its blocks again and again; after some times it is protected
(see reservations), which makes an end of that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, cast, get_args

from octavo.engine.batch import Row
from octavo.engine.fair_queue import FairQueue
from octavo.engine.request import Request
from octavo.engine.request_queue import RequestQueue, SortKey, order
from octavo.v1.errors import UNSUPPORTED_PARAMETER, OctavoError

Policy = Literal["priority", "fcfs", "shortest", "fair"]


class WaitingQueue(Protocol):
    """Waiting requests, in some order."""

    @property
    def head(self) -> Request:
        """Who is first; there is one."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def __contains__(self, request: Request) -> bool: ...

    def add(self, request: Request) -> None:
        """Puts the request in its place."""
        ...

    def remove(self, request: Request) -> None:
        """Takes out the request, which is there."""
        ...

    def charge(self, row: Row) -> None:
        """Takes note of a row that is planned, whoever it is for."""
        ...

    def settle(self) -> None:
        """The step of these rows succeeded."""
        ...

    def revoke(self) -> None:
        """The step of these rows failed."""
        ...


class FreeQueue(RequestQueue):
    """A sorted queue to which it does not matter what anybody gets."""

    def charge(self, row: Row) -> None:
        """Does nothing."""

    def settle(self) -> None:
        """Does nothing."""

    def revoke(self) -> None:
        """Does nothing."""


def as_policy(name: str) -> Policy:
    """Returns the policy of a name that settings have checked."""
    if name not in get_args(Policy):
        raise ValueError(f"there is no policy {name}")
    return cast("Policy", name)


def waiting_queue(policy: Policy, *, ageing_s_per_token: float) -> WaitingQueue:
    """Returns an empty queue.

    Args:
        policy: its order.
        ageing_s_per_token: under "shortest", the seconds of waiting that outweigh one token to
            compute. All who wait age alike, so the order of two never changes, and whoever comes
            later than this times the tokens of a request comes after it: nobody starves.
    """

    def shortest(request: Request) -> SortKey:
        late = request.arrival + ageing_s_per_token * request.num_tokens
        return request.priority, late, request.id

    if policy == "fair":
        return FairQueue()
    return FreeQueue(shortest if policy == "shortest" else order)


def check_priority(policy: Policy, priority: int) -> None:
    """Raises UNSUPPORTED_PARAMETER for a priority that the policy would ignore."""
    if policy == "fcfs" and priority:
        reason = "the engine serves in the order of arrival, by --scheduling-policy fcfs"
        raise OctavoError(UNSUPPORTED_PARAMETER, param="priority", reason=reason)
