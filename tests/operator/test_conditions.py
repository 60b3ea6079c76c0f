from __future__ import annotations

from octavo.operator.conditions import Condition, find, merge
from octavo.operator.kinds import Manifest
from octavo.operator.timestamps import to_text


def merged(present: list[Manifest], now: float = 2000.0, **fields: str) -> Manifest:
    values = {"status": "False", "reason": "Loading", "message": "it loads"} | fields
    wanted = Condition(type="Ready", **values)  # type: ignore[arg-type]
    (found,) = merge([wanted], present, 7, now)
    return found


def test_a_new_condition_begins_now() -> None:
    assert merged([]) == {
        "type": "Ready",
        "status": "False",
        "observedGeneration": 7,
        "lastTransitionTime": to_text(2000),
        "reason": "Loading",
        "message": "it loads",
    }


def test_the_transition_time_changes_only_with_the_status() -> None:
    before = merged([], now=1000.0)
    same = merged([before], reason="Failed", message="no")
    assert (same["lastTransitionTime"], same["reason"]) == (to_text(1000), "Failed")
    assert merged([before], status="True")["lastTransitionTime"] == to_text(2000)


def test_a_detail_stays_while_only_the_pause_is_known() -> None:
    before = merged([], detail="not found")
    assert before["message"] == "it loads: not found"
    assert merged([before])["message"] == "it loads: not found"
    assert merged([before], detail="denied")["message"] == "it loads: denied"
    assert merged([before], message="it is")["message"] == "it is"
    assert merged([before], reason="Other")["message"] == "it loads"


def test_a_message_has_a_bound() -> None:
    assert len(merged([], message="x" * 10**5)["message"]) < 32768
    assert len(merged([], detail="x" * 10**5)["message"]) < 32768


def test_conditions_are_found_by_type() -> None:
    assert find([{"type": "A", "x": 1}], "A") == {"type": "A", "x": 1}
    assert find([], "A") == {}
