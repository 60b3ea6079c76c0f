from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.building import service
from tests.operator.specs import CACHES, PREFIXES, SAFE

from octavo.operator import desired_engine, engine_cache, names
from octavo.operator.kinds import Manifest

HOST_AND_DISK: dict[str, Any] = {"host": "4Gi", "disk": {"size": "50Gi"}}
TEXT: dict[str, Any] = {"text": "Once upon a time"}


def arguments(**cache: Any) -> list[str]:
    return engine_cache.arguments(service(cache=cache).spec.cache)


def pod(**cache: Any) -> Manifest:
    found: Manifest = desired_engine.pod_template(service(cache=cache), "image", "")["spec"]
    return found


def volume(name: str, **cache: Any) -> Manifest | None:
    return next((v for v in pod(**cache)["volumes"] if v["name"] == name), None)


def pins(*prefixes: Manifest) -> Manifest:
    return engine_cache.pins(service(cache={"pinnedPrefixes": list(prefixes)}))


def lines(*prefixes: Manifest) -> list[Manifest]:
    text = pins(*prefixes)["data"]["prefixes.jsonl"]
    assert text.endswith("\n")
    return [json.loads(line) for line in text[:-1].split("\n")]


def test_what_is_not_given_is_not_there() -> None:
    assert arguments() == arguments(pinnedPrefixes=[]) == []
    assert engine_cache.volumes(service()) == ([], [])


def test_host_memory_is_whole_bytes() -> None:
    assert arguments(host="4Gi") == ["--host-cache-bytes", str(4 * 2**30)]
    assert arguments(host="1500m") == ["--host-cache-bytes", "2"]


def test_a_disk_is_of_the_node_and_not_filled_to_its_limit() -> None:
    assert arguments(**HOST_AND_DISK)[2:] == [
        "--disk-cache-dir", "/var/cache/octavo",
        "--disk-cache-bytes", str(45 * 2**30),
    ]  # fmt: skip
    assert volume("kv-blocks", **HOST_AND_DISK) == {
        "name": "kv-blocks",
        "emptyDir": {"sizeLimit": "50Gi"},
    }
    assert arguments(host=1, disk={"size": 1})[-1] == "1", "the engine takes no 0"


def test_a_disk_with_a_class_is_a_volume_of_each_pod() -> None:
    disk = {"size": "50Gi", "storageClassName": "fast"}
    assert volume("kv-blocks", host="4Gi", disk=disk) == {
        "name": "kv-blocks",
        "ephemeral": {
            "volumeClaimTemplate": {
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "fast",
                    "resources": {"requests": {"storage": "50Gi"}},
                }
            }
        },
    }


def test_the_disk_may_be_written_to_by_the_engine_s_user_and_the_pins_by_nobody() -> None:
    found = pod(**HOST_AND_DISK, pinnedPrefixes=[TEXT])
    mounts = {m["name"]: m for m in found["containers"][0]["volumeMounts"]}
    assert "readOnly" not in mounts["kv-blocks"]
    assert found["securityContext"]["fsGroup"] == found["securityContext"]["runAsUser"]
    assert mounts["pins"]["readOnly"] is True


def test_prefixes_are_a_line_each() -> None:
    chat = {"messages": [{"role": "system", "content": "Be\nbrief."}], "ttlSeconds": 60}
    assert lines(TEXT | {"cacheSalt": "tales"}, chat) == [
        {"text": "Once upon a time", "cache_salt": "tales"},
        {"messages": [{"role": "system", "content": "Be\nbrief."}], "ttl_s": 60},
    ]
    assert arguments(pinnedPrefixes=[TEXT]) == ["--pin-prefix", "/etc/octavo/pins/prefixes.jsonl"]


def test_pods_mount_the_very_prefixes_that_they_were_made_for() -> None:
    one, other = pins(TEXT), pins({"text": "Twice"})
    assert one["immutable"] is True
    assert one["metadata"]["name"] != other["metadata"]["name"]
    assert one == pins(TEXT)
    mounted = volume("pins", pinnedPrefixes=[TEXT])
    assert mounted == {"name": "pins", "configMap": {"name": one["metadata"]["name"]}}
    assert one["metadata"]["labels"] == names.labels("llama", names.ENGINE)


@given(st.lists(PREFIXES, min_size=1, max_size=4), st.text())
def test_no_text_of_a_prefix_leaves_its_line(prefixes: list[Manifest], odd: str) -> None:
    everything = [*prefixes, {"text": f"x{odd}"}]
    found = lines(*everything)
    assert [line.get("text") for line in found] == [p.get("text") for p in everything]
    assert [line.get("messages") for line in found] == [p.get("messages") for p in everything]


@given(CACHES, st.text(SAFE, min_size=1, max_size=9))
def test_no_text_becomes_an_argument_a_path_or_a_name(cache: dict[str, Any], text: str) -> None:
    if cache.get("pinnedPrefixes"):
        other = cache | {"pinnedPrefixes": [{"text": text, "cacheSalt": text}]}
        assert arguments(**other) == arguments(**cache)
        before, after = pod(**cache), pod(**other)
        mounts = [found["containers"][0]["volumeMounts"] for found in (before, after)]
        assert mounts[0] == mounts[1]
        assert list(pins(*other["pinnedPrefixes"])["data"]) == ["prefixes.jsonl"]


@pytest.mark.parametrize("text", ["x; touch /tmp/p", "$(touch /tmp/p)", "`id`", "../../x", "a\nb"])
def test_hostile_text_is_data(text: str) -> None:
    assert lines({"text": text, "cacheSalt": text}) == [{"text": text, "cache_salt": text}]
    found = pod(pinnedPrefixes=[{"text": text}])
    assert text not in json.dumps(found)
