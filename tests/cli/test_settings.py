from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli.settings import KNOWN, MANAGED, ServeConfig, ServeSettings, log_folder
from octavo.runtime.arguments import Sources
from octavo.v1.errors import UNKNOWN_SETTING, OctavoError


def settings_of(environ: dict[str, str] | None = None, **flags: object) -> ServeSettings:
    return ServeSettings.load(Sources(flags=flags, environ=environ or {}, file=None))


def test_serve_has_each_setting_once() -> None:
    shown = [name for name, _, _ in settings_of().rows()]
    assert len(shown) == len(set(shown))
    assert set(shown) | set(MANAGED) == set(KNOWN)


def test_shared_setting_reaches_both_parts() -> None:
    settings = settings_of(drain_s="7")
    assert settings.engine.value.drain_s == settings.gateway.value.drain_s == 7


def test_serve_starts_its_own_store_unless_told_otherwise() -> None:
    assert settings_of().serve.value.redis == ""


def test_variable_that_no_part_knows_is_an_error_with_the_nearest_name() -> None:
    with pytest.raises(OctavoError) as raised:
        settings_of({"OCTAVO_MAX_MODEL_LENGTH": "1"})
    assert raised.value.kind is UNKNOWN_SETTING
    assert "did you mean OCTAVO_MAX_MODEL_LEN?" in raised.value.message


def test_logs_of_two_ports_do_not_mix(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert log_folder(ServeConfig(), 1, environ) != log_folder(ServeConfig(), 2, environ)
    assert log_folder(ServeConfig(), 1, environ).parent == tmp_path / "octavo"
    assert log_folder(ServeConfig(log_dir="/l"), 1, environ) == Path("/l")


def test_logs_go_to_the_state_folder_of_the_user() -> None:
    assert log_folder(ServeConfig(), 1, {}).parts[-5:-2] == (Path.home().name, ".local", "state")
