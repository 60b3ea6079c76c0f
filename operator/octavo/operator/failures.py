"""Why a pod does not do what it should, in words for whoever applied the InferenceService.

Sources, the best first: the process's own last error, Kubernetes' reason, the exit status.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from octavo.operator import pods
from octavo.operator.kinds import Manifest
from octavo.operator.timestamps import age_s
from octavo.v1.errors import CATALOGUE

BAD_ARGUMENT: Final = "BadArgument"
NOT_CREATED: Final = "ContainerNotCreated"
VOLUME_FULL: Final = "VolumeFull"
"""What the loader's error of that name becomes."""
_USAGE_STATUS: Final = 2
_BY_STATUS: Final = {
    _USAGE_STATUS: BAD_ARGUMENT,
    3: "CannotReach",
    4: "DoesNotFit",
    5: "InternalError",
    70: "Stuck",
    71: "DeviceFailed",
    72: "DeviceLost",
}
"""What exit statuses mean when no error of the catalogue came with them."""
_KILLED_STATUS: Final = 137
_LAST_WORDS: Final = 400
"""Characters of a log's end that are shown when nothing better is known."""
_IMAGE_REASONS: Final = (
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
    "ImageInspectError", "RegistryUnavailable",
)  # fmt: skip
RECENT_S: Final = 900.0
"""After its end, for how long a pod explains why others are not ready: it may stay for ever."""
STUCK_CREATING: Final = "the container is not made: a volume or the network is not there yet"
_STUCK_CREATING_S: Final = 60.0
_ERROR_LINE: Final = re.compile(
    r"^error\[(?P<code>OCT-\d+)\]: (?P<text>.*?)(?:\n  help: (?P<help>[^\n]*))?\s*\Z",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a pod does not run or did not last."""

    reason: str
    """CamelCase, for programs."""
    message: str
    """A sentence that stays the same while the reason does."""
    detail: str = ""
    """What is only known at times, such as between two tries to pull an image."""

    @property
    def sentence(self) -> str:
        """Both, for people."""
        return f"{self.message}: {self.detail}" if self.detail else self.message


class _Words(msgspec.Struct, frozen=True):
    """A process's last error, as the loader writes it."""

    code: str
    text: str
    help: str = ""


def of_pods(candidates: Iterable[Manifest], now: float) -> Failure | None:
    """Returns the failure that most likely explains the others: that of the newest pod.

    A pod that has ended counts until one that was made later is ready, and for a while only: who
    was made good for may be gone since, as when the service sleeps.
    """
    staying = [pod for pod in candidates if not pods.is_going(pod)]
    made_good = max((_made_at(pod) for pod in staying if pods.has(pod, "Ready")), default="")
    found = [
        (_made_at(pod), str(pod["metadata"]["name"]), failure)
        for pod in staying
        if pods.is_live(pod) or (_made_at(pod) > made_good and _is_recent(pod, now))
        if (failure := of_pod(pod, now)) is not None
    ]
    return max(found, key=lambda entry: entry[:2])[2] if found else None


def _made_at(pod: Manifest) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _is_recent(pod: Manifest, now: float) -> bool:
    """Tells whether a pod that has ended did so a short time ago, by the last that is known."""
    status = pod.get("status") or {}
    containers = (status.get("initContainerStatuses") or []) + (
        status.get("containerStatuses") or []
    )
    ends = [((c.get("state") or {}).get("terminated") or {}).get("finishedAt") for c in containers]
    turns = [c.get("lastTransitionTime") for c in status.get("conditions") or []]
    stamps = [at for at in (_made_at(pod), *ends, *turns) if at]
    return not stamps or min(age_s(at, now) for at in stamps) < RECENT_S


def of_pod(pod: Manifest, now: float) -> Failure | None:
    """Returns why a pod does not run; None when nothing is known to be wrong."""
    if pods.is_cut_off(pod):
        node = (pod.get("spec") or {}).get("nodeName", "")
        return Failure(
            reason="NodeLost",
            message=f"the node {node} does not answer; Kubernetes replaces what ran there after "
            "the tolerationSeconds of node.kubernetes.io/unreachable: 300, unless "
            "engine.tolerations say otherwise",
        )
    if stuck := pods.unschedulable(pod):
        return Failure(reason="Unschedulable", message=str(stuck.get("message", "")))
    status = pod.get("status") or {}
    if pods.is_over(pod) and status.get("reason"):
        # Such as Evicted or UnexpectedAdmissionError; its figures are others each time.
        detail = str(status.get("message", ""))
        return Failure(
            reason=status["reason"], message="its node ended or refused it", detail=detail
        )
    return next(_of_containers(pod, now), None)


def of_status(status: object) -> str:
    """Returns what an exit status alone says."""
    return _BY_STATUS.get(status if isinstance(status, int) else -1, "Failed")


def _of_containers(pod: Manifest, now: float) -> Iterator[Failure]:
    status = pod.get("status") or {}
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(kind) or []:
            state = container.get("state") or {}
            waiting = state.get("waiting") or {}
            if waiting and (failure := _of_waiting(pod, container, waiting, now)):
                yield failure
            ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
            # One that came back and is ready has nothing left to explain.
            if ended and ended.get("exitCode") != 0 and not container.get("ready"):
                yield _of_end(pod, container, ended)


def _of_waiting(
    pod: Manifest, container: Manifest, waiting: Manifest, now: float
) -> Failure | None:
    reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
    if reason in _IMAGE_REASONS:
        # Between tries the message only says that there is a pause.
        detail = "" if message.startswith("Back-off") else message
        sentence = f"the image {container.get('image', '')} cannot be pulled"
        return Failure(reason="ImagePullFailed", message=sentence, detail=detail)
    if reason.endswith(("ConfigError", "ContainerError")):
        return Failure(reason=NOT_CREATED, message=message or reason)
    if reason == "ContainerCreating":
        since = pods.condition(pod, "PodScheduled").get("lastTransitionTime")
        if age_s(since, now) >= _STUCK_CREATING_S:
            return Failure(reason=NOT_CREATED, message=STUCK_CREATING)
    return None


def _of_end(pod: Manifest, container: Manifest, ended: Manifest) -> Failure:
    status = ended.get("exitCode")
    message = str(ended.get("message", ""))
    if ended.get("reason") == "OOMKilled":
        limit = _memory_limit(pod, str(container.get("name", "")))
        return Failure(
            reason="OutOfMemory",
            message=f"{container.get('name')} needed more memory than its limit{limit}: raise "
            "spec.engine.resources.limits.memory, or lower options.kvBytes or maxModelLen",
        )
    if words := _last_error(message):
        kind = CATALOGUE.get(words.code)
        is_usage = kind is not None and kind.exit_code == _USAGE_STATUS
        name = BAD_ARGUMENT if is_usage else _camel(kind.name) if kind else "Failed"
        advice = f" ({words.help})" if words.help else ""
        return Failure(reason=name, message=f"{words.code}: {words.text}{advice}")
    reason = of_status(status)
    if status == _KILLED_STATUS:  # the last line of its log knows nothing of that
        return Failure(reason=reason, message=f"{container.get('name')} was killed")
    last = " ".join(message.split())[-_LAST_WORDS:]
    sentence = f"{container.get('name')} ended with status {status}"
    return Failure(reason=reason, message=sentence, detail=last)


def _last_error(message: str) -> _Words | None:
    """Returns the error at the end of a termination message: a JSON object, or lines of a log."""
    try:
        return msgspec.json.decode(message, type=_Words)
    except (msgspec.DecodeError, UnicodeEncodeError):
        pass
    start = message.rfind("error[OCT-")
    found = _ERROR_LINE.search(message[start:]) if start >= 0 else None
    if found is None:
        return None
    text = " ".join(found["text"].split())
    return _Words(code=found["code"], text=text, help=found["help"] or "")


def _memory_limit(pod: Manifest, name: str) -> str:
    for container in (pod.get("spec") or {}).get("containers") or []:
        if container.get("name") == name:
            limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
            return f" of {limit}" if limit else ""
    return ""


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
