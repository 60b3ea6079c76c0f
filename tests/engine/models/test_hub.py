"""The real hub client against a hub of our own on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest
from tests.engine.models.tiny_model import weights, write_folder

from octavo.engine.models.checkpoint import open_checkpoint
from octavo.engine.models.resolve import resolve
from octavo.v1.errors import MODEL_NOT_AT_HAND, OctavoError

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "some-org/Tiny-1B"


class Hub(ThreadingHTTPServer):
    """Serves one repository at one commit."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        files = [path for path in folder.rglob("*") if path.is_file()]
        self.files = {str(path.relative_to(folder)): path.read_bytes() for path in files}
        self.asked: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(path)
        headers, body = self._content(path)
        self.send_response(self.server.status if body is not None else 404)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        if with_body and body is not None:
            self.wfile.write(body)

    def _content(self, path: str) -> tuple[dict[str, str], bytes | None]:
        api, files = f"/api/models/{NAME}", self.server.files
        if path.startswith(f"{api}/revision/") and path.rpartition("/")[2] not in ("main", COMMIT):
            return {"X-Error-Code": "RevisionNotFound"}, None
        if path == api or path.startswith(f"{api}/revision/"):
            return {}, json.dumps({"id": NAME, "modelId": NAME, "sha": COMMIT}).encode()
        if path == f"{api}/tree/{COMMIT}":
            entries = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in files.items()
            ]
            return {"Content-Type": "application/json"}, json.dumps(entries).encode()
        file = path.removeprefix(f"/{NAME}/resolve/{COMMIT}/")
        if file in files:
            headers = {"ETag": f'"{_etag(files[file])}"', "X-Repo-Commit": COMMIT}
            return headers, files[file]
        return {"X-Error-Code": "RepoNotFound"}, None

    def log_message(self, format: str, *args: object) -> None:
        pass


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = write_folder(tmp_path / "repository", shards=2)
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    (folder / "original").mkdir()
    (folder / "original" / "more.safetensors").write_bytes(b"x")
    server = Hub(folder)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def _refused(model: str, revision: str = "") -> str:
    with pytest.raises(OctavoError) as caught:
        resolve(model, revision)
    assert caught.value.kind is MODEL_NOT_AT_HAND
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("model", [NAME, f"hf://{NAME}"])
def test_a_hub_model_is_fetched_without_pickles_and_code(hub: Hub, model: str) -> None:
    reports: list[tuple[int, int]] = []
    path = resolve(model, progress=lambda done, total: reports.append((done, total)))
    checkpoint = open_checkpoint(path)
    assert (checkpoint.model_id, checkpoint.revision) == (NAME, COMMIT)
    assert set(checkpoint.tensor_names()) == set(weights())
    assert sorted(p.suffix for p in path.iterdir()) == [".json"] * 3 + [".safetensors"] * 2
    assert not [name for name in hub.asked if name.endswith((".bin", ".py", "more.safetensors"))]
    size = sum(p.stat().st_size for p in path.iterdir())
    assert reports[-1] == (size, size)
    assert reports == sorted(reports)


def test_a_fetched_commit_needs_no_network(hub: Hub) -> None:
    path = resolve(NAME)
    asked = len(hub.asked)
    assert resolve(NAME, COMMIT) == path
    assert len(hub.asked) == asked, "a commit that is at hand opens no socket"
    hub.shutdown()
    hub.server_close()
    assert resolve(NAME) == path


def test_an_unknown_repository_is_one_line(hub: Hub) -> None:
    assert "the hub does not know it" in _refused("some-org/other")


def test_an_unknown_revision_is_one_line(hub: Hub) -> None:
    assert "the hub has no revision 'v9' of it" in _refused(NAME, "v9")


def test_a_hub_that_fails_is_one_line(hub: Hub) -> None:
    hub.status = 500
    assert "500" in _refused(NAME)


def test_a_token_that_cannot_be_sent_is_not_shown(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_geheim\x0bgeheim")
    said = _refused(NAME)
    assert "a header of the request" in said
    assert "geheim" not in said


def test_no_network_is_one_line(hub: Hub) -> None:
    hub.shutdown()
    hub.server_close()
    assert "ConnectError" in _refused(NAME)
