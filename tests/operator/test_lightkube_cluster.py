"""The adapter against an API server that answers what the test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

from octavo.operator.cluster import (
    ClusterError,
    ConflictError,
    ExpiredError,
    FailedError,
    Key,
    MissingError,
    RefusedError,
    UnavailableError,
)
from octavo.operator.kinds import DEPLOYMENT, EVENT, INFERENCE_SERVICE, JOB, POD, POD_MONITOR, Kind
from octavo.operator.lightkube_cluster import LightkubeCluster, configuration, connection
from octavo.v1.errors import OctavoError

KEY = Key("shop", "chat")


class Server:
    """Records what it is asked and answers by the script, its last entry for ever."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.bodies: list[object] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[web.Response | float] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path, dict(request.query)))
        self.headers.append(dict(request.headers))
        body = await request.text()
        self.bodies.append(json.loads(body) if body else None)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, web.Response):
            return answer
        return await self._trickle(request, for_s=answer)

    async def _trickle(self, request: web.Request, *, for_s: float) -> web.StreamResponse:
        """Sends a byte of an answer now and then, so that no single read takes long."""
        response = web.StreamResponse()
        await response.prepare(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + for_s
        while loop.time() < end:
            await response.write(b" ")
            await asyncio.sleep(0.02)
        return response


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield site.name
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking(
    *answers: web.Response | float, timeout_s: float = 60.0
) -> AsyncIterator[tuple[Server, LightkubeCluster]]:
    server = Server()
    server.answers.extend(answers)
    async with serving(server) as url:
        cluster = LightkubeCluster(_config(url), timeout_s=timeout_s)
        try:
            yield server, cluster
        finally:
            await cluster.close()


def _config(url: str) -> SingleConfig:
    config = KubeConfig.from_server(url).get()
    assert config is not None
    return config._replace(user=User(token="t"))


def said(status: int, reason: str = "", message: str = "words", **headers: str) -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "reason": reason, "message": message}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.json_response(body, status=status, headers=named)


def run(case: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(case())


def test_get_returns_the_object_with_fields_that_nobody_knows() -> None:
    async def case() -> None:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat"}, "spec": {"new": 1}}
        async with talking(web.json_response(pod)) as (server, cluster):
            assert await cluster.get(POD, KEY) == pod
        assert server.asked == [("GET", "/api/v1/namespaces/shop/pods/chat", {})]

    run(case)


def test_get_of_what_is_gone_is_none() -> None:
    async def case() -> None:
        async with talking(said(404, "NotFound")) as (server, cluster):
            assert await cluster.get(DEPLOYMENT, KEY) is None
        assert server.asked[0][1] == "/apis/apps/v1/namespaces/shop/deployments/chat"

    run(case)


def test_list_reads_all_pages_and_names_the_kind_of_each_item() -> None:
    async def case() -> None:
        first = {
            "metadata": {"resourceVersion": "70", "continue": "more"},
            "items": [{"metadata": {"name": "a"}}],
        }
        last = {"metadata": {"resourceVersion": "70"}, "items": [{"metadata": {"name": "b"}}]}
        async with talking(web.json_response(first), web.json_response(last)) as (server, cluster):
            listing = await cluster.list(JOB, None, labels={"app": "x", "service": None})
        assert listing.resource_version == "70"
        assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
        assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {
            ("batch/v1", "Job")
        }
        (method, path, query), (_, _, following) = server.asked
        assert (method, path) == ("GET", "/apis/batch/v1/jobs")
        assert query == {"labelSelector": "app=x,service", "limit": "500"}
        assert following["continue"] == "more"

    run(case)


def test_list_of_one_namespace() -> None:
    async def case() -> None:
        empty = {"metadata": {"resourceVersion": "7"}, "items": []}
        async with talking(web.json_response(empty)) as (server, cluster):
            assert (await cluster.list(POD, "shop")).items == []
        assert server.asked == [("GET", "/api/v1/namespaces/shop/pods", {"limit": "500"})]

    run(case)


def test_list_of_a_kind_that_is_not_served_is_missing() -> None:
    async def case() -> None:
        async with talking(web.Response(status=404, text="404 page not found")) as (_, cluster):
            with pytest.raises(MissingError):
                await cluster.list(POD_MONITOR, None)

    run(case)


def test_apply_is_a_server_side_apply_of_exactly_the_manifest() -> None:
    async def case() -> None:
        manifest = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "chat", "namespace": "shop"},
            "spec": {"replicas": 2},
        }
        async with talking(web.json_response(manifest | {"status": {}})) as (server, cluster):
            assert await cluster.apply(DEPLOYMENT, manifest) == manifest | {"status": {}}
        method, path, query = server.asked[0]
        assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/chat")
        assert query == {"force": "true", "fieldManager": "octavo-operator"}
        assert server.headers[0]["Content-Type"] == "application/apply-patch+yaml"
        assert server.bodies == [manifest]

    run(case)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (
            INFERENCE_SERVICE,
            "/apis/serving.octavo.dev/v1alpha1/namespaces/shop/inferenceservices/chat/status",
        ),
        (POD, "/api/v1/namespaces/shop/pods/chat/status"),
    ],
    ids=["service", "pod"],
)
def test_status_is_applied_to_its_subresource(kind: Kind, path: str) -> None:
    async def case() -> None:
        manifest = {
            "apiVersion": kind.api_version,
            "kind": kind.name,
            "metadata": {"name": "chat", "namespace": "shop", "uid": "u"},
            "status": {"replicas": 1},
        }
        async with talking(web.json_response(manifest)) as (server, cluster):
            await cluster.apply(kind, manifest, subresource="status")
        assert server.asked[0][:2] == ("PATCH", path)
        assert server.bodies == [manifest]

    run(case)


def test_scale_is_a_merge_patch_of_the_subresource() -> None:
    async def case() -> None:
        async with talking(web.json_response({"kind": "Scale"})) as (server, cluster):
            await cluster.scale(DEPLOYMENT, KEY, uid="u", replicas=3)
        path = "/apis/apps/v1/namespaces/shop/deployments/chat/scale"
        assert server.asked == [("PATCH", path, {"fieldManager": "octavo-operator"})]
        assert server.headers[0]["Content-Type"] == "application/merge-patch+json"
        assert server.bodies == [{"metadata": {"uid": "u"}, "spec": {"replicas": 3}}]

    run(case)


def test_create_posts_to_the_collection() -> None:
    async def case() -> None:
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "e", "namespace": "shop"},
            "reason": "Because",
        }
        async with talking(web.json_response(event)) as (server, cluster):
            assert await cluster.create(EVENT, event) == event
        assert server.asked[0][:2] == ("POST", "/api/v1/namespaces/shop/events")
        assert server.bodies == [event]

    run(case)


def test_delete_is_of_one_version_and_takes_what_the_object_owns_along() -> None:
    async def case() -> None:
        async with talking(web.json_response({"kind": "Status"})) as (server, cluster):
            await cluster.delete(JOB, KEY, uid="u", resource_version="7")
        assert server.asked == [("DELETE", "/apis/batch/v1/namespaces/shop/jobs/chat", {})]
        assert server.bodies == [
            {
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": {"uid": "u", "resourceVersion": "7"},
            }
        ]

    run(case)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (said(409, "Conflict"), ConflictError),
        (said(409, "AlreadyExists"), ConflictError),
        (said(410, "Expired"), ExpiredError),
        (said(422, "Invalid"), RefusedError),
        (said(400, "BadRequest"), RefusedError),
        (said(403, "Forbidden"), RefusedError),
        (said(404, "NotFound"), MissingError),
        (said(500, "InternalError"), FailedError),
        (said(504, "Timeout"), UnavailableError),
    ],
    ids=str,
)
def test_errors_have_types_and_the_server_s_words(
    answer: web.Response, error: type[ClusterError]
) -> None:
    async def case() -> None:
        async with talking(answer) as (_, cluster):
            with pytest.raises(error) as raised:
                await cluster.list(POD, "shop")
        assert type(raised.value) is error
        assert raised.value.message == "words"

    run(case)


def test_a_field_that_the_cluster_s_definition_lacks_is_refused_however_often() -> None:
    words = "failed to create typed patch object: .status.new: field not declared in schema"
    answer = web.json_response({"message": words}, status=500)

    async def case() -> None:
        async with talking(answer) as (_, cluster):
            with pytest.raises(RefusedError) as raised:
                await cluster.get(POD, KEY)
        assert raised.value.message.startswith("the cluster's definition of this kind is older")
        assert words in raised.value.message

    run(case)


def test_too_many_requests_says_how_long_to_wait() -> None:
    async def case() -> None:
        async with talking(said(429, "TooManyRequests", Retry_After="7")) as (_, cluster):
            with pytest.raises(UnavailableError) as raised:
                await cluster.get(POD, KEY)
        assert raised.value.retry_after_s == 7

    run(case)


def test_an_apply_to_an_object_that_was_made_anew_is_a_conflict() -> None:
    # kube-apiserver 1.34 takes the UID for a field that cannot change, and does not say 409.
    message = "metadata.uid: Invalid value: field is immutable"
    details = {"causes": [{"reason": "FieldValueInvalid", "field": "metadata.uid"}]}
    answer = web.json_response({"message": message, "details": details}, status=422)

    async def case() -> None:
        async with talking(answer) as (_, cluster):
            metadata = {"name": "chat", "namespace": "shop", "uid": "former"}
            with pytest.raises(ConflictError, match="immutable"):
                await cluster.apply(DEPLOYMENT, {"metadata": metadata})

    run(case)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (web.Response(status=503, text="<html>", content_type="text/html"), "HTTP 503"),
        (web.Response(status=502, headers={"Content-Type": ""}), "HTTP 502"),
        (web.Response(text='{"metadata": {', content_type="application/json"), "none of the API"),
    ],
    ids=["page of a load balancer", "no content type", "cut off"],
)
def test_answers_that_are_not_the_api_server_s_settle_nothing(
    answer: web.Response, words: str
) -> None:
    async def case() -> None:
        async with talking(answer) as (_, cluster):
            with pytest.raises(UnavailableError, match=words):
                await cluster.get(POD, KEY)

    run(case)


def test_an_absent_server_is_unavailable() -> None:
    async def case() -> None:
        async with talking(said(200)) as (_, cluster):
            pass
        cluster = LightkubeCluster(_config("http://127.0.0.1:1"), timeout_s=5)
        with pytest.raises(UnavailableError, match="ConnectError"):
            await cluster.get(POD, KEY)
        await cluster.close()

    run(case)


def test_a_token_that_cannot_be_sent_is_not_shown() -> None:
    async def case() -> None:
        async with serving(Server()) as url:
            config = _config(url)._replace(user=User(token="geheim\n"))
            cluster = LightkubeCluster(config, timeout_s=60)
            with pytest.raises(UnavailableError, match="LocalProtocolError: a header") as raised:
                await cluster.get(POD, KEY)
            assert "geheim" not in raised.value.message
            await cluster.close()

    run(case)


def test_a_call_is_bounded_however_its_answer_trickles() -> None:
    async def case() -> None:
        async with talking(5.0, timeout_s=0.3) as (_, cluster):
            with pytest.raises(UnavailableError, match="TimeoutError"):
                await cluster.get(POD, KEY)

    run(case)


def test_a_rotated_token_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def case() -> None:
        server = Server()
        server.answers = [web.json_response({"metadata": {}})] * 2
        async with serving(server) as url:
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
            (tmp_path / "namespace").write_text("octavo")
            (tmp_path / "token").write_text("first\n")
            config = KubeConfig.from_service_account(tmp_path).get()
            assert config is not None
            config.cluster.server, config.cluster.certificate_auth = url, None
            cluster = LightkubeCluster(config, timeout_s=5)
            await cluster.get(POD, KEY)
            (tmp_path / "token").write_text("second\n")
            assert connection(config).token == "second"
            server.answers = [said(401, "Unauthorized"), web.json_response({"metadata": {}})]
            assert await cluster.get(POD, KEY) is not None
            await cluster.close()
        sent = [headers["Authorization"] for headers in server.headers]
        assert sent == ["Bearer first", "Bearer first", "Bearer second"]

    run(case)


def test_configuration_comes_from_the_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(
        """
        current-context: here
        contexts: [{name: here, context: {cluster: it, user: me}}]
        clusters: [{name: it, cluster: {server: "https://127.0.0.1:6443",
                                        certificate-authority: ca.crt}}]
        users: [{name: me, user: {client-certificate: me.crt, client-key: me.key}}]
        """
    )
    monkeypatch.setenv("KUBECONFIG", str(file))
    found = connection(configuration())
    assert found.server == "https://127.0.0.1:6443"
    assert found.ca_path == str(tmp_path / "ca.crt")
    assert (found.certificate_path, found.key_path) == (
        str(tmp_path / "me.crt"),
        str(tmp_path / "me.key"),
    )
    assert found.token is None
    assert not found.insecure


def test_no_cluster_at_all_is_a_setting_to_be_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    with pytest.raises(OctavoError, match="KUBECONFIG"):
        configuration()
