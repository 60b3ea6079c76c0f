"""Names of models that can be loaded: hf://org/name and s3://bucket/prefix.

Either may have the name of one GGUF file behind it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from octavo.v1.errors import BAD_SETTING, OctavoError

_NAME: Final = r"\w[\w.-]{0,95}"
_FILE: Final = r"\w[\w.+-]{0,250}\.gguf"
_HUB: Final = re.compile(rf"hf://(?P<repository>{_NAME}/{_NAME})(/(?P<file>{_FILE}))?", re.ASCII)
_SEGMENT: Final = r"(?!\.{1,2}(/|$))[\w.+=@,~-]{1,255}"
_BUCKET: Final = re.compile(
    rf"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{{1,61}}[a-z0-9])/(?P<prefix>{_SEGMENT}(/{_SEGMENT})*)/?",
    re.ASCII,
)
_REVISION: Final = re.compile(r"\w[\w.+-]{0,99}(/\w[\w.+-]{0,99}){0,5}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A repository of the hub, or one GGUF file of it."""

    repository: str
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketModel:
    """Objects under a prefix of an S3 bucket, or one GGUF object there."""

    bucket: str
    prefix: str
    file: str = ""


def parse(uri: str) -> HubModel | BucketModel:
    """Returns what a URI names; raises OctavoError BAD_SETTING for one that names nothing here."""
    if match := _HUB.fullmatch(uri):
        return HubModel(repository=match["repository"], file=match["file"] or "")
    if match := _BUCKET.fullmatch(uri):
        prefix, _, last = match["prefix"].rpartition("/")
        if re.fullmatch(_FILE, last, re.ASCII):
            return BucketModel(bucket=match["bucket"], prefix=prefix, file=last)
        return BucketModel(bucket=match["bucket"], prefix=match["prefix"])
    reason = "is neither hf://ORG/NAME nor s3://BUCKET/PREFIX, with or without /FILE.gguf"
    raise OctavoError(BAD_SETTING, key="model", value=uri, origin="loader", reason=reason)


def check_revision(revision: str) -> None:
    """Raises OctavoError BAD_SETTING for what cannot be a revision; empty is one."""
    if revision and not _REVISION.fullmatch(revision):
        reason = "is no branch, tag or commit"
        raise OctavoError(
            BAD_SETTING, key="revision", value=revision, origin="loader", reason=reason
        )
