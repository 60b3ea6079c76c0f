import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.directory import Contest, Directory
from octavo.gateway.discovery import Service


def service(id: str, *names: str, age: int = 0, bare: bool = True) -> Service:
    names = names or (id.partition("/")[2],)
    return Service(id=id, names=names, created_unix_s=1000 - age, may_be_bare=bare)


def listed(directory: Directory) -> list[str]:
    return [name for each in directory for name in directory.names(each)]


def means(directory: Directory, name: str) -> str:
    found = directory.find(name)
    return found.id if found is not None else ""


def test_a_name_that_one_service_claims_works_bare_and_with_its_namespace() -> None:
    directory = Directory([service("a/smol", "smollm2", "small")])
    for name in ("smollm2", "small", "a/smollm2", "a/small", "a/smol"):
        assert means(directory, name) == "a/smol"
    assert means(directory, "smol") == ""
    assert listed(directory) == ["smollm2", "small"]


def test_of_two_that_claim_a_name_the_older_one_has_it() -> None:
    directory = Directory(
        [service("new/s", "m"), service("old/s", "m", age=5), service("odd/s", "m", "o", age=1)]
    )
    assert means(directory, "m") == "old/s"
    assert means(directory, "new/m") == "new/s"
    assert means(directory, "odd/m") == "odd/s"
    assert listed(directory) == ["m", "odd/m", "o", "new/m"]


def test_who_was_made_in_the_same_second_is_told_apart_by_name() -> None:
    services = [service("b/s", "m"), service("a/s", "m")]
    assert means(Directory(services), "m") == "a/s"
    assert means(Directory(reversed(services)), "m") == "a/s"


def test_in_one_namespace_the_younger_one_is_reached_by_its_own_name() -> None:
    directory = Directory([service("a/first", "m", age=1), service("a/second", "m")])
    assert means(directory, "a/m") == means(directory, "m") == "a/first"
    assert means(directory, "a/second") == "a/second"
    assert listed(directory) == ["m", "a/second"]


def test_a_name_with_a_slash_takes_nothing_from_another_namespace() -> None:
    directory = Directory([service("a/thief", "b/m", "b/own", age=9), service("b/own", "m")])
    assert means(directory, "b/m") == means(directory, "b/own") == "b/own"
    assert means(directory, "a/b/m") == "a/thief"
    assert listed(directory) == ["a/b/m", "a/b/own", "m"]


def test_a_name_without_its_namespace_means_none_of_those_that_may_not_be_bare() -> None:
    mine, theirs = service("a/s", "m", "b/m", bare=False), service("b/s", "m")
    assert means(Directory([mine]), "m") == means(Directory([mine]), "b/m") == ""
    assert means(Directory([mine]), "") == ""
    assert means(Directory([mine]), "a/m") == means(Directory([mine]), "a/s") == "a/s"
    both = Directory([mine, theirs])
    assert means(both, "m") == "b/s", "though it is younger"
    assert listed(both) == ["a/m", "a/b/m", "m"]


@pytest.mark.parametrize("bare", [True, False])
def test_a_service_that_is_made_anew_keeps_its_name_only_where_it_is_not_bare(bare: bool) -> None:
    rival = service("b/s", "m", age=3, bare=bare)
    before = Directory([service("a/s", "m", age=9, bare=bare), rival])
    after = Directory([service("a/s", "m", age=1, bare=bare), rival])
    assert means(before, "a/m") == means(after, "a/m") == "a/s"
    assert (means(before, "m"), means(after, "m")) == (("a/s", "b/s") if bare else ("", ""))


def test_a_contest_is_told_of_both() -> None:
    old, young = service("a/s", "m", "x", age=9), service("b/s", "m", age=5)
    youngest = service("c/s", "m", "y")
    directory = Directory([youngest, young, old])
    assert directory.contest(old) == Contest(lost={}, heirs={"m": "b/s"})
    assert directory.contest(young) == Contest(lost={"m": "a/s"}, heirs={})
    assert directory.contest(youngest) == Contest(lost={"m": "a/s"}, heirs={})


def test_there_is_no_contest_between_namespaces_that_are_not_bare() -> None:
    mine, theirs = service("a/s", "m", bare=False), service("b/s", "m", age=5)
    directory = Directory([mine, theirs])
    assert directory.contest(mine) == directory.contest(theirs) == Contest(lost={}, heirs={})
    second = service("a/t", "m", bare=False)
    assert Directory([mine, second]).contest(second) == Contest(lost={"a/m": "a/s"}, heirs={})


def test_no_name_means_the_only_service() -> None:
    assert means(Directory([service("a/s")]), "") == "a/s"
    assert means(Directory([service("a/s"), service("b/s")]), "") == ""
    assert means(Directory([]), "") == ""


@given(
    st.lists(
        st.builds(
            service,
            st.sampled_from(["a/x", "a/y", "b/x", "b/y", "c/z"]),
            st.sampled_from(["m", "x", "a/x", "b/m"]),
            st.sampled_from(["m", "n", "y"]),
            age=st.integers(0, 2),
            bare=st.booleans(),
        ),
        unique_by=lambda s: s.id,
    )
)
def test_every_service_is_listed_and_its_names_mean_it(services: list[Service]) -> None:
    directory = Directory(services)
    assert len(set(listed(directory))) == len(listed(directory))
    for each in services:
        assert means(directory, each.id) == each.id
        assert directory.names(each)
        assert {means(directory, name) for name in directory.names(each)} == {each.id}
        for name, holder in directory.contest(each).lost.items():
            assert means(directory, name) == holder != each.id
        for name, heir in directory.contest(each).heirs.items():
            assert means(directory, name) == each.id
            without = Directory([one for one in services if one is not each])
            assert means(without, name) == heir
