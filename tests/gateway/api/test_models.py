from __future__ import annotations

from tests.gateway.api.scripted import World


def test_the_list_serves_both_families_of_clients() -> None:
    answer = World().get("/v1/models").json
    assert (answer["object"], answer["has_more"]) == ("list", False)
    assert [m["id"] for m in answer["data"]] == ["smollm2", "org/smollm2"]
    assert (answer["first_id"], answer["last_id"]) == ("smollm2", "org/smollm2")
    entry = answer["data"][0]
    assert entry["object"] == "model"
    assert entry["type"] == "model"
    assert entry["display_name"] == "smollm2"
    assert entry["created"] == 1_700_000_000
    assert entry["created_at"] == "2023-11-14T22:13:20Z"
    assert entry["max_model_len"] == 512
    assert entry["status"]["ready"] is True
    assert entry["default_sampling"] == {}


def test_ids_may_hold_slashes() -> None:
    for path in ("/v1/models/org/smollm2", "/v1/models/org//smollm2/"):
        assert World().get(path).json["id"] == "org/smollm2"


def test_an_unknown_model() -> None:
    response = World().get("/v1/models/../../etc/passwd")
    assert (response.status, response.error["code"]) == (404, "model_not_found")


def test_a_service_without_an_engine_is_listed_as_not_ready() -> None:
    world = World()
    world.fleet.sleep("team/big")
    listed = world.get("/v1/models").json["data"]
    assert [m["id"] for m in listed] == ["smollm2", "org/smollm2", "team/big"]
    for entry in (listed[-1], world.get("/v1/models/team/big").json):
        assert entry["status"] == {"ready": False, "stage": "there is no engine", "eta_ms": 0}
        assert entry["created_at"] == "2023-11-14T22:13:20Z"
        assert entry["object"] == entry["type"] == "model"
