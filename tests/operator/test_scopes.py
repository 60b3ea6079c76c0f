from __future__ import annotations

from structlog.testing import capture_logs

from octavo.operator.scopes import Scopes


def test_a_namespace_is_told_once_when_it_closes_and_once_when_it_is_back() -> None:
    scopes = Scopes(("red", "blue"))
    with capture_logs() as logs:
        assert scopes.update({}) == set()
        assert scopes.update({"blue": "may not list pods"}) == set()
        assert scopes.update({"blue": "may not list services"}) == set()
        assert list(scopes.open) == ["red"]
        assert scopes.states() == {("red",): True, ("blue",): False}
        assert scopes.update({}) == {"blue"}
        assert list(scopes.open) == ["red", "blue"]
    said = [(entry["event"], entry.get("reason", "")) for entry in logs]
    assert said == [("namespace_refused", "may not list pods"), ("namespace_is_back", "")]


def test_where_all_are_refused_none_is_closed_and_each_is_said_to_be_refused() -> None:
    scopes = Scopes(("red", "blue"))
    assert scopes.states() == {}, "nothing is known before the first listing"
    scopes.update({"blue": "may not list pods"})
    scopes.changed.clear()
    assert scopes.update({"red": "may not list pods", "blue": "may not list pods"}) == set()
    assert scopes.states() == {("red",): False, ("blue",): False}
    assert scopes.open == ("red",), "somebody has to be watched"
    assert not scopes.changed.is_set()
    assert scopes.update({}) == {"blue"}
    assert scopes.states() == {("red",): True, ("blue",): True}


def test_a_change_is_signalled_and_nothing_else_is() -> None:
    scopes = Scopes(("red", "blue"))
    scopes.update({})
    assert not scopes.changed.is_set()
    scopes.update({"blue": "gone"})
    assert scopes.changed.is_set()
    scopes.changed.clear()
    scopes.update({"blue": "gone"})
    assert not scopes.changed.is_set()
    scopes.update({})
    assert scopes.changed.is_set()


def test_all_namespaces_are_one_scope_without_a_name() -> None:
    scopes = Scopes((None,))
    assert (scopes.all, scopes.open, scopes.states()) == ((None,), (), {})
    assert scopes.is_open("anywhere")
