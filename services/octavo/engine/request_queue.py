"""Requests in one order: by default priority, then arrival. Knows nothing of why they queue."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from octavo.engine.request import Request, RequestId

SortKey = tuple[int, float, RequestId]


def order(request: Request) -> SortKey:
    """The sort key: lower goes first, and victims are taken from the other end."""
    return request.priority, request.arrival, request.id


class RequestQueue:
    """A sorted list of requests; a few thousand make insertion and removal a short memmove.

    Args:
        key: the sort key; it does not change while a request is in the queue, and ends in its id.
    """

    def __init__(self, key: Callable[[Request], SortKey] = order) -> None:
        self._requests: list[Request] = []
        self._key = key

    @property
    def head(self) -> Request:
        """Who is first; there is one."""
        return self._requests[0]

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __contains__(self, request: Request) -> bool:
        index = bisect_left(self._requests, self._key(request), key=self._key)
        return index < len(self._requests) and self._requests[index] is request

    def add(self, request: Request) -> None:
        """Puts the request in its place."""
        insort(self._requests, request, key=self._key)

    def remove(self, request: Request) -> None:
        """Takes out the request, which is there."""
        index = bisect_left(self._requests, self._key(request), key=self._key)
        if index == len(self._requests) or self._requests[index] is not request:
            raise KeyError(request.id)
        del self._requests[index]
