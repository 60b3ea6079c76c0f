"""Command lines made from settings classes: the flags, their help, the file, the errors.

Each field of a settings class is one flag (`--max-model-len`), one variable
(`OCTAVO_MAX_MODEL_LEN`) and one key of the TOML file (`max_model_len`); all processes read them
through this module. Knows no particular setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, get_type_hints

import click

from octavo.runtime import failpoint
from octavo.runtime.settings import (
    ENV_PREFIX,
    Loaded,
    doc_of,
    env_of,
    flag_of,
    load,
    names,
    place_in,
    read_file,
    reject_unknown,
)
from octavo.v1.errors import BAD_USAGE, UNKNOWN_SETTING, OctavoError

T = TypeVar("T")

CONFIG_FILE = Path("octavo.toml")
"""Read from the current folder when it exists and nothing else is named."""
CONFIG_VARIABLE = ENV_PREFIX + "CONFIG"
_OTHER_VARIABLES = (CONFIG_VARIABLE, failpoint.VARIABLE)
"""Variables that start like settings and are none."""
EPILOG = (
    "Every flag is also a variable (OCTAVO_MAX_MODEL_LEN) and a key of the TOML file"
    " (max_model_len). Precedence: flag, variable, file, default."
)


class SettingOption(click.Option):
    """The flag of one settings field, under a heading of the help."""

    def __init__(self, cls: type, name: str, group: str) -> None:
        self.group = group
        doc = doc_of(cls, name)
        hint = get_type_hints(cls)[name]
        flag = flag_of(name)
        is_switch = hint is bool
        metavar = "|".join(doc.choices) or metavar_of(doc.unit, hint)
        super().__init__(
            [f"{flag}/{opposite_of(flag)}" if is_switch else flag],
            default=None,
            type=bool if is_switch else str,
            metavar=metavar,
            help=f"{doc.help}  [default: {shown_default(cls, name)}]",
        )


class SettingsCommand(click.Command):
    """A command whose options are settings; its help is grouped by class."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section for each settings class, then the other options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "group", "Other"), []).append(record)
        for group, records in sections.items():
            with formatter.section(group):
                formatter.write_dl(records, col_max=34)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where settings may come from, besides their defaults."""

    flags: Mapping[str, object]
    """Values by field name; None means not given."""
    environ: Mapping[str, str]
    file: Path | None

    def load(self, cls: type[T]) -> Loaded[T]:
        """Builds `cls`; raises BAD_SETTING for a value outside type or range."""
        return load(cls, flags=self.flags, environ=self.environ, file=self.file)

    def reject_unknown(self, known: Sequence[str]) -> None:
        """Raises UNKNOWN_SETTING for an OCTAVO_* variable or file key not among the fields."""
        ours = [v for v in self.environ if v.startswith(ENV_PREFIX)]
        variables = [v for v in ours if v not in _OTHER_VARIABLES]
        reject_unknown(variables, [env_of(name) for name in known], "environment")
        if self.file is not None:
            for key in read_file(self.file):
                reject_unknown([key], known, f"file {place_in(self.file, key)}")


def opposite_of(flag: str) -> str:
    """Returns the flag that turns a switch off; the one of `--no-x` is `--x`."""
    return f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


def metavar_of(unit: str, hint: object) -> str:
    """Returns what stands for the value in the help: the unit if there is one, else the type."""
    if unit:
        return {"s": "SECONDS"}.get(unit, unit.upper())
    if str(hint).startswith("tuple"):
        return "A,B,…"
    return "INTEGER" if hint is int else "NUMBER" if hint is float else "TEXT"


def shown_default(cls: type, name: str) -> str:
    """Returns the default of a field as the reader would type it."""
    value = cls.__dataclass_fields__[name].default  # type: ignore[attr-defined]
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        value = ",".join(value)
    return str(value) if value != "" else "empty"


def options(
    groups: Mapping[str, type], omit: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> list[click.Parameter]:
    """Returns the options of settings classes, and `--config`.

    Args:
        groups: settings class by heading; of two fields with one name the first counts.
        omit: fields that get no flag.
        environ: gives OCTAVO_CONFIG, the default of `--config`.
    """
    seen = set(omit)
    result: list[click.Parameter] = []
    for group, cls in groups.items():
        for name in names(cls):
            if name not in seen:
                result.append(SettingOption(cls, name, group))
                seen.add(name)
    config = click.Option(
        ["--config"],
        metavar="FILE",
        default=(environ or {}).get(CONFIG_VARIABLE),
        help=f"TOML file of settings.  [default: {CONFIG_VARIABLE}, or ./{CONFIG_FILE}]",
    )
    return [*result, config]


def sources_of(params: dict[str, object], environ: Mapping[str, str]) -> Sources:
    """Splits what the command line gave into flags and file; an empty `--config` reads no file."""
    config = params.pop("config", None)
    file = Path(str(config)) if config else None
    if config is None and CONFIG_FILE.is_file():
        file = CONFIG_FILE
    return Sources(flags=params, environ=environ, file=file)


def parse(cls: type[T], argv: Sequence[str], environ: Mapping[str, str], prog: str) -> Loaded[T]:
    """Reads the settings of one process.

    Prints the help or one error with code and help, and raises SystemExit, where there is
    nothing to run. Variables and keys that `cls` lacks may be another process's: they are checked
    by the command line, which knows all classes.
    """
    heading = (cls.__doc__ or "Settings").strip().splitlines()[0].rstrip(".")
    command = SettingsCommand(prog, params=options({heading: cls}, environ=environ), epilog=EPILOG)
    try:
        with command.make_context(prog, list(argv)) as context:
            return sources_of(context.params, environ).load(cls)
    except click.exceptions.Exit as stop:
        raise SystemExit(stop.exit_code) from None
    except (click.UsageError, OctavoError) as error:
        raise SystemExit(complain(error)) from None


def complain(error: click.UsageError | OctavoError) -> int:
    """Prints an error with its help on standard error and returns the exit status."""
    if isinstance(error, click.UsageError):
        error = usage_error(error)
    click.echo(str(error), err=True)
    if error.help:
        click.echo(f"  help: {error.help}", err=True)
    return error.kind.exit_code


def usage_error(error: click.UsageError) -> OctavoError:
    """Returns the catalogue's words for a mistake on the command line."""
    command = error.ctx.command_path if error.ctx else "octavo"
    reason = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption):
        near = f"; did you mean {error.possibilities[0]}?" if error.possibilities else ""
        return OctavoError(
            UNKNOWN_SETTING, key=error.option_name, origin="command line", closest=near
        )
    return OctavoError(BAD_USAGE, reason=reason[:1].lower() + reason[1:], command=command)


def as_flags(value: object, only: Iterable[str]) -> list[str]:
    """Returns the command line that gives the named fields of a settings object their values."""
    argv: list[str] = []
    wanted = set(only)
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        if field.name not in wanted:
            continue
        item = getattr(value, field.name)
        flag = flag_of(field.name)
        if isinstance(item, bool):
            argv.append(flag if item else opposite_of(flag))
        else:
            argv += [flag, ",".join(item) if isinstance(item, tuple) else str(item)]
    return argv
