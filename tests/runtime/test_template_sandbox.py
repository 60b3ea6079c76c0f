from __future__ import annotations

import random

import pytest

from octavo.runtime.template_sandbox import OUTPUT_CHARS, Sandbox
from octavo.v1.errors import OctavoError


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 1.0
        return self.time

    def wall(self) -> float:
        return 1_700_000_000.0

    def rng(self, name: str) -> random.Random:
        raise NotImplementedError

    def new_id(self) -> str:
        raise NotImplementedError


def render(source: str, **variables: object) -> str:
    return Sandbox(source, Clock()).render(variables, num_input_chars=0)


def test_the_clock_is_injected() -> None:
    assert render("{{ strftime_now('%Y-%m') }}") == "2023-11"


def test_time_is_looked_at_every_so_many_steps() -> None:
    assert render("{% for i in range(200) %}x{% endfor %}") == "x" * 200
    with pytest.raises(OctavoError, match="takes too long"):
        render("{% for i in range(600) %}{% endfor %}")
    with pytest.raises(OctavoError, match="takes too long"):
        render(
            "{% macro f() %}{% endmacro %}{% for i in range(200) %}{{ f() }}{{ f() }}{% endfor %}"
        )


def test_the_output_may_grow_with_the_input() -> None:
    sandbox = Sandbox("{% for i in range(20) %}{{ x }}{% endfor %}", Clock())
    text = "a" * (OUTPUT_CHARS // 10)
    with pytest.raises(OctavoError, match="too long"):
        sandbox.render({"x": text}, num_input_chars=0)
    assert len(sandbox.render({"x": text}, num_input_chars=len(text) * 2)) == 20 * len(text)


def test_arithmetic_still_works() -> None:
    assert render("{{ 3 * 4 }}{{ 2 ** 5 }}{{ 'ab' * 2 }}{{ 1.5 * 2 }}") == "1232abab3.0"


def test_messages_of_errors_are_short() -> None:
    with pytest.raises(OctavoError) as caught:
        render("{{ raise_exception('x' * 5000) }}")
    assert len(caught.value.message) < 400


def test_type_errors_of_a_template_are_the_callers_400() -> None:
    with pytest.raises(OctavoError) as caught:
        render("{{ 'a' + 1 }}")
    assert caught.value.kind.status == 400
