import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.runtime import failpoint as module
from octavo.runtime.failpoint import NAMES, FailpointError, arm, armed, failpoint
from octavo.v1.errors import OctavoError

SERVICES = Path(__file__).parents[2] / "services"


def test_nothing_happens_unless_armed() -> None:
    before = module.hits.copy()
    for name in NAMES:
        failpoint(name)
    assert module.hits == before


def test_armed_by_a_test_for_as_long_as_it_wants() -> None:
    seen: list[str] = []
    with armed({"engine.step": lambda: seen.append("step")}) as hits:
        failpoint("engine.step")
        failpoint("engine.publish")
        assert hits == {"engine.step": 1}
    failpoint("engine.step")
    assert seen == ["step"]


@pytest.mark.parametrize(
    ("term", "raised"),
    [
        ("engine.row=raise", [1, 2, 3, 4, 5, 6]),
        ("engine.row=raise@3", [3]),
        ("engine.row=raise%2", [2, 4, 6]),
        ("engine.row=raise?5,5", [5]),
        ("engine.row=return", []),
    ],
)
def test_terms_say_when(term: str, raised: list[int]) -> None:
    with armed({}):
        arm(term)
        caught = []
        for number in range(1, 7):
            try:
                failpoint("engine.row", (9, 5, number))
            except FailpointError:
                caught.append(number)
    assert caught == raised


@pytest.mark.parametrize(
    "terms",
    [
        "engine.row",
        "nowhere=raise",
        "engine.row=eval(1)",
        "x y",
        "engine.row=sleep(1.2.3)",
        "engine.row=raise@0",
        "engine.row=raise%0",
        "engine.row=raise@2@3",
        "engine.row=raise@1,2",
        "engine.step=raise?7",
    ],
)
def test_what_is_no_term_is_refused(terms: str) -> None:
    with pytest.raises(OctavoError, match="OCTAVO_FAILPOINTS"):
        arm(terms)


def test_abort_ends_the_process_as_native_code_would() -> None:
    code = (
        "from octavo.runtime.failpoint import *; arm('engine.step=abort'); failpoint('engine.step')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -6


def test_every_failpoint_is_in_the_code_and_is_listed() -> None:
    used = {
        name
        for path in SERVICES.rglob("*.py")
        for name in re.findall(r'failpoint\(\s*"([a-z.]+)"', path.read_text())
    }
    assert used == NAMES
