"""The cluster through lightkube: its URLs, its credentials, its errors in our types.

lightkube reads the token of a ServiceAccount anew when the API server says 401, so rotated tokens
need nothing here. Objects stay dictionaries: what the operator does not know it must not lose.
The only module that knows lightkube and the HTTP library beneath it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError
from lightkube.core.generic_client import ALL_NS, BasicRequest, GenericAsyncClient
from lightkube.core.resource import ApiInfo, ResourceDef
from lightkube.core.selector import build_selector
from lightkube.generic_resource import GenericNamespacedResource, GenericNamespacedStatus
from lightkube.types import PatchType

from octavo.operator.cluster import (
    NO_LABELS,
    ClusterError,
    ConflictError,
    Connection,
    ExpiredError,
    FailedError,
    Key,
    Labels,
    Listing,
    MissingError,
    RefusedError,
    UnavailableError,
)
from octavo.operator.kinds import DEPLOYMENT, INFERENCE_SERVICE, KINDS, POD, Kind, Manifest
from octavo.operator.plan import FIELD_MANAGER
from octavo.runtime.client_errors import text_of
from octavo.v1.errors import BAD_SETTING, OctavoError

CHUNK: Final = 500
"""Objects in one answer to a list."""

UNDECLARED: Final = "field not declared in schema"
"""What an API server says, with status 500, of an apply with a field that the kind lacks there."""


def configuration() -> SingleConfig:
    """Finds the cluster: the pod's own, else that of KUBECONFIG or ~/.kube/config.

    Raises:
        OctavoError: BAD_SETTING where there is none.
    """
    try:
        found = KubeConfig.from_env().get()
    except (ConfigError, OSError, KeyError) as error:
        raise OctavoError(
            BAD_SETTING, key="KUBECONFIG", value="", origin="environment", reason=str(error)
        ) from error
    assert found is not None
    return found


def connection(config: SingleConfig) -> Connection:
    """Reads the credentials as they are now, tokens included."""
    cluster, user = config.cluster, config.user

    def path(name: str | None) -> str | None:
        return str(config.abs_file(name)) if name else None

    token = user.token if user else None
    if user and user.token_file:
        token = Path(user.token_file).read_text(encoding="utf-8").strip()
    return Connection(
        server=cluster.server,
        ca_path=path(cluster.certificate_auth),
        ca_data=cluster.certificate_auth_data,
        insecure=cluster.insecure,
        token=token,
        certificate_path=path(user.client_cert) if user else None,
        certificate_data=user.client_cert_data if user else None,
        key_path=path(user.client_key) if user else None,
        key_data=user.client_key_data if user else None,
    )


class _Page(msgspec.Struct):
    """One answer to a list."""

    metadata: _PageMetadata
    items: list[Manifest]


class _PageMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion"}):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Status(msgspec.Struct):
    """How the API server words a failure."""

    message: str = ""
    details: _Details | None = None

    @property
    def is_of_another_uid(self) -> bool:
        """Whether the object is not the one that was meant; the API server calls that invalid."""
        return any(cause.field == "metadata.uid" for cause in (self.details or _Details()).causes)


class _Details(msgspec.Struct):
    causes: list[_Cause] = []


class _Cause(msgspec.Struct):
    field: str = ""


class LightkubeCluster:
    """The port's adapter.

    Args:
        config: how the API server is reached.
        timeout_s: bounds each exchange, whatever it waits for.
    """

    def __init__(self, config: SingleConfig, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # The environment's proxies are not for the API server.
        parameters = ConnectionParams(timeout=httpx2.Timeout(timeout_s), trust_env=False)
        self._client = GenericAsyncClient(parameters, config, field_manager=FIELD_MANAGER)

    async def close(self) -> None:
        """Closes the connections."""
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, kind: Kind, key: Key) -> Manifest | None:
        """Returns an object as it is now, None if there is none."""
        try:
            return await self._object(
                self._client.prepare_request(
                    "get", _OBJECTS[kind], name=key.name, namespace=key.namespace
                )
            )
        except MissingError:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: Labels = NO_LABELS
    ) -> Listing:
        """Returns the objects of a kind that have the labels, of one namespace or (None) of all."""
        request = self._client.prepare_request(
            "list",
            _OBJECTS[kind],
            namespace=namespace or ALL_NS,
            params={"limit": CHUNK, "labelSelector": build_selector(dict(labels)) or None},
        )
        items: list[Manifest] = []
        while True:
            page = _decoded(await self._exchange(request), _Page)
            items.extend(page.items)
            if not page.metadata.continue_:
                break
            request.params["continue"] = page.metadata.continue_
        for item in items:
            # In a list only the list says what its items are.
            item.setdefault("apiVersion", kind.api_version)
            item.setdefault("kind", kind.name)
        return Listing(items=items, resource_version=page.metadata.resource_version)

    async def apply(self, kind: Kind, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Makes the fields of a manifest what it says; returns the object."""
        classes = _STATUSES if subresource else _OBJECTS
        return await self._object(
            self._client.prepare_request(
                "patch",
                classes[kind],
                obj=manifest,
                name=manifest["metadata"]["name"],
                namespace=manifest["metadata"]["namespace"],
                headers={"Content-Type": PatchType.APPLY.value},
                params={"force": "true"},
            )
        )

    async def scale(self, kind: Kind, key: Key, *, uid: str, replicas: int) -> None:
        """Sets an object's number of replicas and nothing else."""
        await self._exchange(
            self._client.prepare_request(
                "patch",
                _SCALES[kind],
                obj={"metadata": {"uid": uid}, "spec": {"replicas": replicas}},
                name=key.name,
                namespace=key.namespace,
                headers={"Content-Type": PatchType.MERGE.value},
            )
        )

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Creates an object and returns it; a ConflictError where it exists."""
        obj = _OBJECTS[kind](**manifest)
        return await self._object(self._client.prepare_request("post", obj=obj))

    async def delete(self, kind: Kind, key: Key, *, uid: str, resource_version: str) -> None:
        """Deletes an object, if it still is this one, and what it owns."""
        request = self._client.prepare_request(
            "delete", _OBJECTS[kind], name=key.name, namespace=key.namespace
        )
        request.data = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            # The API's own choice for Jobs leaves their pods behind.
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid, "resourceVersion": resource_version},
        }
        await self._exchange(request)

    async def _object(self, request: BasicRequest) -> Manifest:
        found: Manifest = _decoded(await self._exchange(request), dict[str, Any])
        return found

    async def _exchange(self, request: BasicRequest) -> bytes:
        """Sends a request; returns the body of the answer or raises what it says."""
        try:
            async with asyncio.timeout(self._timeout_s):
                sent = self._client.build_adapter_request(request)
                response: httpx2.Response = await self._client.send(sent)  # type: ignore[no-untyped-call]
        except (httpx2.HTTPError, ConfigError, OSError) as error:
            name, text = type(error).__name__, text_of(error)
            raise UnavailableError(name if text == name else f"{name}: {text}") from error
        if response.is_success:
            return response.content
        raise _typed(response)


def _decoded(body: bytes, cls: Any) -> Any:
    try:
        return msgspec.json.decode(body, type=cls)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"the answer is none of the API server's: {error}") from error


def _typed(response: httpx2.Response) -> ClusterError:
    """Returns the error that an answer stands for, in the server's words if it has some."""
    status = response.status_code
    try:
        said = msgspec.json.decode(response.content, type=_Status)
    except msgspec.DecodeError:
        said = _Status()
    message = said.message or f"HTTP {status} {response.reason_phrase}".strip()
    match status:
        case 404:
            return MissingError(message)
        case 409:
            return ConflictError(message)
        case 410:
            return ExpiredError(message)
        case 401 | 408 | 429:
            pass
        case 422 if said.is_of_another_uid:
            return ConflictError(message)
        case 500 if UNDECLARED in message:
            why = "the cluster's definition of this kind is older than the operator"
            return RefusedError(f"{why}: {message}")
        case 500 if said.message:
            return FailedError(message)
        case _ if 400 <= status < 500:
            return RefusedError(message)
    after = response.headers.get("retry-after", "")
    return UnavailableError(message, retry_after_s=float(after) if after.isdecimal() else 0.0)


def _object_class(kind: Kind) -> type[GenericNamespacedResource]:
    """Makes lightkube's class of a kind, outside its registry, which would give typed models."""
    verbs = ["delete", "get", "global_list", "list", "patch", "post"]
    info = ApiInfo(resource=_definition(kind), plural=kind.plural, verbs=verbs)
    return type(kind.name, (GenericNamespacedResource,), {"_api_info": info})


def _subresource_class(kind: Kind, action: str) -> type[GenericNamespacedStatus]:
    info = ApiInfo(
        resource=_definition(kind),
        parent=_definition(kind),
        plural=kind.plural,
        verbs=["patch"],
        action=action,
    )
    return type(f"{kind.name}-{action}", (GenericNamespacedStatus,), {"_api_info": info})


def _definition(kind: Kind) -> ResourceDef:
    return ResourceDef(kind.group, kind.version, kind.name)


_OBJECTS: Final = {kind: _object_class(kind) for kind in KINDS}
_STATUSES: Final = {k: _subresource_class(k, "status") for k in (INFERENCE_SERVICE, POD)}
_SCALES: Final = {k: _subresource_class(k, "scale") for k in (DEPLOYMENT,)}
