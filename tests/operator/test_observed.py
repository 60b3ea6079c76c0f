from __future__ import annotations

from tests.operator.building import INSTALLATION, resource

from octavo.operator.kinds import SERVICE, kind_of
from octavo.operator.observed import Observed, Reference, digest, is_controlled_by

ALL = Reference(kind="Secret", name="hub")
ONE = Reference(kind="Secret", name="hub", key="a")


def test_a_digest_follows_the_data_that_is_taken() -> None:
    before = {"data": {"a": "MQ==", "b": "Mg=="}}
    after = {"data": {"a": "MQ==", "b": "Mw=="}}
    assert digest(ALL, before) != digest(ALL, after)
    assert digest(ONE, before) == digest(ONE, after)
    assert digest(ONE, before) != digest(ONE, {"data": {"a": "Mg=="}})


def test_a_digest_tells_keys_from_values() -> None:
    assert digest(ALL, {"data": {"ab": "c"}}) != digest(ALL, {"data": {"a": "bc"}})
    assert digest(ALL, {"data": {"a": "b"}}) == digest(ALL, {"binaryData": {"a": "b"}})


def test_what_does_not_exist_has_no_digest() -> None:
    assert digest(ALL, None) is None
    assert digest(ONE, {"data": {"b": "1"}}) is None
    assert digest(ONE, {}) is None
    assert digest(ALL, {}) is not None


def test_a_digest_does_not_show_the_data() -> None:
    assert "c2VjcmV0" not in str(digest(ALL, {"data": {"token": "c2VjcmV0"}}))


def test_children_are_found_by_kind_and_name() -> None:
    one = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    observed = Observed(resource=resource(), installation=INSTALLATION, children=(one,))
    assert observed.child(SERVICE, "x") is one
    assert observed.child(SERVICE, "y") is None
    assert kind_of(one) == SERVICE


def test_only_a_controller_owns() -> None:
    owner = {"uid": "u", "controller": True}
    assert is_controlled_by({"metadata": {"ownerReferences": [owner]}}, "u")
    assert not is_controlled_by({"metadata": {"ownerReferences": [{"uid": "u"}]}}, "u")
    assert not is_controlled_by({"metadata": {"ownerReferences": [owner]}}, "v")
    assert not is_controlled_by({"metadata": {}}, "u")
