from __future__ import annotations

import re

import pytest
from hypothesis import given
from tests.operator.specs import NAMES

from octavo.operator import names

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@given(NAMES)
def test_all_names_and_labels_made_from_a_valid_name_are_valid(name: str) -> None:
    assert names.problem_of(name) == ""
    made = [names.engine(name), names.models(name), names.load(name)]
    made.append(names.load_job(name, "0123456789abcdef"))
    made.append(names.pins(name, "0123456789abcdef"))
    assert all(DNS_LABEL.fullmatch(one) for one in made)
    assert len(set(made)) == len(made)
    for component in (names.ENGINE, names.LOADER):
        assert all(LABEL_VALUE.fullmatch(v) for v in names.labels(name, component).values())


@pytest.mark.parametrize("name", ["x" * 41, "9b", "a.b", "A", "", "a-", "llama\n", "-a"])
def test_a_name_that_would_not_do_is_told(name: str) -> None:
    assert names.problem_of(name)


def test_names_and_selectors_never_change() -> None:
    assert names.selector("x") == {
        "serving.octavo.dev/service": "x",
        "app.kubernetes.io/component": "engine",
    }
    assert names.selector_text("x") == (
        "app.kubernetes.io/component=engine,serving.octavo.dev/service=x"
    )
    assert (names.engine("x"), names.models("x"), names.load_job("x", "0123456789")) == (
        "x-engine", "x-models", "x-load-01234567",
    )  # fmt: skip


def test_selectors_are_among_the_labels() -> None:
    for component in (names.ENGINE, names.LOADER):
        labels = names.labels("x", component)
        assert names.selector("x", component).items() <= labels.items()
