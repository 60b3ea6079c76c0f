"""Places in the code where a test may let something happen at an exact moment.

A failpoint does nothing unless the process was started with terms in OCTAVO_FAILPOINTS, or a test
arms it; there is no way to arm one from outside a running process.

    engine.row=abort?7,7,7;engine.step=sleep(2)@3;gateway.submit=return%10

name=action(argument), then @N: only the N-th time, or %N: every N-th time, then ?ids: only where
these token ids occur one after the other. Actions: sleep(seconds), raise, abort (the
process, as by a fault in native code), return (nothing: it is only counted).
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from octavo.v1.errors import BAD_SETTING, OctavoError

NAMES: Final = frozenset(
    {
        "engine.load",  # before weights are read
        "engine.accept",  # before a request is let in
        "engine.step",  # before a step is computed
        "engine.row",  # for each row of a step, with its ids
        "engine.publish",  # before the results of a turn are told
        "gateway.submit",  # before an attempt is sent
        "gateway.deliver",  # before a delta goes to its reader
        "gateway.resume",  # before a lost attempt is placed again
        "store.write",  # before values are written
        "store.read",  # before a value is read
    }
)
"""Every failpoint there is."""

VARIABLE: Final = "OCTAVO_FAILPOINTS"

Action = Callable[[], None]
_TERM: Final = re.compile(
    r"(?P<name>[a-z.]+)=(?P<action>[a-z]+)(\((?P<argument>\d+(\.\d+)?)\))?"
    r"(@(?P<only>[1-9]\d*)|%(?P<every>[1-9]\d*))?(\?(?P<ids>\d+(,\d+)*))?"
)
_WITH_IDS: Final = ("engine.accept", "engine.row")
_armed: dict[str, _Trigger] = {}
hits: Counter[str] = Counter()
"""How often each armed failpoint was passed."""


class FailpointError(Exception):
    """What the action `raise` raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    action: Action
    only: int = 0
    every: int = 1
    ids: tuple[int, ...] = ()

    def applies(self, hit: int) -> bool:
        return hit == self.only if self.only else hit % self.every == 0


def failpoint(name: str, ids: Sequence[int] = ()) -> None:
    """Does what this failpoint is armed for; `ids` are the token ids at hand."""
    if _armed and (trigger := _armed.get(name)) is not None:
        _pass(name, trigger, ids)


def _pass(name: str, trigger: _Trigger, ids: Sequence[int]) -> None:
    if trigger.ids and not _contains(ids, trigger.ids):
        return
    hits[name] += 1
    if trigger.applies(hits[name]):
        trigger.action()


def arm(terms: str) -> None:
    """Arms failpoints for the life of the process; raises OctavoError for what is no term."""
    for term in filter(None, (t.strip() for t in terms.split(";"))):
        match = _TERM.fullmatch(term)
        if match is None:
            raise _refused(term, "is not of the form name=action")
        if match["ids"] and match["name"] not in _WITH_IDS:
            raise _refused(term, "has no token ids to look at")
        trigger = _Trigger(
            action=_action(match["action"], float(match["argument"] or 0)),
            only=int(match["only"] or 0),
            every=int(match["every"] or 1),
            ids=tuple(map(int, filter(None, (match["ids"] or "").split(",")))),
        )
        _set(match["name"], trigger)


@contextlib.contextmanager
def armed(actions: Mapping[str, Action]) -> Generator[Counter[str], None, None]:
    """Arms failpoints with functions and yields the counts; disarms all in the end."""
    hits.clear()
    try:
        for name, action in actions.items():
            _set(name, _Trigger(action=action))
        yield hits
    finally:
        _armed.clear()


def _set(name: str, trigger: _Trigger) -> None:
    if name not in NAMES:
        raise _refused(name, "is no failpoint")
    _armed[name] = trigger


def _action(name: str, argument: float) -> Action:
    actions: dict[str, Action] = {
        "sleep": lambda: time.sleep(argument),
        "raise": _raise,
        "abort": os.abort,
        "return": lambda: None,
    }
    if name not in actions:
        raise _refused(name, "is no action")
    return actions[name]


def _refused(value: str, reason: str) -> OctavoError:
    return OctavoError(BAD_SETTING, key="failpoints", value=value, origin=VARIABLE, reason=reason)


def _raise() -> None:
    raise FailpointError


def _contains(ids: Sequence[int], part: tuple[int, ...]) -> bool:
    size = len(part)
    return any(tuple(ids[i : i + size]) == part for i in range(len(ids) - size + 1))
