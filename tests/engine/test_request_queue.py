from __future__ import annotations

import pytest
from tests.engine.scheduling import make_request

from octavo.engine.request_queue import RequestQueue


def test_order_is_priority_then_arrival_then_id() -> None:
    queue = RequestQueue()
    late = make_request(1, [1], arrival=9.0)
    important = make_request(2, [1], priority=-1, arrival=8.0)
    twin = make_request(4, [1], arrival=5.0)
    early = make_request(3, [1], arrival=5.0)
    for request in (late, twin, important, early):
        queue.add(request)
    assert list(queue) == [important, early, twin, late]
    assert queue[-1] is late


def test_removal_takes_the_very_request() -> None:
    queue = RequestQueue()
    one, two = make_request(1, [1], arrival=1.0), make_request(2, [1], arrival=1.0)
    queue.add(one)
    assert two not in queue
    with pytest.raises(KeyError):
        queue.remove(two)
    queue.add(two)
    queue.remove(one)
    assert list(queue) == [two]
    assert two in queue
    assert one not in queue
