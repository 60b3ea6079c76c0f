"""An S3 bucket as a source: the objects right under a prefix, as they were when they were listed.

Credentials, region and endpoint come from the AWS_* variables, which the client reads itself; of
credentials it gets what can be sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

import msgspec
import obstore
from obstore import exceptions
from obstore.store import S3Store

from octavo.loader import credentials
from octavo.loader.model_uri import BucketModel
from octavo.loader.source import Listing, RemoteFile, TransientError
from octavo.v1.errors import (
    MODEL_FORBIDDEN,
    MODEL_MISSING,
    SOURCE_UNREACHABLE,
    ErrorKind,
    OctavoError,
)

if TYPE_CHECKING:
    from obstore.store import S3Config

_MD5: Final = re.compile(r'"([0-9a-f]{32})"', re.ASCII)
_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})\b", re.ASCII)
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>", re.ASCII)
_USER: Final = re.compile(r"//[^/\s]*@")
_BUSY: Final = (408, 425, 429)
_CHUNK_BYTES: Final = 1
"""As they come: what a larger chunk had gathered would be lost with its connection."""


class Bucket:
    """The objects under one prefix; a `Source`.

    Args:
        model: bucket and prefix.
        revision: what `list` has to find; empty takes what is there.
        check_etags: whether an ETag that looks like an MD5 is one.
        environ: credentials, and whether the endpoint is plain HTTP.

    Raises:
        OctavoError: a credential is none.
    """

    def __init__(
        self, model: BucketModel, revision: str, *, check_etags: bool, environ: Mapping[str, str]
    ) -> None:
        self._model = model
        self._revision = revision
        self._check_etags = check_etags
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL", "")
        self.place = f"bucket {model.bucket}"
        self._store = S3Store(
            model.bucket,
            config=_credentials(environ),
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=30),
                "timeout": timedelta(days=1),  # of a whole answer
            },
            retry_config={"max_retries": 0},
        )

    async def list(self) -> Listing:
        """Returns the objects; the revision is a digest of names, sizes, ETags and versions."""
        with self._errors():
            found = await obstore.list_with_delimiter_async(self._store, self._model.prefix or None)
        files = []
        known = []
        for meta in sorted(found["objects"], key=lambda meta: meta["path"]):
            name = meta["path"].rpartition("/")[2]
            etag = meta["e_tag"] or ""
            match = _MD5.fullmatch(etag) if self._check_etags else None
            files.append(
                RemoteFile(name=name, size=meta["size"], etag=etag, md5=match[1] if match else "")
            )
            known.append((name, meta["size"], etag, meta["version"] or ""))
        if not files:
            raise self._error(MODEL_MISSING, "there are no objects under this prefix")
        revision = hashlib.sha256(msgspec.json.encode(known)).hexdigest()[:40]
        if self._revision not in ("", revision):
            raise self._error(
                MODEL_MISSING, f"its revision is {revision} now, not {self._revision}"
            )
        return Listing(revision=revision, files=tuple(files))

    async def read(
        self, _listing: Listing, file: RemoteFile, start: int, /
    ) -> AsyncGenerator[bytes, None]:
        """Yields a file from `start` on; refuses one that was replaced since it was listed."""
        options: obstore.GetOptions = {"range": {"offset": start}}
        if file.etag:
            options["if_match"] = file.etag
        with self._errors():
            path = f"{self._model.prefix}/{file.name}".removeprefix("/")
            result = await obstore.get_async(self._store, path, options=options)
            async for data in result.stream(min_chunk_size=_CHUNK_BYTES):
                yield bytes(data)

    @contextmanager
    def _errors(self) -> Generator[None, None, None]:
        try:
            yield
        except exceptions.PreconditionError as error:
            raise self._error(MODEL_MISSING, "it was replaced while it was loaded") from error
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise self._error(MODEL_FORBIDDEN, "these credentials may not read it") from error
        except FileNotFoundError as error:
            raise self._error(MODEL_MISSING, "there is no such bucket or object") from error
        except exceptions.GenericError as error:
            raise self._answered(_first_line(error)) from error
        except (exceptions.BaseError, ValueError) as error:
            raise self._error(SOURCE_UNREACHABLE, _first_line(error)) from error

    def _answered(self, line: str) -> Exception:
        """Returns what an error means that the client has no name for."""
        match = _STATUS.search(line)
        status = int(match[1]) if match else 0
        if status in (401, 403):
            return self._error(MODEL_FORBIDDEN, f"these credentials may not read it{_code(line)}")
        if status == 404:
            return self._error(MODEL_MISSING, f"there is no such bucket or object{_code(line)}")
        if "configured region" in line:
            return self._error(SOURCE_UNREACHABLE, "it is not in AWS_REGION")
        if 300 <= status < 500 and status not in _BUSY:
            return self._error(SOURCE_UNREACHABLE, f"answers {status}{_code(line)}")
        return TransientError(f"{self.place} answers {status}{_code(line)}" if status else line)

    def _error(self, kind: ErrorKind, reason: str) -> OctavoError:
        model = f"s3://{self._model.bucket}/{self._model.prefix}"
        return OctavoError(kind, place=self.place, model=model, reason=reason)


def _credentials(environ: Mapping[str, str]) -> S3Config:
    """Returns what goes into headers: what the client reads itself it does not look at."""
    found = {
        "access_key_id": credentials.header(environ, "AWS_ACCESS_KEY_ID"),
        "secret_access_key": credentials.stripped(environ, "AWS_SECRET_ACCESS_KEY"),
        "session_token": credentials.header(environ, "AWS_SESSION_TOKEN"),
        "region": credentials.header(environ, "AWS_REGION"),
    }
    return cast("S3Config", {key: value for key, value in found.items() if value})


def _first_line(error: Exception) -> str:
    """Returns what an error says, without a user and a password in the address of an endpoint."""
    return _USER.sub("//", str(error).strip().partition("\n")[0])[:500]


def _code(line: str) -> str:
    """Returns what S3 calls an error."""
    match = _CODE.search(line)
    return f" ({match[1]})" if match else ""
