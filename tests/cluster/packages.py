"""Debian packages that a whole node is made of, installed when they are missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.cluster.places import say

NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ipset": "ipset",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "sysctl": "procps",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""A program, and the package that brings it."""
BUILDER = {
    "containerd": "containerd",
    "runc": "runc",
    "dockerd": "docker.io",
    "/usr/bin/docker": "docker.io",
    "debootstrap": "debootstrap",
}


def ensure(programs: dict[str, str]) -> None:
    """Installs what is missing; ends with what to do when that is not possible."""
    missing = sorted({package for name, package in programs.items() if not shutil.which(name)})
    if not missing:
        return
    install = ["apt-get", "install", "--yes", "--no-install-recommends", *missing]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        sys.exit(f"cluster: a whole node needs root and, on Debian: {' '.join(install)}")
    say(f"installing {' '.join(missing)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "--quiet"], install):
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"cluster: `{' '.join(command)}` failed:\n{done.stdout}{done.stderr}")
