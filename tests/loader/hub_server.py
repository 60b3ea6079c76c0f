"""A hub on loopback: the few addresses that are used of it, large files on a host of their own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs, quote

from tests.loader.faulty_server import Answer, FaultyServer, serving

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY: Final = "some-org/Tiny-1B"
FORMER: Final = "old-org/Tiny"
"""What the repository was called before."""
MODEL: Final = f"hf://{REPOSITORY}"
_LARGE: Final = (".safetensors", ".gguf", ".bin")
_PAGE: Final = 5


class Storage(FaultyServer):
    """Where large files lie: by signed addresses, so it refuses a token."""

    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[str, bytes] = {}

    def answer(self, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        if "Authorization" in headers or "Signature=" not in query:
            return Answer(status=400)
        if path.removeprefix("/") not in self.contents:
            return Answer(status=404)
        return Answer(body=self.contents[path.removeprefix("/")])


class HubServer(FaultyServer):
    """One repository at one commit, which is `main` and `v1`.

    Args:
        files: content by path.
        storage: gets the large ones.
        token: who reads needs it, if it is not empty.
    """

    def __init__(self, files: Mapping[str, bytes], storage: Storage, token: str = "") -> None:
        super().__init__()
        self.files = dict(files)
        self.storage = storage
        self.token = token
        self.gated = False
        self.commit = COMMIT

    def answer(self, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        if f"/{FORMER}/" in path:
            location = f"{path.replace(FORMER, REPOSITORY)}?{query}"
            return Answer(status=307, headers={"Location": location})
        refusal = self._refusal(headers.get("Authorization", ""))
        if refusal is not None:
            return refusal
        api = f"/api/models/{REPOSITORY}"
        about = re.fullmatch(rf"{api}/(revision|tree)/(.+)", path)
        if about is not None:
            if about[2] not in ("main", "v1", self.commit):
                return Answer(status=404, headers={"X-Error-Code": "RevisionNotFound"})
            if about[1] == "tree":
                return self._tree(parse_qs(query))
            commit = json.dumps({"id": REPOSITORY, "modelId": REPOSITORY, "sha": self.commit})
            return Answer(body=commit.encode())
        prefix = f"/{REPOSITORY}/resolve/{self.commit}/"
        if path.startswith(prefix) and path.removeprefix(prefix) in self.files:
            return self._file(path.removeprefix(prefix))
        code = "EntryNotFound" if path.startswith(prefix) else "RepoNotFound"
        return Answer(status=404, headers={"X-Error-Code": code})

    def _refusal(self, authorization: str) -> Answer | None:
        if authorization not in ("", f"Bearer {self.token}"):
            said = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return Answer(status=401, headers=said)
        if self.gated:
            status = 403 if authorization else 401
            return Answer(status=status, headers={"X-Error-Code": "GatedRepo"})
        if self.token and not authorization:
            return Answer(status=401, headers={"X-Error-Code": "RepoNotFound"})
        return None

    def _tree(self, query: dict[str, list[str]]) -> Answer:
        recursive = query.get("recursive", ["false"])[0].lower() == "true"
        names = [name for name in sorted(self.files) if recursive or "/" not in name]
        folders = sorted({name.partition("/")[0] for name in self.files if "/" in name})
        entries = [self._entry(name) for name in names]
        entries += [{"type": "directory", "path": name, "oid": "0" * 40} for name in folders]
        first = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if first + _PAGE < len(entries):
            more = f"recursive={str(recursive).lower()}&cursor={first + _PAGE}"
            link = f"{self.url}/api/models/{REPOSITORY}/tree/{self.commit}?{more}"
            headers["Link"] = f'<{link}>; rel="next"'
        body = json.dumps(entries[first : first + _PAGE]).encode()
        return Answer(headers=headers, body=body)

    def _entry(self, name: str) -> dict[str, object]:
        data = self.files[name]
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(data)}
        if not name.endswith(_LARGE):
            return entry | {"oid": git_sha1(data)}
        pointer = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256(data)}\n".encode()
        )
        lfs = {"oid": sha256(data), "size": len(data), "pointerSize": len(pointer)}
        return entry | {"oid": git_sha1(pointer), "lfs": lfs}

    def _file(self, name: str) -> Answer:
        data = self.files[name]
        headers = {"X-Repo-Commit": self.commit}
        if not name.endswith(_LARGE):
            return Answer(headers=headers | {"ETag": f'"{git_sha1(data)}"'}, body=data)
        self.storage.contents[sha256(data)] = data
        location = f"{self.storage.url}/{sha256(data)}?Signature={quote(name)}"
        headers |= {
            "Location": location,
            "X-Linked-Etag": f'"{sha256(data)}"',
            "X-Linked-Size": str(len(data)),
        }
        return Answer(status=302, headers=headers)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@contextmanager
def serving_hub(files: Mapping[str, bytes], token: str = "") -> Iterator[HubServer]:
    """Runs a hub and its storage."""
    storage = Storage()
    hub = HubServer(files, storage, token)
    with serving(storage), serving(hub):
        yield hub
