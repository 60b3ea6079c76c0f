"""Requests in the engine's one order: priority, then arrival. Knows nothing of why they queue."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.engine.request import Request, RequestId


def order(request: Request) -> tuple[int, float, RequestId]:
    """The sort key: lower goes first, and victims are taken from the other end."""
    return request.priority, request.arrival, request.id


class RequestQueue:
    """A sorted list of requests; a few thousand make insertion and removal a short memmove."""

    def __init__(self) -> None:
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def __contains__(self, request: Request) -> bool:
        index = bisect_left(self._requests, order(request), key=order)
        return index < len(self._requests) and self._requests[index] is request

    def add(self, request: Request) -> None:
        """Puts the request in its place."""
        insort(self._requests, request, key=order)

    def remove(self, request: Request) -> None:
        """Takes out the request, which is there."""
        index = bisect_left(self._requests, order(request), key=order)
        if index == len(self._requests) or self._requests[index] is not request:
            raise KeyError(request.id)
        del self._requests[index]
