"""How the engines of one machine divide it: memory and threads. A pure function."""

from __future__ import annotations

from dataclasses import replace

from octavo.engine.config import EngineConfig


def share_of(config: EngineConfig, *, replicas: int, cores: int) -> EngineConfig:
    """Returns what one of `replicas` engines may take.

    The memory fraction is divided, so that all caches together take what was asked for; a cache
    size in bytes is per engine. Threads are divided unless the user set them.
    """
    if replicas == 1:
        return config
    return replace(
        config,
        memory_fraction=max(config.memory_fraction / replicas, 0.01),
        threads=config.threads or max(1, cores // replicas),
    )
