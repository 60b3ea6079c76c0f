"""Brings a control plane up and waits to be killed: run by a test of what is then cleaned up."""

from __future__ import annotations

import sys

from tests.cluster.control_plane import ControlPlane

if __name__ == "__main__":
    cluster = ControlPlane(bound=False)
    cluster.start()
    sys.stdout.write(f"{cluster.record.folder}\n")
    sys.stdout.flush()
    sys.stdin.read()
