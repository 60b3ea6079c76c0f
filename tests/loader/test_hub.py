"""The hub's adapter against a hub on loopback, which the hub's own client finds true as well."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from tests.loader.faulty_server import Fault
from tests.loader.hub_server import (
    COMMIT,
    FORMER,
    REPOSITORY,
    HubServer,
    git_sha1,
    serving_hub,
    sha256,
)
from tests.loader.loading import SHARDS, repository

from octavo.loader import hub as hub_module
from octavo.loader.hub import Hub, connect
from octavo.loader.model_uri import HubModel
from octavo.loader.source import Listing, RemoteFile, TransientError
from octavo.v1.errors import (
    BAD_SETTING,
    MODEL_FORBIDDEN,
    MODEL_MISSING,
    SOURCE_UNREACHABLE,
    ErrorKind,
    OctavoError,
)

FILES = repository()
DATA = FILES[SHARDS[0]]
TOKEN = "hf_secretsecret"


@pytest.fixture
def server() -> Iterator[HubServer]:
    with serving_hub(FILES, TOKEN) as hub:
        yield hub


def environ(server: HubServer, token: str = TOKEN) -> dict[str, str]:
    return {"HF_ENDPOINT": server.url, "HF_TOKEN": token}


def listed(
    server: HubServer, revision: str = "", token: str = TOKEN, name: str = REPOSITORY
) -> Listing:
    async def main() -> Listing:
        async with connect(HubModel(repository=name), revision, environ(server, token)) as hub:
            return await hub.list()

    return asyncio.run(main())


def read(server: HubServer, start: int = 0, name: str = SHARDS[0]) -> bytes:
    """Returns what one call gives of a file."""

    async def collect(hub: Hub) -> bytes:
        file = RemoteFile(name=name, size=len(FILES.get(name, b"x")))
        listing = Listing(revision=COMMIT, files=(file,))
        async with aclosing(hub.read(listing, file, start)) as pieces:
            return b"".join([data async for data in pieces])

    async def main() -> bytes:
        async with connect(HubModel(repository=REPOSITORY), "", environ(server)) as hub:
            return await collect(hub)

    return asyncio.run(main())


@pytest.mark.parametrize("revision", ["", "main", "v1", COMMIT])
def test_a_revision_is_one_commit_with_its_files(server: HubServer, revision: str) -> None:
    listing = listed(server, revision)
    assert listing.revision == COMMIT
    found = {file.name: file for file in listing.files}
    assert found.keys() == {name for name in FILES if "/" not in name}, "all pages, the root only"
    large, small = found[SHARDS[0]], found["config.json"]
    assert (large.size, large.sha256, large.git_sha1) == (len(DATA), sha256(DATA), "")
    assert (small.sha256, small.git_sha1) == ("", git_sha1(FILES["config.json"]))


@pytest.mark.parametrize("start", [0, 1, 100_000, len(DATA) - 1])
def test_a_file_is_read_from_any_byte_on(server: HubServer, start: int) -> None:
    assert read(server, start) == DATA[start:]
    assert server.storage.asked[-1].range == f"bytes={start}-{len(DATA) - 1}"


def test_a_small_file_comes_from_the_hub_itself(server: HubServer) -> None:
    assert read(server, 2, "tokenizer.json") == FILES["tokenizer.json"][2:]
    assert server.storage.asked == []


def test_large_files_are_asked_for_in_pieces(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "PIECE_BYTES", 70_000)
    assert read(server, 50_000) == DATA[50_000:120_000]
    assert read(server, len(DATA) - 10) == DATA[-10:]


def test_a_server_without_ranges_is_read_from_the_start(server: HubServer) -> None:
    server.storage.faults = [Fault(kind="no_ranges")]
    assert read(server, 123_456) == DATA[123_456:]


def test_the_token_goes_to_the_hub_only(server: HubServer) -> None:
    read(server)
    assert {asked.authorization for asked in server.asked} == {f"Bearer {TOKEN}"}
    assert {asked.authorization for asked in server.storage.asked} == {""}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(kind="status", status=503), "127.0.0.1 answers 503"),
        (Fault(kind="status", status=500), "127.0.0.1 answers 500"),
        (Fault(kind="status", status=408), "127.0.0.1 answers 408"),
        (Fault(kind="status", status=403), "127.0.0.1 answers 403"),
        (Fault(kind="cut", at=70_000), "peer closed connection"),
        (Fault(kind="other_range"), "127.0.0.1 answers another range"),
    ],
    ids=lambda value: f"{value.kind}-{value.status}" if isinstance(value, Fault) else "",
)
def test_what_may_be_over_soon_is_transient(server: HubServer, fault: Fault, reason: str) -> None:
    server.storage.faults = [fault]
    with pytest.raises(TransientError, match=reason) as caught:
        read(server, 1)
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_transient(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "_TIMEOUT", 0.2)
    server.faults = [Fault(kind="hang", times=1)]
    with pytest.raises(TransientError, match="ReadTimeout"):
        listed(server)


def test_no_network_is_transient() -> None:
    with serving_hub(FILES) as server:
        pass
    with pytest.raises(TransientError, match=r"127\.0\.0\.1: All connection attempts failed"):
        listed(server)


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "17"}, 17),
        (503, {"Retry-After": "3"}, 3),
        (429, {"RateLimit": '"api";r=0;t=55'}, 55),
        (503, {"RateLimit": '"api";r=9;t=55'}, 0),
        (429, {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0),
        (429, {"Retry-After": "-1"}, 0),
    ],
)
def test_a_source_says_how_long_to_wait(
    server: HubServer, status: int, headers: dict[str, str], seconds: float
) -> None:
    server.faults = [Fault(kind="status", status=status, headers=headers)]
    with pytest.raises(TransientError) as caught:
        listed(server)
    assert caught.value.retry_after_s == seconds


@pytest.mark.parametrize(
    ("fault", "kind", "reason"),
    [
        (Fault(kind="status", status=403), MODEL_FORBIDDEN, "access is not allowed"),
        (
            Fault(kind="status", status=403, headers={"X-Error-Message": "no\u00fc \x1b[31m"}),
            MODEL_FORBIDDEN,
            r"no\xfc \x1b[31m",
        ),
        (Fault(kind="status", status=404), MODEL_MISSING, "there is none of this name"),
        (Fault(kind="status", status=400), SOURCE_UNREACHABLE, "answers 400"),
        (Fault(kind="status", status=304), SOURCE_UNREACHABLE, "answers 304"),
        (Fault(kind="status", status=200), SOURCE_UNREACHABLE, "does not answer as a hub"),
        (
            Fault(kind="redirect", headers={"Location": "file:///etc/passwd"}),
            SOURCE_UNREACHABLE,
            "redirects from http to file, which is refused",
        ),
        (
            Fault(kind="redirect", headers={"Location": "/again"}),
            SOURCE_UNREACHABLE,
            "redirects more than 5 times",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, ErrorKind) else "",
)
def test_what_no_retry_mends_is_told_at_once(
    server: HubServer, fault: Fault, kind: ErrorKind, reason: str
) -> None:
    server.faults = [fault]
    with pytest.raises(OctavoError) as caught:
        listed(server)
    assert caught.value.kind is kind
    assert reason in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("token", "gated", "kind", "reason"),
    [
        ("", False, MODEL_MISSING, "or it is private: see HF_TOKEN"),
        ("hf_wrong", False, MODEL_FORBIDDEN, "the token in HF_TOKEN is not valid"),
        ("", True, MODEL_FORBIDDEN, "it is gated, and no HF_TOKEN"),
        (TOKEN, True, MODEL_FORBIDDEN, "it is gated, and the account of HF_TOKEN has no access"),
    ],
)
def test_refusals_say_what_is_missing(
    server: HubServer, token: str, gated: bool, kind: ErrorKind, reason: str
) -> None:
    server.gated = gated
    with pytest.raises(OctavoError) as caught:
        listed(server, token=token)
    assert caught.value.kind is kind
    assert reason in caught.value.message
    assert TOKEN not in str(caught.value)


def test_an_unknown_revision_and_an_unknown_name_are_told_apart(server: HubServer) -> None:
    with pytest.raises(OctavoError, match="there is no revision 'v9' of it"):
        listed(server, "v9")
    with pytest.raises(OctavoError, match=r"127\.0\.0\.1 has no hf://some-org/other"):
        listed(server, name="some-org/other")


def test_a_file_that_went_is_missing(server: HubServer) -> None:
    with pytest.raises(OctavoError, match="a file of it is gone"):
        read(server, name="gone.json")


def test_a_renamed_repository_is_followed(server: HubServer) -> None:
    assert listed(server, name=FORMER) == listed(server)


def test_white_space_around_a_token_is_not_sent(server: HubServer) -> None:
    assert listed(server, token=f" {TOKEN}\r\n").revision == COMMIT
    assert {asked.authorization for asked in server.asked} == {f"Bearer {TOKEN}"}


def test_a_token_that_cannot_be_sent_is_told_and_not_shown(server: HubServer) -> None:
    with pytest.raises(OctavoError, match="HF_TOKEN") as caught:
        listed(server, token=f"{TOKEN}\n{TOKEN}")
    assert caught.value.kind is BAD_SETTING
    assert TOKEN not in str(caught.value)
    assert server.asked == []


def refused_setting(environ: dict[str, str]) -> str:
    async def main() -> None:
        async with connect(HubModel(repository="a/b"), "", environ):
            pass

    with pytest.raises(OctavoError) as caught:
        asyncio.run(main())
    assert caught.value.kind is BAD_SETTING
    return str(caught.value)


@pytest.mark.parametrize(
    "endpoint",
    ["file:///etc", "hub.example.org", "http://", "ftp://x", "https://me:geheim@hub.example.org"],
)
def test_an_endpoint_is_an_address(endpoint: str) -> None:
    assert "geheim" not in refused_setting({"HF_ENDPOINT": endpoint})


@pytest.mark.parametrize("proxy", ["http://me:geheim/x@proxy:3128", "ftp://me:geheim@proxy"])
def test_a_proxy_that_cannot_be_used_is_told_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    said = refused_setting({})
    assert "HTTPS_PROXY" in said
    assert "geheim" not in said


CLIENT = """
import json, sys
from huggingface_hub import HfApi, snapshot_download
endpoint, repository, folder = sys.argv[1:]
entries = HfApi(endpoint=endpoint).list_repo_tree(repository, revision="v1", recursive=False)
print(json.dumps({e.path: [e.size, e.blob_id, e.lfs and e.lfs.sha256] for e in entries
                  if hasattr(e, "size")}))
snapshot_download(repository, revision="v1", local_dir=folder, endpoint=endpoint)
"""


def test_the_hub_s_own_client_sees_and_loads_the_same(tmp_path: Path) -> None:
    """What these tests hold true is a hub, not our idea of one."""
    files = {name: data for name, data in FILES.items() if "\\" not in name}
    with serving_hub(files) as server:
        environ = {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home")}
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, server.url, REPOSITORY, str(tmp_path / "m")],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        listing = listed(server, token="")
    theirs = json.loads(done.stdout)
    assert {file.name: file.size for file in listing.files} == {n: e[0] for n, e in theirs.items()}
    for file in listing.files:
        _, blob, lfs = theirs[file.name]
        assert (file.sha256, file.git_sha1) == ((lfs, "") if lfs else ("", blob))
    for name, data in files.items():
        assert (tmp_path / "m" / name).read_bytes() == data
