"""The watches, by kopf: each object of the watched kinds that comes, changes or goes is told.

kopf lists and watches, reconnects streams that fall silent, and lists again what has expired. It
gets no handlers of changes, timers or deletions: those write annotations and finalizers, and all
they could remember is observed anew here. So kopf itself never writes. The only module that knows
kopf.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import kopf

from octavo.operator.cluster import Connection
from octavo.operator.kinds import INFERENCE_SERVICE, Kind, Manifest
from octavo.operator.names import GROUP, SERVICE_LABEL

Notice = Callable[[Kind, str, Manifest], None]
"""Gets kind, event (ADDED, MODIFIED, DELETED or LISTED) and object."""

SERVER_TIMEOUT_S: Final = 290
"""After which the API server ends a stream, which is then continued."""

CLIENT_TIMEOUT_S: Final = 320
"""After which a stream that the API server did not end is given up."""


class _Patience:
    """Delays between tries of kopf's requests: growing, and without an end."""

    def __iter__(self) -> Iterator[float]:
        delay_s = 0.5
        while True:
            yield delay_s
            delay_s = min(delay_s * 2, 15.0)


class _NoMemory(kopf.DiffBaseStorage):
    """Remembers no object's former state, which nothing here asks for."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:  # noqa: ARG002
        """Returns nothing worth comparing."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        """Returns that there is no former state."""
        return None

    def store(self, **_: object) -> None:
        """Keeps nothing."""


def settings(kinds: Collection[Kind], *, request_timeout_s: float) -> kopf.OperatorSettings:
    """Returns kopf's settings: alone, silent, patient, and writing nothing."""
    result = kopf.OperatorSettings()
    result.peering.standalone = True
    result.posting.enabled = False
    result.scanning.disabled = True
    # It would kill the process some time after kopf ended, though that is begun again.
    result.process.ultimate_exiting_timeout = None
    result.watching.server_timeout = SERVER_TIMEOUT_S
    result.watching.client_timeout = CLIENT_TIMEOUT_S
    result.watching.connect_timeout = request_timeout_s
    result.networking.request_timeout = request_timeout_s
    result.networking.connect_timeout = request_timeout_s
    result.networking.error_backoffs = _Patience()
    result.persistence.finalizer = f"{GROUP}/unused"
    result.persistence.diffbase_storage = _NoMemory()
    for kind in kinds:
        if kind != INFERENCE_SERVICE:
            result.watching.label_selectors[kind.api_version, kind.plural] = SERVICE_LABEL
    return result


def registry(
    kinds: Collection[Kind], *, notice: Notice, connection: Callable[[], Connection]
) -> kopf.OperatorRegistry:
    """Returns kopf's handlers: the login, and one for the events of each kind."""
    result = kopf.OperatorRegistry()

    async def login(**_: object) -> kopf.ConnectionInfo:
        # Asked again when the API server says 401: then the token's file has a newer one.
        found = connection()
        return kopf.ConnectionInfo(
            server=found.server,
            ca_path=found.ca_path,
            ca_data=found.ca_data,
            insecure=found.insecure,
            token=found.token,
            certificate_path=found.certificate_path,
            certificate_data=found.certificate_data,
            private_key_path=found.key_path,
            private_key_data=found.key_data,
        )

    kopf.on.login(id="login", backoff=5, registry=result)(login)
    for kind in kinds:
        handler = partial(_tell, kind, notice)
        name = f"watch-{kind.plural}"
        kopf.on.event(kind.api_version, kind.plural, id=name, registry=result)(handler)
    return result


async def _tell(kind: Kind, notice: Notice, *, event: Any, **_: object) -> None:
    notice(kind, event["type"] or "LISTED", dict(event["object"]))


async def watch(
    kinds: Collection[Kind],
    namespaces: Collection[str],
    *,
    notice: Notice,
    connection: Callable[[], Connection],
    request_timeout_s: float,
    started: Callable[[], None],
    stop: asyncio.Event,
) -> None:
    """Watches until it is stopped; raises whatever kopf cannot go on after.

    Args:
        kinds: what to watch; all but InferenceServices by the label of their service.
        namespaces: where; none stands for all.
        notice: gets what is seen.
        connection: how the API server is reached now.
        request_timeout_s: bounds each request but the streams themselves.
        started: is called once kopf has taken the process's signals, to take them back.
        stop: ends the watching. A cancellation does so too, but takes tasks of others along.
    """
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry(kinds, notice=notice, connection=connection),
        settings=settings(kinds, request_timeout_s=request_timeout_s),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stop,
    )
    started()
    await kopf.run_tasks(tasks, ignored=others)
