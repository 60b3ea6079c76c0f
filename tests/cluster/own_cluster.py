"""A cluster that the tests bring up themselves, part by part, and can take apart."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.cluster.api import Object
from tests.cluster.components import Site
from tests.cluster.kubectl import Kubectl
from tests.cluster.kubernetes import Kubernetes
from tests.cluster.program import Program
from tests.cluster.record import Record

READY_S = 120.0
"""For a machine that is busy with other things; a quiet one needs 5."""
API_SERVER = "kube-apiserver"


class OwnCluster(Kubernetes):
    """A cluster whose parts can be killed and started again one by one.

    Args:
        site: where its control plane lives.
        record: of its folder.
        kubectl: reaches it as an administrator.
        parts: what it is made of, in the order in which it is started.
    """

    def __init__(
        self, site: Site, *, record: Record, kubectl: Kubectl, parts: dict[str, Program]
    ) -> None:
        super().__init__(kubectl)
        self.site = site
        self.record = record
        self.parts = parts

    @property
    def audit_log(self) -> Path:
        """One JSON object a line for each request."""
        return self.site.audit_log

    def audit(self) -> list[Object]:
        """Returns what was asked of the API server so far, by whom it knows.

        A client that leaves at once, as a watch of ours may, is nobody to it.
        """
        lines = self.audit_log.read_text(encoding="utf-8").splitlines()
        events = (json.loads(line) for line in lines if line.endswith("}"))
        return [event for event in events if event["user"]]

    def start(self) -> None:
        """Brings everything up; returns when pods can be made and scheduled."""
        self.start_parts("etcd", API_SERVER)
        self.until_ready()
        # The controller manager ends when it has no answer within ten seconds.
        self.start_parts(*(name for name, part in self.parts.items() if not part.alive))

    def start_parts(self, *names: str) -> None:
        """Starts some parts, and waits for none."""
        for name in names:
            self.parts[name].start()

    def until_ready(self) -> None:
        """Waits until the API server says that it is ready."""
        self.parts[API_SERVER].until(self.kubectl.api.ready, READY_S)

    def kill(self, part: str) -> None:
        """kill -9 of one part, such as `kube-apiserver`."""
        self.parts[part].kill()

    def restart(self, part: str) -> None:
        """Starts a part again, after ending it if it runs; returns when requests are answered."""
        self.parts[part].terminate()
        self.parts[part].start()
        self.until_ready()

    def stop(self) -> None:
        """Ends everything and leaves nothing."""
        self.kubectl.api.close()
        for part in self.parts.values():
            part.kill()
        self.record.undo()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
