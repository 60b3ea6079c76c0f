"""mTLS of engines: the Secret that they mount, what they are told, and what their port is called.

The Secret is mounted and no part of the template: engines and gateways take a new one while they
run. That the port has another name shows of each pod what it speaks, also while a service changes
from plaintext to TLS or back.
"""

from __future__ import annotations

from typing import Final

from octavo.operator.kinds import Manifest
from octavo.operator.spec import Engine

FOLDER: Final = "/etc/octavo/tls"
"""Where the Secret is mounted."""
PORT: Final = "grpcs"
PLAIN_PORT: Final = "grpc"

_VOLUME: Final = "tls"
_READABLE: Final = 0o440
"""By the engine's user and group alone: a key is in it."""


def port(engine: Engine) -> str:
    """Returns the name of the container's port for gateways."""
    return PORT if engine.tls else PLAIN_PORT


def arguments(engine: Engine, caller: str) -> list[str]:
    """Returns the engine's arguments.

    Args:
        engine: what is wanted.
        caller: name that the gateways' certificate bears.
    """
    if engine.tls is None:
        return ["--plaintext"]
    return ["--tls-dir", FOLDER, "--tls-client", caller]


def volumes(engine: Engine) -> tuple[list[Manifest], list[Manifest]]:
    """Returns the volumes of a pod, and the mounts of its engine."""
    if engine.tls is None:
        return [], []
    secret = {"secretName": engine.tls.secret_name, "defaultMode": _READABLE}
    mount = {"name": _VOLUME, "mountPath": FOLDER, "readOnly": True}
    return [{"name": _VOLUME, "secret": secret}], [mount]
