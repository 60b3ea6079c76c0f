"""What the pods of engines and loaders have in common: security, environment, placement.

Everything here fits the restricted Pod Security Standard. What a user wrote becomes whole values
of fields, never part of a command that something would read again.
"""

from __future__ import annotations

from typing import Final

from octavo.operator.kinds import Manifest
from octavo.operator.spec import Engine, Model, Variable

USER: Final = 65532
"""User and group of our images."""

TEMPORARY: Final = "/tmp"
MODELS: Final = "/models"
"""Where the volume with the model is mounted."""

CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(engine: Engine) -> Manifest:
    """Returns the security context of a pod."""
    fixed = {
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    ids = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return ids | engine.pod_security_context | fixed


def placement(engine: Engine) -> Manifest:
    """Returns the fields of a pod that say where it may run, those that are set."""
    fields: Manifest = {
        "nodeSelector": engine.node_selector,
        "tolerations": engine.tolerations,
        "affinity": engine.affinity,
        "priorityClassName": engine.priority_class_name,
    }
    return {name: value for name, value in fields.items() if value}


def isolation(engine: Engine) -> Manifest:
    """Returns the fields of a pod that keep the cluster away from it."""
    pod: Manifest = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(engine),
    }
    if engine.service_account_name:
        pod["serviceAccountName"] = engine.service_account_name
    if engine.image_pull_secrets:
        pod["imagePullSecrets"] = engine.image_pull_secrets
    return pod


def environment(engine: Engine, model: Model) -> Manifest:
    """Returns `env` and, where there is a Secret of the model, `envFrom` of a container."""
    env = [_variable(variable) for variable in engine.env]
    if all(variable.name != "HOME" for variable in engine.env):
        env.append({"name": "HOME", "value": TEMPORARY})  # the image's own cannot be written to
    found: Manifest = {"env": env}
    if model.secret_ref:
        found["envFrom"] = [{"secretRef": {"name": model.secret_ref.name}}]
    return found


def literal(arguments: list[str]) -> list[str]:
    """Returns arguments that reach the process as they are: Kubernetes would expand $(NAME)."""
    return [argument.replace("$", "$$") for argument in arguments]


def temporary_volume() -> Manifest:
    """Returns the volume of what may be written."""
    return {"name": "tmp", "emptyDir": {}}


def temporary_mount() -> Manifest:
    """Returns its mount."""
    return {"name": "tmp", "mountPath": TEMPORARY}


def _variable(variable: Variable) -> Manifest:
    source = variable.value_from
    if source and source.secret_key_ref:
        key, kind = source.secret_key_ref, "secretKeyRef"
    elif source and source.config_map_key_ref:
        key, kind = source.config_map_key_ref, "configMapKeyRef"
    else:
        return {"name": variable.name, "value": variable.value or ""}
    return {"name": variable.name, "valueFrom": {kind: {"name": key.name, "key": key.key}}}
