"""What is to be written for one InferenceService, as values, in order.

Each write stands alone: after any of them the process may end, and the next plan, made from what
is then observed, leads to the same end. What takes something away is done only while the
InferenceService is as it was observed: an old one may not want what a newer one does. Knows neither
why it is made nor how it is carried out.

    Plan.writes   in order      Apply · Scale · Delete · PatchPodCondition
    Plan.status   afterwards    the whole status, or None when it is right already
    Plan.events   at the end    what happened, for people
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from octavo.operator.kinds import Kind, Manifest, kind_of

FIELD_MANAGER: Final = "octavo-operator"
"""Who all fields are written as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apply:
    """Server-side apply of one object, with force: it has our fields only.

    `metadata.resourceVersion` may be in it: then a conflict (409) means that it was made from an
    old state, and the plan is made anew.
    """

    manifest: Manifest
    creates: bool
    """Whether the object was not observed. Then it is looked for by name first: one that our
    InferenceService does not control is left alone and counts as refused ("it exists already and
    belongs to somebody else")."""
    takes_away: bool = False
    """Whether it leaves fewer engines than were observed."""

    @property
    def kind(self) -> Kind:
        """Kind of the object."""
        return kind_of(self.manifest)

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.manifest["metadata"]["name"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sets the number of replicas of an object whose other fields have to wait.

    A merge patch of its scale subresource; one that is gone, or has another UID by now (409), is no
    error.
    """

    kind: Kind
    name: str
    uid: str
    replicas: int
    takes_away: bool = False
    """Whether these are fewer than were observed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Deletion of an object that is no longer wanted, in the background.

    Whoever carries it out reads the object again, from the API server and no cache, and deletes it
    with both preconditions; if one does not hold (409), or it is gone (404), that is no error.
    """

    kind: Kind
    name: str
    uid: str
    resource_version: str
    takes_away: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchPodCondition:
    """Sets one condition of one pod in its status subresource, by strategic merge.

    A pod that is gone, or has another UID by now, is no error.
    """

    pod: str
    uid: str
    condition: Manifest
    """type, status, reason, message, lastTransitionTime."""
    takes_away: ClassVar[bool] = False


Write = Apply | Scale | Delete | PatchPodCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An Event about the InferenceService."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def normal(reason: str, message: str) -> Event:
    """Returns an Event that only tells."""
    return Event(type="Normal", reason=reason, message=message)


def warning(reason: str, message: str) -> Event:
    """Returns an Event that somebody should look at."""
    return Event(type="Warning", reason=reason, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be done now, and when to look again at the latest."""

    writes: tuple[Write, ...] = ()
    """In this order. A write that is refused for good does not stop those behind it."""
    status: Manifest | None = None
    """The whole status, applied to the status subresource; None when nothing differs."""
    events: tuple[Event, ...] = ()
    """Only with a status; posted after it, so that a repeated plan does not repeat them."""
    requeue_s: float | None = None
    """When time alone may change the plan; None when only events can."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be written."""
        return not self.writes and self.status is None
