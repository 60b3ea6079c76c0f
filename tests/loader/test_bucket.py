"""The bucket's adapter: the real S3 client against an S3 server on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from tests.loader.faulty_server import Fault
from tests.loader.loading import SHARDS, repository
from tests.loader.s3_server import BUCKET, PREFIX, S3Server, environ, serving_s3

from octavo.loader.bucket import Bucket
from octavo.loader.model_uri import BucketModel
from octavo.loader.source import Listing, RemoteFile, TransientError
from octavo.v1.errors import (
    BAD_SETTING,
    MODEL_FORBIDDEN,
    MODEL_MISSING,
    ErrorKind,
    OctavoError,
)

FILES = repository()
DATA = FILES[SHARDS[0]]
KEY = f"{PREFIX}/{SHARDS[0]}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with serving_s3(FILES) as s3:
        for name, value in environ(s3).items():
            monkeypatch.setenv(name, value)
        yield s3


def bucket(
    server: S3Server, revision: str = "", *, check_etags: bool = True, prefix: str = PREFIX
) -> Bucket:
    model = BucketModel(bucket=BUCKET, prefix=prefix)
    return Bucket(model, revision, check_etags=check_etags, environ=environ(server))


def listed(source: Bucket) -> Listing:
    async def main() -> Listing:
        return await source.list()

    return asyncio.run(main())


def read(source: Bucket, file: RemoteFile, start: int = 0) -> bytes:
    async def main() -> bytes:
        listing = Listing(revision="r", files=(file,))
        async with aclosing(source.read(listing, file, start)) as pieces:
            return b"".join([data async for data in pieces])

    return asyncio.run(main())


def file_of(listing: Listing, name: str = SHARDS[0]) -> RemoteFile:
    return next(file for file in listing.files if file.name == name)


def test_the_objects_right_under_the_prefix_are_listed(server: S3Server) -> None:
    listing = listed(bucket(server))
    assert {file.name: file.size for file in listing.files} == {
        name: len(data) for name, data in FILES.items() if "/" not in name
    }
    assert file_of(listing).etag == f'"{file_of(listing).md5}"'


def test_the_revision_is_that_of_the_objects(server: S3Server) -> None:
    before = listed(bucket(server))
    assert listed(bucket(server)) == before
    assert listed(bucket(server, before.revision)) == before
    server.objects[KEY] = DATA[:-1] + b"x"
    after = listed(bucket(server))
    assert after.revision != before.revision
    with pytest.raises(OctavoError, match=f"is {after.revision} now, not {before.revision}"):
        listed(bucket(server, before.revision))
    server.etags[KEY] = '"another upload of the same"'
    assert listed(bucket(server)).revision != after.revision


@pytest.mark.parametrize("start", [0, 1, 100_000, len(DATA) - 1])
def test_an_object_is_read_from_any_byte_on(server: S3Server, start: int) -> None:
    source = bucket(server)
    assert read(source, file_of(listed(source)), start) == DATA[start:]
    assert server.asked[-1].range == f"bytes={start}-"


def test_an_object_at_the_root_of_a_bucket(server: S3Server) -> None:
    server.objects["tiny.gguf"] = b"GGUF"
    source = bucket(server, prefix="")
    assert read(source, file_of(listed(source), "tiny.gguf")) == b"GGUF"


def test_etags_of_parts_and_those_of_encrypted_buckets_are_no_digests(server: S3Server) -> None:
    server.etags[KEY] = '"0123456789abcdef0123456789abcdef-7"'
    listing = listed(bucket(server))
    assert file_of(listing).md5 == ""
    assert file_of(listing, "config.json").md5 != ""
    assert {file.md5 for file in listed(bucket(server, check_etags=False)).files} == {""}


def test_an_object_that_was_replaced_is_not_mixed_with_the_old_one(server: S3Server) -> None:
    source = bucket(server)
    file = file_of(listed(source))
    server.objects[KEY] = DATA[:-1] + b"x"
    with pytest.raises(OctavoError, match="it was replaced while it was loaded") as caught:
        read(source, file, 100)
    assert caught.value.kind is MODEL_MISSING


@pytest.mark.parametrize(
    ("change", "kind", "reason"),
    [
        ({"key": "stranger"}, MODEL_FORBIDDEN, "may not read it (InvalidAccessKeyId)"),
        ({"objects": {}}, MODEL_MISSING, "there are no objects under this prefix"),
    ],
)
def test_refusals_are_told_at_once(
    server: S3Server, change: dict[str, object], kind: ErrorKind, reason: str
) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    with pytest.raises(OctavoError) as caught:
        listed(bucket(server))
    assert caught.value.kind is kind
    assert reason in caught.value.message
    assert "s3://weights/llama/tiny" in caught.value.message


def test_a_bucket_that_is_not_there_is_missing(server: S3Server) -> None:
    model = BucketModel(bucket="others", prefix="x")
    with pytest.raises(OctavoError, match=r"no such bucket or object .NoSuchBucket.") as caught:
        listed(Bucket(model, "", check_etags=True, environ=environ(server)))
    assert caught.value.kind is MODEL_MISSING


@pytest.mark.parametrize(
    "fault",
    [
        Fault(kind="status", status=503),
        Fault(kind="status", status=500),
        Fault(kind="status", status=429),
        Fault(kind="cut", at=70_000),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.status}",
)
def test_what_may_be_over_soon_is_transient(server: S3Server, fault: Fault) -> None:
    source = bucket(server)
    file = file_of(listed(source))
    server.faults = [fault]
    with pytest.raises(TransientError) as caught:
        read(source, file)
    assert "\n" not in str(caught.value)
    assert "nobody checks it here" not in str(caught.value)


def test_white_space_around_credentials_is_not_sent(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = environ(server) | {"AWS_SESSION_TOKEN": "session"}
    found = {name: value if "URL" in name else f"{value}\n" for name, value in found.items()}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    source = Bucket(BucketModel(bucket=BUCKET, prefix=PREFIX), "", check_etags=True, environ=found)
    assert file_of(listed(source)).size == len(DATA)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"])
def test_credentials_that_cannot_be_sent_are_told_and_not_shown(
    server: S3Server, name: str
) -> None:
    found = environ(server) | {name: "geheim\nx"}
    with pytest.raises(OctavoError, match=name) as caught:
        Bucket(BucketModel(bucket=BUCKET, prefix=PREFIX), "", check_etags=True, environ=found)
    assert caught.value.kind is BAD_SETTING
    assert "geheim" not in str(caught.value)


def test_a_password_in_the_endpoint_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"AWS_ENDPOINT_URL": "http://me:geheim@127.0.0.1:9", "AWS_REGION": "x"}
    found |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    source = Bucket(BucketModel(bucket=BUCKET, prefix=PREFIX), "", check_etags=True, environ=found)
    with pytest.raises(TransientError, match=r"127\.0\.0\.1") as caught:
        listed(source)
    assert "geheim" not in str(caught.value)


def test_a_wrong_region_is_told_at_once(server: S3Server) -> None:
    server.faults = [Fault(kind="status", status=301)]
    with pytest.raises(OctavoError, match="it is not in AWS_REGION"):
        listed(bucket(server))


def test_no_network_is_transient(server: S3Server) -> None:
    source = bucket(server)
    server.shutdown()
    server.server_close()
    with pytest.raises(TransientError, match="error sending request"):
        listed(source)
