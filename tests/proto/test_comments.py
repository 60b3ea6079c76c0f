"""The .proto files compile, and say of each thing what it is, beginning with its name."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

ROOT = Path(__file__).parents[2] / "proto"
SOURCES = sorted(ROOT.glob("octavo/v1/*.proto"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FileDescriptorProto]:
    out = tmp_path_factory.mktemp("descriptors") / "set.pb"
    include = importlib.resources.files("grpc_tools") / "_proto"
    arguments = [
        f"-I{ROOT}",
        f"-I{include}",
        "--include_source_info",
        f"--descriptor_set_out={out}",
    ]
    assert protoc.main(["protoc", *arguments, *map(str, SOURCES)]) == 0
    compiled = FileDescriptorSet.FromString(out.read_bytes())
    return {Path(file.name).name: file for file in compiled.file}


def things(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yields (path, name) of every message, field, oneof, enum, value, service and rpc."""
    for i, message in enumerate(file.message_type):
        yield from things_of_message(message, (4, i))
    for i, enum in enumerate(file.enum_type):
        yield from things_of_enum(enum, (5, i))
    for i, service in enumerate(file.service):
        yield (6, i), service.name
        for j, method in enumerate(service.method):
            yield (6, i, 2, j), method.name


def things_of_message(
    message: DescriptorProto, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, message.name
    for i, field in enumerate(message.field):
        yield (*path, 2, i), field.name
    for i, nested in enumerate(message.nested_type):
        if not nested.options.map_entry:
            yield from things_of_message(nested, (*path, 3, i))
    for i, enum in enumerate(message.enum_type):
        yield from things_of_enum(enum, (*path, 4, i))
    optional = {f.oneof_index for f in message.field if f.proto3_optional}
    for i, oneof in enumerate(message.oneof_decl):
        if i not in optional:
            yield (*path, 8, i), oneof.name


def things_of_enum(
    enum: EnumDescriptorProto, path: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    yield path, enum.name
    for i, value in enumerate(enum.value):
        yield (*path, 2, i), value.name


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_everything_has_a_comment_that_begins_with_its_name(
    files: dict[str, FileDescriptorProto], source: Path
) -> None:
    file = files[source.name]
    comments = {tuple(at.path): at.leading_comments for at in file.source_code_info.location}
    named = list(things(file))
    assert len(named) > 10
    wrong = [name for path, name in named if comments.get(path, "").split()[:1] != [name]]
    # "FINISH_REASON_STOP: end-of-sequence …" names it as well.
    wrong = [n for n in wrong if not any(c.lstrip().startswith(f"{n}:") for c in comments.values())]
    assert wrong == []


def names_of(values: Sequence[EnumDescriptorProto]) -> list[tuple[str, list[str]]]:
    return [(enum.name, [value.name for value in enum.value]) for enum in values]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_zero_of_every_enum_means_unspecified(
    files: dict[str, FileDescriptorProto], source: Path
) -> None:
    for enum, values in names_of(files[source.name].enum_type):
        prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in enum).lstrip("_")
        assert values[0] == f"{prefix}_UNSPECIFIED"
        assert all(value.startswith(f"{prefix}_") for value in values)


def test_package_is_the_version(files: dict[str, FileDescriptorProto]) -> None:
    assert {file.package for file in files.values()} == {"octavo.v1"}
