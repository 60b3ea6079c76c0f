"""The scripts that hooks run, as the processes that they are in a pod."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from urllib.error import HTTPError

import pytest
from tests.charts.matrix import MATRIX
from tests.charts.rendering import CHART, only, pods, render
from tests.cluster.certificates import self_signed
from tests.ports import lasting_port

Answers = dict[str, tuple[int, str]]


@contextmanager
def serving(
    answers: Answers, account: Path | None = None, port: int = 0
) -> Iterator[tuple[str, list[str]]]:
    """Serves fixed answers, with TLS for an account; yields address and requests."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            credentials = self.headers.get("Authorization", "")
            seen.append(f"{credentials} {self.command} {self.path}".lstrip())
            status, body = answers.get(f"{self.command} {self.path}", (404, "{}"))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        do_DELETE = do_POST = do_GET  # noqa: N815  (the server looks them up by name)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        if account is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(account / "ca.crt", account / "ca.key")
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def command(script: Path, *arguments: str) -> list[str]:
    # -I -S: with the standard library only, as in any image.
    return [sys.executable, "-I", "-S", "-W", "error", str(script), *arguments]


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    whole = command(script, *arguments)
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=60)


SMOKE = CHART / "files" / "smoke.py"
MODELS = json.dumps({"object": "list", "data": [{"id": "smollm2"}]})


def test_smoke_test_passes_when_both_ports_answer() -> None:
    metrics = "# HELP x\noctavo_gateway_requests_in_flight 0.0\n"
    with serving({"GET /v1/models": (200, MODELS), "GET /metrics": (200, metrics)}) as (url, _):
        done = run(SMOKE, url, url)
    assert done.returncode == 0, done.stderr
    assert "serves ['smollm2']" in done.stdout


def test_smoke_test_waits_until_the_network_lets_it_through() -> None:
    port = lasting_port()
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command(SMOKE, url, url), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert "is not reached yet" in running.stdout.readline()
        both = {"GET /v1/models": (200, MODELS), "GET /metrics": (200, "octavo_gateway_x 1")}
        with serving(both, port=port):
            assert running.wait(30) == 0


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {
            "GET /v1/models": (200, '{"object": "error"}'),
            "GET /metrics": (200, "octavo_gateway_x 1"),
        },
        {"GET /v1/models": (200, MODELS), "GET /metrics": (200, "other_metric 1")},
        {"GET /v1/models": (500, MODELS), "GET /metrics": (200, "octavo_gateway_x 1")},
    ],
    ids=["nothing there", "no list", "other metrics", "error"],
)
def test_smoke_test_fails_otherwise(answers: Answers) -> None:
    with serving(answers) as (url, _):
        assert run(SMOKE, url, url).returncode != 0


COMPLETION = {"usage": {"completion_tokens": 1}, "choices": [{"text": " there"}]}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((200, json.dumps(COMPLETION)), 0),
        ((503, '{"error": {"message": "no engine"}}'), 1),
        ((200, json.dumps({"usage": {"completion_tokens": 0}, "choices": []})), 1),
    ],
    ids=["answers", "no engine", "no token"],
)
def test_smoke_test_wants_a_token_of_the_model_that_is_named(
    answer: tuple[int, str], status: int
) -> None:
    both = {"GET /v1/models": (200, MODELS), "GET /metrics": (200, "octavo_gateway_x 1")}
    with serving(both | {"POST /v1/completions": answer}) as (url, seen):
        assert run(SMOKE, url, url, "smollm2").returncode == status
    assert "POST /v1/completions" in seen


def test_smoke_test_is_told_the_model() -> None:
    (pod,) = [p for p in pods(render({"test": {"model": "chat"}})) if p.owner == "Pod/octavo-test"]
    assert pod.args[2:] == ["chat"]


def test_smoke_test_asks_services_that_exist() -> None:
    objects = render({"gateway": {"service": {"port": 8080}}})
    (pod,) = [pod for pod in pods(objects) if pod.owner == "Pod/octavo-test"]
    wanted = re.findall(r"http://([\w-]+)\.serving\.svc:(\d+)", " ".join(pod.args))
    assert len(wanted) == len(pod.args)
    for name, port in wanted:
        ports = only(objects, "Service", name)["spec"]["ports"]
        assert int(port) in [each["port"] for each in ports]
    script = only(objects, "ConfigMap", "octavo-test")["data"]["smoke.py"]
    assert script == SMOKE.read_text("utf-8")


PATH = "/apis/serving.octavo.dev/v1alpha1"


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The files of a pod's own ServiceAccount."""
    self_signed(tmp_path, "ca", hosts=("IP:127.0.0.1",))
    (tmp_path / "token").write_text("s3cret", encoding="utf-8")
    return tmp_path


def clean_up(account: Path, answers: Answers, *namespaces: str) -> tuple[int, list[str]]:
    """Runs the script against an API server with those answers; returns status and requests."""
    with serving(answers, account) as (url, seen):
        return run_cleanup(account, url, *namespaces), seen


def run_cleanup(account: Path, url: str, *namespaces: str) -> int:
    """Runs the script as an account of the API server at 127.0.0.1; returns its status."""
    spec = spec_from_file_location("cleanup", CHART / "files" / "cleanup.py")
    assert spec is not None
    assert spec.loader is not None
    cleanup = module_from_spec(spec)
    spec.loader.exec_module(cleanup)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleanup, "ACCOUNT", account)
        patch.setattr(sys, "argv", ["cleanup.py", *namespaces])
        patch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        patch.setenv("KUBERNETES_SERVICE_PORT", url.rpartition(":")[2])
        status: int = cleanup.main()
    return status


def listed(*names: tuple[str, str]) -> tuple[int, str]:
    items = [{"metadata": {"namespace": namespace, "name": name}} for namespace, name in names]
    return 200, json.dumps({"items": items})


def test_cleanup_deletes_what_there_is(account: Path) -> None:
    answers = {
        f"GET {PATH}/inferenceservices": listed(("red", "a"), ("blue", "b")),
        f"DELETE {PATH}/namespaces/red/inferenceservices/a": (200, "{}"),
        # Somebody else was first.
        f"DELETE {PATH}/namespaces/blue/inferenceservices/b": (404, "{}"),
    }
    assert clean_up(account, answers) == (0, [f"Bearer s3cret {request}" for request in answers])


def test_cleanup_leaves_other_namespaces_alone(account: Path) -> None:
    answers = {
        f"GET {PATH}/namespaces/red/inferenceservices": listed(("red", "a")),
        f"DELETE {PATH}/namespaces/red/inferenceservices/a": (200, "{}"),
    }
    _, seen = clean_up(account, answers, "red")
    assert seen == [f"Bearer s3cret {request}" for request in answers]


def test_cleanup_has_nothing_to_do_without_the_definition(account: Path) -> None:
    assert clean_up(account, {})[0] == 0


@pytest.mark.parametrize("namespaces", [(), ("red", "blue")])
def test_cleanup_fails_when_it_may_read_nothing(
    account: Path, namespaces: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    refused = (403, "{}")
    paths = [PATH, *(f"{PATH}/namespaces/{name}" for name in namespaces)]
    answers = {f"GET {path}/inferenceservices": refused for path in paths}
    assert clean_up(account, answers, *namespaces)[0] == 1
    assert "--no-hooks" in capsys.readouterr().out


def test_cleanup_tells_of_a_namespace_that_it_may_not_read_and_goes_on(
    account: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {
        f"GET {PATH}/namespaces/gone/inferenceservices": (403, "{}"),
        f"GET {PATH}/namespaces/red/inferenceservices": listed(("red", "a")),
        f"DELETE {PATH}/namespaces/red/inferenceservices/a": (200, "{}"),
    }
    status, seen = clean_up(account, answers, "gone", "red")
    assert status == 0
    assert seen == [f"Bearer s3cret {request}" for request in answers]
    assert "namespaces/gone may not be read" in capsys.readouterr().out


def test_cleanup_fails_when_the_server_does(account: Path) -> None:
    with pytest.raises(HTTPError, match="500"):
        clean_up(account, {f"GET {PATH}/inferenceservices": (500, "{}")})


def test_cleanup_is_told_the_served_namespaces() -> None:
    def arguments(mode: str) -> list[str]:
        objects = render(MATRIX[mode] | {"cleanup": {"enabled": True}})
        (pod,) = [pod for pod in pods(objects) if pod.owner == "Job/octavo-cleanup"]
        return pod.args

    assert arguments("defaults") == []
    assert arguments("namespaced") == ["serving"]
    assert arguments("namespaces") == ["red", "blue"]


def test_cleanup_runs_before_the_operator_goes() -> None:
    objects = render(MATRIX["cleanup"])
    weights = {
        each["kind"]: int(each["metadata"]["annotations"]["helm.sh/hook-weight"])
        for each in objects
        if each["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-delete"
    }
    # What is in other namespaces is no hook: helm could not make it in one that is gone.
    assert weights.keys() == {"ServiceAccount", "ConfigMap", "Job"}
    assert weights["Job"] == max(weights.values())
