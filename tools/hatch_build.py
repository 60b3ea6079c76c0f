"""Build hook: wheels, sdists and editable installs carry fresh protobuf stubs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ProtoHook(BuildHookInterface[Any]):
    """Generates the stubs before hatchling collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Runs tools/gen_proto.py from the project's root."""
        sys.path.insert(0, str(Path(self.root) / "tools"))
        import gen_proto

        gen_proto.generate()
