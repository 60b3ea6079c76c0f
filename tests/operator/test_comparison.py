from __future__ import annotations

import pytest

from octavo.operator.comparison import differences


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ({"a": 1, "b": 2}, {"a": 1}),
        ({}, {"a": {}, "b": [], "c": "", "d": False}),
        ({"limits": {"cpu": "2", "memory": "1Gi"}}, {"limits": {"cpu": 2, "memory": "1024Mi"}}),
        ({"requests": {"cpu": "500m"}}, {"requests": {"cpu": "0.5"}}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}),
        (
            {"containers": [{"name": "injected"}, {"name": "engine", "image": "x", "stdin": True}]},
            {"containers": [{"name": "engine", "image": "x"}]},
        ),
        (
            {"env": [{"name": "B"}, {"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}]},
        ),
        ({"tolerations": [{"key": "a", "added": 1}]}, {"tolerations": [{"key": "a"}]}),
    ],
)
def test_defaults_order_and_other_writers_are_no_difference(found: object, wanted: object) -> None:
    assert differences(found, wanted) == []


@pytest.mark.parametrize(
    ("found", "wanted", "paths"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"]),
        ({}, {"a": 1}, ["a"]),
        ({"a": 1}, {"a": True}, ["a"]),
        ({"a": "1"}, {"a": 1}, ["a"]),
        ({"limits": {"cpu": "1"}}, {"limits": {"cpu": 2}}, ["limits.cpu"]),
        ({"limits": {"cpu": "x"}}, {"limits": {"cpu": "y"}}, ["limits.cpu"]),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, ["args"]),
        ({"args": ["a", "b"]}, {"args": ["a"]}, ["args"]),
        ({"tolerations": [{"key": "a"}, {"key": "b"}]}, {"tolerations": [{"key": "a"}]},
         ["tolerations"]),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B", "value": "1"}]}, ["env[B]"]),
        ({"ports": [{"port": 1}]}, {"ports": [{"port": 2}]}, ["ports"]),
        ({"volumes": [{"name": "v"}]}, {"volumes": [{"name": "v", "image": {"r": 1}}]},
         ["volumes[v].image"]),
        ({"a": [1]}, {"a": {"b": 1}}, ["a"]),
    ],
)  # fmt: skip
def test_what_we_want_otherwise_is_found(found: object, wanted: object, paths: list[str]) -> None:
    assert differences(found, wanted) == paths
