"""Which URIs can be loaded; the operator's and the loader's idea of them is one."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.loader import model_uri
from octavo.loader.model_uri import BucketModel, HubModel
from octavo.operator import model_uri as operator_uri
from octavo.v1.errors import BAD_SETTING, OctavoError


@pytest.mark.parametrize(
    ("uri", "model"),
    [
        ("hf://some-org/Tiny-1B", HubModel(repository="some-org/Tiny-1B")),
        ("hf://a/b/c.Q4_K_M.gguf", HubModel(repository="a/b", file="c.Q4_K_M.gguf")),
        ("s3://models/llama", BucketModel(bucket="models", prefix="llama")),
        ("s3://models/a/b=1/c/", BucketModel(bucket="models", prefix="a/b=1/c")),
        ("s3://models/a/b.gguf", BucketModel(bucket="models", prefix="a", file="b.gguf")),
        ("s3://models/b.gguf", BucketModel(bucket="models", prefix="", file="b.gguf")),
    ],
)
def test_a_uri_names_a_model(uri: str, model: HubModel | BucketModel) -> None:
    assert model_uri.parse(uri) == model


@pytest.mark.parametrize(
    "uri",
    [
        *("", "smollm2", "a/b", "/models/x", "pvc://claim/x", "file:///x", "oci://image:1"),
        *("hf://a", "hf://a/b/c", "hf://a/../b", "hf:///b", "hf://a/b?x=1", "hf://a/b/../c.gguf"),
        *("hf://a/b\n", "hf://ä/b", "hf://.a/b", "hf://a/b/c.bin", "hf://a/b@main"),
        *("s3://models", "s3://models/", "s3://models//a", "s3://models/../a", "s3://models/a/."),
        *("s3://Models/a", "s3://m/a", "s3://models/a b", "s3://models/a\0", "s3://models/a\\b"),
        "http://models/a",
    ],
)
def test_what_is_no_such_uri_is_refused(uri: str) -> None:
    with pytest.raises(OctavoError) as caught:
        model_uri.parse(uri)
    assert caught.value.kind is BAD_SETTING


@pytest.mark.parametrize("revision", ["", "main", "v1.0", "refs/pr/7", "0" * 40])
def test_a_revision_is_taken(revision: str) -> None:
    model_uri.check_revision(revision)


@pytest.mark.parametrize("revision", ["..", "a/../b", "/a", "a b", "a\n", "-a", "a?b", "a" * 101])
def test_what_is_no_revision_is_refused(revision: str) -> None:
    with pytest.raises(OctavoError, match="no branch, tag or commit"):
        model_uri.check_revision(revision)


@given(
    st.one_of(
        st.from_regex(re.compile(operator_uri.PATTERNS["hf"], re.ASCII), fullmatch=True),
        st.from_regex(re.compile(operator_uri.PATTERNS["s3"], re.ASCII), fullmatch=True),
    )
)
def test_what_the_operator_lets_load_is_loaded_alike(uri: str) -> None:
    theirs = operator_uri.parse(uri)
    if theirs is not None and max(map(len, uri.split("/"))) <= 255:
        assert model_uri.parse(uri).file == theirs.file


@given(st.from_regex(re.compile(operator_uri.REVISION, re.ASCII), fullmatch=True))
def test_what_the_operator_takes_for_a_revision_is_one(revision: str) -> None:
    model_uri.check_revision(revision)
