"""An S3 server on loopback, as far as a reader needs one: list, get, conditions, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tests.loader.faulty_server import Answer, FaultyServer, serving

BUCKET: Final = "weights"
PREFIX: Final = "llama/tiny"
MODEL: Final = f"s3://{BUCKET}/{PREFIX}"
_PAGE: Final = 3
_TIME: Final = "2026-01-01T00:00:00.000Z"


class S3Server(FaultyServer):
    """One bucket; ETags are MD5s unless `etags` says otherwise."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__()
        self.objects = dict(objects)
        self.etags: dict[str, str] = {}
        self.key = "reader"

    def etag(self, key: str) -> str:
        return self.etags.get(key, f'"{hashlib.md5(self.objects[key]).hexdigest()}"')

    def answer(self, path: str, query: str, headers: Mapping[str, str]) -> Answer:
        lower = {name.lower(): value for name, value in headers.items()}
        if f"Credential={self.key}/" not in lower.get("authorization", ""):
            return _error(403, "InvalidAccessKeyId")
        bucket, _, key = path.removeprefix("/").partition("/")
        if bucket != BUCKET:
            return _error(404, "NoSuchBucket")
        arguments = parse_qs(query)
        if "list-type" in arguments:
            return self._list(arguments)
        if key not in self.objects:
            return _error(404, "NoSuchKey")
        if lower.get("if-match", self.etag(key)) != self.etag(key):
            return _error(412, "PreconditionFailed")
        shown = {"ETag": self.etag(key), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        return Answer(headers=shown, body=self.objects[key])

    def _list(self, arguments: dict[str, list[str]]) -> Answer:
        prefix = arguments.get("prefix", [""])[0]
        keys = [
            key
            for key in sorted(self.objects)
            if key.startswith(prefix) and "/" not in key.removeprefix(prefix)
        ]
        first = int(arguments.get("continuation-token", ["0"])[0])
        page = keys[first : first + _PAGE]
        more = first + _PAGE < len(keys)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_TIME}</LastModified>"
            f"<ETag>{escape(self.etag(key))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{first + _PAGE}</NextContinuationToken>" if more else ""
        text = (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{BUCKET}</Name><Prefix>{prefix}</Prefix><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}</ListBucketResult>"
        )
        return Answer(headers={"Content-Type": "application/xml"}, body=text.encode())


def _error(status: int, code: str) -> Answer:
    text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return Answer(status=status, headers={"Content-Type": "application/xml"}, body=text.encode())


def environ(server: S3Server, key: str = "reader") -> dict[str, str]:
    """The variables by which a loader finds the server."""
    return {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": "nobody checks it here",
    }


@contextmanager
def serving_s3(files: Mapping[str, bytes]) -> Iterator[S3Server]:
    """Runs a bucket that has the files under PREFIX, and something beside it."""
    objects = {f"{PREFIX}/{name}": data for name, data in files.items()}
    server = S3Server(objects | {"llama/tiny-2/config.json": b"{}", f"{PREFIX}/sub/x.gguf": b"x"})
    with serving(server):
        yield server
