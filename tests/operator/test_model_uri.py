from __future__ import annotations

import pytest
from hypothesis import given
from tests.operator.specs import URIS

from octavo.operator.model_uri import MAX_LENGTH, parse


@pytest.mark.parametrize(
    ("text", "claim", "image", "path", "file"),
    [
        ("hf://org/name", "", "", "", ""),
        ("hf://org/name.gguf", "", "", "", ""),
        ("hf://org/name/q4.gguf", "", "", "", "q4.gguf"),
        ("s3://my-bucket/a/b", "", "", "", ""),
        ("s3://my-bucket/a/q4.gguf", "", "", "", "q4.gguf"),
        ("s3://my-bucket/q4.gguf", "", "", "", "q4.gguf"),
        ("pvc://weights", "weights", "", "", ""),
        ("pvc://weights/a/b.gguf", "weights", "", "a/b.gguf", ""),
        ("oci://registry:5000/team/model:1@sha256:00", "",
         "registry:5000/team/model:1@sha256:00", "", ""),
        ("file:///models/a.gguf", "", "", "models/a.gguf", ""),
    ],
)  # fmt: skip
def test_a_uri_says_where_its_model_is(
    text: str, claim: str, image: str, path: str, file: str
) -> None:
    uri = parse(text)
    assert uri is not None
    assert uri.file == file
    if uri.scheme == "pvc":
        assert uri.claim == claim
    if uri.scheme == "oci":
        assert uri.image == image
    if not uri.is_loaded:
        assert uri.path == path


@pytest.mark.parametrize(
    "text",
    [
        "", "hf://", "hf://name", "hf://a/b/c", "hf://../b", "s3://bucket", "s3://B/x", "http://x/y",
        "pvc://claim/../../etc", "pvc://claim/.hidden", "pvc://claim//a", "file://etc/x", "file:///",
        "file:///a/../b", "hf://org/name; touch /tmp/p", "hf://org/$(id)", "oci://-x", "hf://o/n\n",
        "hf://org/né", "pvc://" + "a/" * 300,
    ],
)  # fmt: skip
def test_what_is_no_uri_of_a_model_is_none(text: str) -> None:
    assert parse(text) is None


@given(URIS)
def test_no_path_leads_out_of_its_volume(text: str) -> None:
    uri = parse(text)
    assert uri is not None
    assert len(text) <= MAX_LENGTH
    if uri.scheme in ("pvc", "file"):
        assert not uri.path.startswith("/")
        assert not any(part.startswith(".") for part in uri.path.split("/"))
    assert "/" not in uri.file


def test_another_revision_is_another_model() -> None:
    uri = parse("hf://org/name")
    assert uri is not None
    keys = [uri.key(revision) for revision in ("", "main", "v1")]
    assert len(set(keys)) == 3
    assert all(len(key) == 16 for key in keys)
