"""All settings of the project, and those of `octavo serve` itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.engine.config import EngineConfig
from octavo.gateway.config import GatewayConfig
from octavo.runtime.arguments import Sources
from octavo.runtime.settings import Loaded, names, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What runs on this machine."""

    replicas: int = setting(
        1, "Engine processes; they share memory and cores.", minimum=1, maximum=64
    )
    redis: str = setting(
        "",
        "URL of a Redis or Valkey for request records; empty starts an embedded Valkey.",
        secret=True,
    )
    no_auth: bool = setting(
        False,
        "Lets --host be an address that others reach. There are no API keys yet: whoever reaches "
        "it may use it.",
    )
    log_dir: str = setting(
        "", "Folder of the processes' logs; empty takes the user's state folder."
    )


GROUPS: Mapping[str, type] = {
    "Serve": ServeConfig,
    "Engine": EngineConfig,
    "Gateway": GatewayConfig,
}
"""Settings classes by heading; of two fields with one name the first counts in `serve`."""

MANAGED = (
    *("listen", "plaintext", "tls_dir", "tls_client", "metrics_listen", "report_fd"),
    *("engines", "engine_tls_dir", "discover", "namespaces", "status_listen"),
    *("hold_s", "max_held"),
)
"""Settings of the processes that `serve` chooses itself."""

KNOWN = tuple(dict.fromkeys(names(*GROUPS.values())))
"""Every name that a variable or file may use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The effective settings of `octavo serve`."""

    serve: Loaded[ServeConfig]
    engine: Loaded[EngineConfig]
    gateway: Loaded[GatewayConfig]

    @classmethod
    def load(cls, sources: Sources) -> ServeSettings:
        """Reads all of them; raises OctavoError for a bad value or an unknown name."""
        sources.reject_unknown(KNOWN)
        return cls(
            serve=sources.load(ServeConfig),
            engine=sources.load(EngineConfig),
            gateway=sources.load(GatewayConfig),
        )

    def rows(self) -> list[tuple[str, object, str]]:
        """Returns (name, value for display, origin) of every setting that `serve` takes."""
        seen: dict[str, tuple[str, object, str]] = {}
        for loaded in (self.serve, self.engine, self.gateway):
            for name in names(type(loaded.value)):
                if name not in seen and name not in MANAGED:
                    seen[name] = (name, _shown(loaded, name), loaded.origins[name])
        return list(seen.values())


def _shown(
    loaded: Loaded[ServeConfig] | Loaded[EngineConfig] | Loaded[GatewayConfig], name: str
) -> object:
    value = loaded.shown(name)
    return list(value) if isinstance(value, tuple) else value


def log_folder(config: ServeConfig, port: int, environ: Mapping[str, str]) -> Path:
    """Returns where the logs of a `serve` on this port go; two on one machine do not mix."""
    if config.log_dir:
        return Path(config.log_dir)
    return state_home(environ) / "octavo" / f"serve-{port}"


def state_home(environ: Mapping[str, str]) -> Path:
    """Returns the user's folder for logs and history (XDG base directories)."""
    return Path(environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
