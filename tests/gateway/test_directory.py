from hypothesis import given
from hypothesis import strategies as st

from octavo.gateway.directory import Directory
from octavo.gateway.discovery import Service


def service(id: str, *names: str, age: int = 0) -> Service:
    names = names or (id.partition("/")[2],)
    return Service(id=id, names=names, created_unix_s=1000 - age)


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
