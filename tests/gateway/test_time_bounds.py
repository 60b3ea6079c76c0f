import pytest

from octavo.gateway.time_bounds import OVERDUE_S, TimeBounds
from octavo.v1 import engine_pb2
from octavo.v1.errors import DEADLINE_EXCEEDED, QUEUE_TIMEOUT, OctavoError

REQUEST = engine_pb2.GenerateRequest(remaining_ms=2000, max_queue_ms=500)


def test_later_attempts_get_what_is_left() -> None:
    sent = engine_pb2.GenerateRequest()
    sent.CopyFrom(REQUEST)
    TimeBounds(REQUEST, now=10.0).apply(sent, 10.3)
    assert (sent.age_ms, sent.remaining_ms, sent.max_queue_ms) == (300, 1700, 200)


def test_a_request_without_bounds_never_ends_by_time() -> None:
    bounds, sent = TimeBounds(engine_pb2.GenerateRequest(), now=10.0), engine_pb2.GenerateRequest()
    assert bounds.overdue_s is None
    bounds.check(1e9, started=False)
    bounds.apply(sent, 11.0)
    assert (sent.remaining_ms, sent.max_queue_ms) == (0, 0)


@pytest.mark.parametrize(
    ("now", "started", "kind"),
    [
        (10.4, False, None),
        (10.5, False, QUEUE_TIMEOUT),
        (10.5, True, None),
        (12.0, True, DEADLINE_EXCEEDED),
        (12.0, False, DEADLINE_EXCEEDED),
    ],
)
def test_time_is_over_at_the_bound(now: float, started: bool, kind: object) -> None:
    bounds = TimeBounds(REQUEST, now=10.0)
    assert bounds.overdue_s == 2.0 + OVERDUE_S
    if kind is None:
        bounds.check(now, started=started)
        return
    with pytest.raises(OctavoError) as caught:
        bounds.check(now, started=started)
    assert caught.value.kind is kind
