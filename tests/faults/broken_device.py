"""Runs an engine whose device fails when a file appears, with the error that torch would raise.

python tests/faults/broken_device.py FILE octavo.engine ARGUMENTS ...

The file holds what the driver says.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import torch

from octavo.engine.models.llama import Llama

_forward = Llama.forward


def main(file: str, module: str, arguments: list[str]) -> None:
    """Makes the device breakable and becomes the program."""

    def forward(self: Llama, *args: object, **kwargs: object) -> torch.Tensor:
        if Path(file).exists():
            raise torch.AcceleratorError(Path(file).read_text(encoding="utf-8"))
        return _forward(self, *args, **kwargs)  # type: ignore[arg-type]

    Llama.forward = forward  # type: ignore[method-assign]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
