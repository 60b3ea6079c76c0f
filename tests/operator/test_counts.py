from __future__ import annotations

from tests.operator.engine_pods import pod

from octavo.operator import names
from octavo.operator.counts import count


def test_engines_are_counted_by_what_they_are() -> None:
    found = count(
        [
            pod("a", template="new", ready=True, routable=True),
            pod("b", template="new", ready=True),
            pod("c", template="old", ready=True, routable=True),
            pod("d", template="old", ready=True, routable=True, going=True),
            pod("e", template="new", phase="Failed"),
            pod("f", component=names.LOADER),
        ],
        "new",
        2,
    )
    assert (found.live, found.updated, found.old) == (3, 2, 1)
    assert (found.ready, found.routable, found.updated_routable) == (3, 2, 1)
    assert (found.draining, found.desired) == (1, 2)
