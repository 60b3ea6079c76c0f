from __future__ import annotations

from octavo.operator.fingerprint import fingerprint


def test_the_order_of_keys_does_not_matter_and_that_of_lists_does() -> None:
    assert fingerprint({"a": 1, "b": {"c": 2, "d": 3}}) == fingerprint(
        {"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_it_is_the_same_in_every_process() -> None:
    assert fingerprint({"a": [1, "x", None, True, 0.5]}) == "635d2eb1771300ca"
