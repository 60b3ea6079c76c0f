from __future__ import annotations

import re

import pytest
from tests.charts.rendering import CHART, ROOT, VERSION
from tools.setup import UV

TEXT = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8"))
PAGES = [ROOT / "Dockerfile", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*")]
"""What names images with their tags."""
IMAGES = ("engine", "engine-smollm2", "gateway", "operator", "loader", "valkey")


def stages() -> dict[str, tuple[str, list[str]]]:
    """Returns the stages: what each begins from, and its instructions."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in TEXT.splitlines():
        if begin := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            name = begin[2]
            found[name] = (begin[1], [])
        elif name and line and not line.startswith("#"):
            found[name][1].append(line)
    return found


def lineage(name: str) -> list[str]:
    """Returns a stage and those that it begins from."""
    found = [name]
    while (base := stages()[found[-1]][0]) in stages():
        found.append(base)
    return found


@pytest.mark.parametrize("name", IMAGES)
def test_images_begin_from_nothing_and_run_nothing_while_they_are_made(name: str) -> None:
    line = lineage(name)
    assert stages()[line[-1]][0] == "scratch"
    instructions = [each for stage in line for each in stages()[stage][1]]
    assert not [each for each in instructions if each.startswith("RUN")]
    assert "USER 65532:65532" in instructions
    (entry, *_) = [each for each in instructions if each.startswith("ENTRYPOINT")]
    assert entry.startswith('ENTRYPOINT ["'), "a list: there is no shell"


@pytest.mark.parametrize("name", IMAGES)
def test_images_say_what_they_are(name: str) -> None:
    text = "\n".join(each for stage in lineage(name) for each in stages()[stage][1])
    for label in ("title", "description", "version", "revision", "licenses", "vendor"):
        assert f"org.opencontainers.image.{label}=" in text


def test_every_package_is_installed_with_its_hash() -> None:
    installs = re.findall(r"uv pip install (.*?)(?:&&|;|$)", TEXT, re.MULTILINE)
    assert len(installs) >= 8
    without = [each for each in installs if "--require-hashes" not in each]
    (backend,) = without
    assert "--torch-backend" in backend, "of another index only the version is known"


def test_secrets_are_for_installs_only_and_none_is_copied() -> None:
    for _, instructions in stages().values():
        for each in instructions:
            if "type=secret" in each:
                assert each.startswith("RUN")
            elif each.startswith("RUN"):
                assert "pip install" not in each


def test_what_is_copied_is_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert ignored[0] == "*"
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {
        word
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", TEXT, re.MULTILINE)
        for word in sources.split()
    }
    assert {word.partition("/")[0] for word in copied} == allowed
    assert all((ROOT / word).exists() for word in copied)


def test_versions_are_those_of_the_project() -> None:
    arguments = dict(re.findall(r"^ARG (\w+)=(\S*)$", TEXT, re.MULTILINE))
    assert f"uv=={arguments['UV_VERSION']}" == UV
    assert arguments["VERSION"] == VERSION
    for path in PAGES:
        for name, tag in re.findall(r"\boctavo/([\w-]+):(\d[\w.]*)", path.read_text("utf-8")):
            assert (name, tag) in {(each, VERSION) for each in IMAGES}, path


def test_the_chart_asks_for_images_that_there_are() -> None:
    text = (CHART / "values.yaml").read_text("utf-8")
    assert set(re.findall(r"repository: octavo/(\S+)", text)) <= set(IMAGES)
