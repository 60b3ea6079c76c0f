"""The Hugging Face hub, or what speaks like it, as a source: one commit, and ranges of its files.

The token goes to the hub's own address and nowhere else: files lie on other hosts, whose addresses
are signed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Final, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from octavo.loader import credentials
from octavo.loader.model_uri import HubModel
from octavo.loader.source import Listing, RemoteFile, TransientError
from octavo.runtime.client_errors import text_of
from octavo.runtime.settings import MASK
from octavo.v1.errors import (
    BAD_SETTING,
    MODEL_FORBIDDEN,
    MODEL_MISSING,
    SOURCE_UNREACHABLE,
    ErrorKind,
    OctavoError,
)

ENDPOINT: Final = "https://huggingface.co"
PIECE_BYTES: Final = 1 << 30
"""Asked for at once: hosts behind the hub cut answers of tens of gigabytes, and signatures age."""

_MAX_JSON_BYTES: Final = 64 << 20
_MAX_PAGES: Final = 100
_MAX_REDIRECTS: Final = 5
_TIMEOUT: Final = httpx.Timeout(30.0, connect=10.0, pool=None)
"""Of one wait for bytes, not of a transfer."""
_BUSY: Final = (408, 425, 429)
_HEADERS: Final = {"User-Agent": "octavo-loader", "Accept-Encoding": "identity"}
_PROXIES: Final = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY"
_RESET: Final = re.compile(r";\s*t=(\d{1,5})\b", re.ASCII)
"""Seconds until a limit ends, in the header RateLimit."""

T = TypeVar("T")
_Bytes = Annotated[int, msgspec.Meta(ge=0)]


class _Commit(msgspec.Struct):
    sha: str


class _Lfs(msgspec.Struct):
    oid: str
    size: _Bytes


class _Entry(msgspec.Struct):
    type: str
    path: str
    oid: str
    size: _Bytes = 0
    lfs: _Lfs | None = None


@asynccontextmanager
async def connect(model: HubModel, revision: str, environ: Mapping[str, str]) -> AsyncIterator[Hub]:
    """Yields the hub that HF_ENDPOINT names, as the reader that HF_TOKEN names.

    Raises:
        OctavoError: HF_ENDPOINT or the proxy is no address, or HF_TOKEN no token.
    """
    endpoint = environ.get("HF_ENDPOINT", "").strip() or ENDPOINT
    if not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./-]*)?", endpoint, re.ASCII):
        reason = "is no address of http or https without a user and a password"
        raise _bad_setting("HF_ENDPOINT", reason)
    token = credentials.header(environ, "HF_TOKEN")
    async with _client() as client:
        yield Hub(client, model, revision, endpoint=endpoint, token=token)


def _client() -> httpx.AsyncClient:
    """Returns a client that goes by the proxy of the environment, if there is one."""
    try:
        return httpx.AsyncClient(timeout=_TIMEOUT, follow_redirects=False)
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        reason = "is no address of a proxy of http or https; special characters of a password are"
        raise _bad_setting(_PROXIES, f"{reason} written as %XX") from error


def _bad_setting(name: str, reason: str) -> OctavoError:
    """Returns the error about a variable, whose value may hold a password."""
    return OctavoError(BAD_SETTING, key=name, value=MASK, origin="environment", reason=reason)


class Hub:
    """One repository; a `Source`.

    Args:
        client: makes the connections; follows no redirects by itself.
        model: the repository.
        revision: branch, tag or commit; empty is the main branch.
        endpoint: where the hub is.
        token: of the reader, if any.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: HubModel,
        revision: str,
        *,
        endpoint: str,
        token: str,
    ) -> None:
        self._client = client
        self._model = model
        self._revision = revision or "main"
        self._endpoint = httpx.URL(endpoint.rstrip("/"))
        self._token = token
        self.place = self._endpoint.host

    async def list(self) -> Listing:
        """Returns the commit and the files at its root."""
        api = f"{self._endpoint}/api/models/{self._model.repository}"
        commit, _ = await self._json(f"{api}/revision/{quote(self._revision, safe='')}", _Commit)
        files: list[RemoteFile] = []
        page = f"{api}/tree/{quote(commit.sha, safe='')}?recursive=false&expand=false"
        for _ in range(_MAX_PAGES):
            entries, page = await self._json(page, list[_Entry])
            files += [_file(entry) for entry in entries if entry.type == "file"]
            if not page:
                return Listing(revision=commit.sha, files=tuple(files))
        raise self._error(SOURCE_UNREACHABLE, f"lists the files on more than {_MAX_PAGES} pages")

    async def read(
        self, listing: Listing, file: RemoteFile, start: int
    ) -> AsyncGenerator[bytes, None]:
        """Yields up to PIECE_BYTES of a file from `start` on."""
        commit, name = quote(listing.revision, safe=""), quote(file.name, safe="")
        url = f"{self._endpoint}/{self._model.repository}/resolve/{commit}/{name}"
        end = min(start + PIECE_BYTES, file.size) - 1
        async with self._open(url, {"Range": f"bytes={start}-{end}"}) as response:
            if response.status_code == httpx.codes.OK:
                skip = start  # it has no ranges and sends everything
            elif response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                skip = 0
            else:
                raise TransientError(f"{response.url.host} answers another range")
            async for data in response.aiter_raw():
                if len(data) > skip:
                    yield data[skip:]
                skip = max(0, skip - len(data))

    async def _json(self, url: str, kind: type[T]) -> tuple[T, str]:
        """Returns a decoded answer and the address of the next page, empty for none."""
        body = bytearray()
        async with self._open(url, {}) as response:
            async for data in response.aiter_raw():
                body += data
                if len(body) > _MAX_JSON_BYTES:
                    raise self._error(SOURCE_UNREACHABLE, "answers without end")
            link = response.links.get("next", {}).get("url", "")
        try:
            value = msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise self._error(SOURCE_UNREACHABLE, f"does not answer as a hub: {error}") from error
        return value, str(response.url.join(link)) if link else ""

    @asynccontextmanager
    async def _open(self, url: str, headers: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """Follows redirects to an answer with a body."""
        target = httpx.URL(url)
        try:
            for _ in range(_MAX_REDIRECTS):
                request = self._client.build_request("GET", target, headers={**_HEADERS, **headers})
                if self._token and _origin(target) == _origin(self._endpoint):
                    request.headers["Authorization"] = f"Bearer {self._token}"
                response = await self._client.send(request, stream=True)
                try:
                    if not response.has_redirect_location:
                        self._check(response)
                        yield response
                        return
                    target = self._redirected(response)
                finally:
                    await response.aclose()
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise TransientError(f"{target.host}: {text_of(error)}") from error
        raise self._error(SOURCE_UNREACHABLE, f"redirects more than {_MAX_REDIRECTS} times")

    def _redirected(self, response: httpx.Response) -> httpx.URL:
        target = response.url.join(response.headers["Location"])
        if target.scheme not in ("https", response.url.scheme):
            reason = f"redirects from {response.url.scheme} to {target.scheme}, which is refused"
            raise self._error(SOURCE_UNREACHABLE, reason)
        return target

    def _check(self, response: httpx.Response) -> None:
        """Raises what a status means unless it is a good one."""
        status = response.status_code
        if status in (200, 206):
            return
        if status in _BUSY or status >= 500:
            raise TransientError(
                f"{response.url.host} answers {status}", retry_after_s=_retry_after_s(response)
            )
        if _origin(response.url) != _origin(self._endpoint):
            # A signature that ran out is answered so; the hub gives a new one.
            raise TransientError(f"{response.url.host} answers {status}")
        raise self._refusal(response)

    def _refusal(self, response: httpx.Response) -> OctavoError:
        status = response.status_code
        code = response.headers.get("X-Error-Code", "")
        said = response.headers.get("X-Error-Message", "")
        if code == "GatedRepo":
            whose = "the account of HF_TOKEN has no access to it" if self._token else "no HF_TOKEN"
            return self._error(MODEL_FORBIDDEN, f"it is gated, and {whose}")
        if code == "RevisionNotFound":
            return self._error(MODEL_MISSING, f"there is no revision '{self._revision}' of it")
        if code == "EntryNotFound":
            return self._error(MODEL_MISSING, "a file of it is gone")
        if status == 401 and said.startswith("Invalid credentials"):
            return self._error(MODEL_FORBIDDEN, "the token in HF_TOKEN is not valid")
        if code == "RepoNotFound" or status in (401, 404):
            return self._error(
                MODEL_MISSING, "there is none of this name, or it is private: see HF_TOKEN"
            )
        if status == 403:
            return self._error(MODEL_FORBIDDEN, _shown(said) or "access is not allowed")
        return self._error(SOURCE_UNREACHABLE, f"answers {status}")

    def _error(self, kind: ErrorKind, reason: str) -> OctavoError:
        model = f"hf://{self._model.repository}"
        return OctavoError(kind, place=self.place, model=model, reason=reason)


def _file(entry: _Entry) -> RemoteFile:
    if entry.lfs is not None:
        return RemoteFile(name=entry.path, size=entry.lfs.size, sha256=entry.lfs.oid)
    return RemoteFile(name=entry.path, size=entry.size, git_sha1=entry.oid)


def _origin(url: httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _retry_after_s(response: httpx.Response) -> float:
    """Returns how long the answer asks to wait; 0 where it asks nothing that is understood."""
    seconds = response.headers.get("Retry-After", "")
    if re.fullmatch(r"\d{1,5}", seconds, re.ASCII):
        return float(seconds)
    reset = _RESET.search(response.headers.get("RateLimit", ""))
    return float(reset[1]) if reset and response.status_code == 429 else 0.0


def _shown(text: str) -> str:
    """Returns a foreign text as one short line."""
    return ascii(text[:200])[1:-1]
