from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.building import service

from octavo.operator import pod_parts
from octavo.operator.spec import Engine


def engine(**fields: Any) -> Engine:
    return service(engine=fields).spec.engine


def expanded(text: str, variables: dict[str, str]) -> str:
    """Expands $(NAME) as kubelet does (k8s.io/kubernetes/third_party/forked/golang/expansion)."""
    out, at = [], 0
    while at < len(text):
        if text[at] == "$" and at + 1 < len(text):
            after = text[at + 1]
            if after == "$":
                out.append("$")
                at += 2
                continue
            end = text.find(")", at) if after == "(" else -1
            if end > 0:
                name = text[at + 2 : end]
                out.append(variables.get(name, f"$({name})"))
                at = end + 1
                continue
        out.append(text[at])
        at += 1
    return "".join(out)


@given(st.lists(st.text(st.sampled_from("$()AB x;'\"\\`"), max_size=12)))
def test_no_argument_is_expanded(arguments: list[str]) -> None:
    variables = {"A": "secret", "AB": "secret", "": "secret"}
    assert [expanded(a, variables) for a in pod_parts.literal(arguments)] == arguments


def test_users_choose_ids_and_nothing_else() -> None:
    chosen = pod_parts.pod_security(engine(podSecurityContext={"runAsUser": 7, "fsGroup": 8}))
    assert chosen == {
        "runAsUser": 7,
        "runAsGroup": pod_parts.USER,
        "fsGroup": 8,
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def test_what_is_not_set_is_left_out() -> None:
    assert pod_parts.placement(engine()) == {}
    assert pod_parts.placement(engine(nodeSelector={"a": "b"}, priorityClassName="high")) == {
        "nodeSelector": {"a": "b"},
        "priorityClassName": "high",
    }


def test_no_pod_gets_a_token_or_variables_of_services() -> None:
    found = pod_parts.isolation(
        engine(serviceAccountName="sa", imagePullSecrets=[{"name": "pull"}])
    )
    assert found["automountServiceAccountToken"] is False
    assert found["enableServiceLinks"] is False
    assert (found["serviceAccountName"], found["imagePullSecrets"]) == ("sa", [{"name": "pull"}])


def test_variables_come_as_they_are_written() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B"},
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
    ]
    one = service(engine={"env": env}, model={"uri": "pvc://w", "secretRef": {"name": "hub"}})
    found = pod_parts.environment(one.spec.engine, one.spec.model)
    assert found == {
        "env": [
            {"name": "A", "value": "1"},
            {"name": "B", "value": ""},
            env[2],
            env[3],
            {"name": "HOME", "value": "/tmp"},
        ],
        "envFrom": [{"secretRef": {"name": "hub"}}],
    }
    own_home = engine(env=[{"name": "HOME", "value": "/x"}])
    assert pod_parts.environment(own_home, one.spec.model)["env"] == [
        {"name": "HOME", "value": "/x"}
    ]
