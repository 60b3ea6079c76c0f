"""A client of an API server in this process.

Tests ask hundreds of times: a process for each took a twentieth of what a whole run takes, and
kubectl reads the server's OpenAPI before each apply.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx2
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig

Object = dict[str, Any]
"""A resource as JSON."""

Within = Callable[[Callable[[], Any]], Any]
"""Does something somewhere, and returns what it returned."""

_REQUEST_S = 60.0
_RETRIES = 10
_LISTED_S = 2.0
"""A definition is established a moment before its kind is listed."""
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


class ApiError(Exception):
    """The API server or kubectl refused, or did not answer; the text is what it said."""


class MissingError(ApiError):
    """There is no such object."""


def at_once(work: Callable[[], Any]) -> Any:
    """Does something here."""
    return work()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Where the objects of a kind are.

    Attributes:
        root: such as `/apis/apps/v1`.
        plural: such as `deployments`.
        namespaced: whether they are in namespaces.
    """

    root: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "") -> str:
        where = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.root}{where}/{self.plural}" + (f"/{name}" if name else "")


class Api:
    """What an API server answers, as kubectl would ask it.

    Args:
        kubeconfig: how it is reached; read at the first request.
        within: does something in the network in which it is reached.
    """

    def __init__(self, kubeconfig: Path, *, within: Within) -> None:
        self._kubeconfig = kubeconfig
        self._within = within
        self._kinds: dict[str, _Kind] = {}

    def close(self) -> None:
        """Gives up its connections; a later request makes new ones."""
        if "_http" in self.__dict__:
            self._http.close()
            del self._http

    @cached_property
    def _http(self) -> httpx2.Client:
        config = KubeConfig.from_file(self._kubeconfig).get()
        assert config is not None
        parameters = ConnectionParams(timeout=httpx2.Timeout(_REQUEST_S), trust_env=False)
        return Client(config, parameters)

    def ready(self) -> bool:
        """Tells whether the API server says within 2 s that it is ready."""
        try:
            return self._send("GET", "/readyz", timeout=2.0).text == "ok"
        except ApiError:
            return False

    def get(self, kind: str, name: str, namespace: str) -> Object:
        """Returns one object; in the namespace `default` when none is given."""
        found: Object = self._send(
            "GET", self._kind(kind).path(namespace or "default", name)
        ).json()
        return found

    def list(self, kinds: str, namespace: str, selector: str) -> list[Object]:
        """Returns the objects of kinds (`pods` or `pods,services`), each with its kind.

        They are those of one namespace, or of all.
        """
        parameters = {"labelSelector": selector} if selector else {}
        items: list[Object] = []
        for kind in kinds.split(","):
            found = self._send("GET", self._kind(kind).path(namespace), params=parameters).json()
            tag = {"apiVersion": found["apiVersion"], "kind": found["kind"].removesuffix("List")}
            items += [tag | item for item in found["items"]]
        return items

    def apply(self, item: Object, namespace: str, manager: str) -> None:
        """Applies an object on the server's side; a field that its kind lacks is an error."""
        meta = item["metadata"]
        kind = self._kind(f"{item['kind']}.{item['apiVersion']}", patience_s=_LISTED_S)
        self._send(
            "PATCH",
            kind.path(namespace or meta.get("namespace", "default"), meta["name"]),
            params={"fieldManager": manager, "fieldValidation": "Strict"},
            headers={"content-type": "application/apply-patch+yaml"},
            content=json.dumps(item),
        )

    def delete_all(self, kind: str, namespace: str) -> None:
        """Begins the deletion of all objects of a kind in a namespace, and of what they own."""
        path = self._kind(kind).path(namespace)
        self._send("DELETE", path, params={"propagationPolicy": "Background"})

    def states(self, kind: str, name: str, namespace: str, timeout_s: float) -> Iterator[Object]:
        """Yields each state of an object; ends with the time, or when the server ends the watch."""
        end = time.monotonic() + timeout_s
        request = self._http.build_request(
            "GET",
            self._kind(kind).path(namespace or "default"),
            params={
                "watch": "true",
                "fieldSelector": f"metadata.name={name}",
                "timeoutSeconds": str(int(timeout_s) + 1),
            },
            timeout=httpx2.Timeout(_REQUEST_S, read=timeout_s),
        )
        response = self._answer(request, stream=True)
        try:
            for line in response.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR" or time.monotonic() > end:
                    return
                if event["type"] != "DELETED":
                    yield event["object"]
        except (httpx2.HTTPError, json.JSONDecodeError):
            return  # it ended in the middle of it
        finally:
            response.close()

    def _kind(self, name: str, *, patience_s: float = 0.0) -> _Kind:
        """Returns a kind by what kubectl calls it, or by `Kind.group/version`."""
        end = time.monotonic() + patience_s
        while (kind := self._kinds.get(name.lower())) is None:
            self._kinds = self._discover()
            if name.lower() not in self._kinds:
                if time.monotonic() > end:
                    raise ApiError(f'the server doesn\'t have a resource type "{name}"')
                time.sleep(0.05)
        return kind

    def _discover(self) -> dict[str, _Kind]:
        found: dict[str, _Kind] = {}
        for root in ("/api", "/apis"):
            groups = self._send("GET", root, headers={"accept": _DISCOVERY}).json()["items"]
            for group in groups:
                for version in group["versions"]:
                    name = group["metadata"].get("name", "")
                    for key, kind in _named(root, name, version):
                        found.setdefault(key, kind)
        return found

    def _send(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return self._answer(self._http.build_request(method, path, **options))

    def _answer(self, request: httpx2.Request, *, stream: bool = False) -> httpx2.Response:
        """Returns the answer to a request.

        Asked to come again, as while a definition changes, it does so as client-go does.

        Raises:
            ApiError: with what kubectl would print.
        """
        for last in (*[False] * _RETRIES, True):
            try:
                response: httpx2.Response = self._within(
                    lambda: self._http.send(request, stream=stream)
                )
                if response.is_success:
                    return response
                response.read()
            except httpx2.HTTPError as error:
                raise ApiError(f"{request.method} {request.url}: {error!r}") from error
            if last or "retry-after" not in response.headers:
                break
            time.sleep(float(response.headers["retry-after"]))
        try:
            status = response.json()
        except json.JSONDecodeError:
            raise ApiError(f"{response.status_code}: {response.text}") from None
        kind = MissingError if response.status_code == 404 else ApiError
        raise kind(f"Error from server ({status.get('reason')}): {status['message']}")


def _named(root: str, group: str, version: Object) -> Iterator[tuple[str, _Kind]]:
    """Yields the kinds of one version of a group, once for each name that they have."""
    number = version["version"]
    path = "/".join(part for part in (root, group, number) if part)
    for resource in version.get("resources", []):
        kind = _Kind(
            root=path, plural=resource["resource"], namespaced=resource["scope"] == "Namespaced"
        )
        full = f"{group}/{number}" if group else number
        yield f"{resource['responseKind']['kind']}.{full}".lower(), kind
        singular = resource.get("singularResource", "")
        for name in (kind.plural, singular, *resource.get("shortNames", [])):
            yield name, kind
            yield f"{name}.{group}", kind
