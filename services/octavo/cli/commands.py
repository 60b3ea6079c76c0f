"""The verbs of `octavo`: what each takes, and where its work is done.

Verbs import their code inside, so that `octavo --help` stays quick. Exit status: 0 done, 1 negative
answer, 2 usage, 3 cannot reach, 4 does not fit, 5 internal error.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What every verb may read: the environment and the switches before the verb."""

    environ: Mapping[str, str]
    quiet: bool
    verbose: bool


class Lazy(click.Command):
    """A verb that is built when it is used: its options need the settings classes."""

    def __init__(self, name: str, make: Callable[[], click.Command], help: str) -> None:
        super().__init__(name, help=help)
        self._make = make

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Builds the real verb, which then takes this one's place."""
        return self._make().make_context(info_name, args, parent, **extra)


class InOrder(click.Group):
    """A group whose help lists the verbs as they were added, not by the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Returns the verbs in the order of their use."""
        return list(self.commands)


def run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs one command line and returns the exit status; prints every error with code and help."""
    switches: Iterable[str] = takewhile(_is_switch, argv)
    verbose = not {"-v", "--verbose"}.isdisjoint(switches)
    try:
        status = octavo.main(
            list(argv), prog_name="octavo", standalone_mode=False, obj=dict(environ)
        )
        return status if isinstance(status, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return 1
    except BrokenPipeError:
        # The reader of our output has left; keep the interpreter's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # the outermost loop
        return _complain(error, verbose=verbose)


def _is_switch(word: str) -> bool:
    return word.startswith("-")


def _complain(error: Exception, *, verbose: bool) -> int:
    from octavo.runtime.arguments import complain
    from octavo.v1.errors import INTERNAL, OctavoError

    if isinstance(error, (click.UsageError, OctavoError)):
        return complain(error)
    if verbose:
        traceback.print_exc()
    click.echo(f"error[{INTERNAL.code}]: {type(error).__name__}: {error}", err=True)
    click.echo("  help: octavo -v … prints the trace; please report it", err=True)
    return INTERNAL.exit_code


@click.group(name="octavo", cls=InOrder, no_args_is_help=True)
@click.option("--quiet", "-q", is_flag=True, help="Only results and errors.")
@click.option("--verbose", "-v", is_flag=True, help="Traces of unexpected errors.")
@click.version_option(package_name="octavo", message="octavo %(version)s")
@click.pass_context
def octavo(context: click.Context, quiet: bool, verbose: bool) -> None:
    """Serve large language models: on this machine, or in a cluster with the same programs."""
    context.obj = Invocation(environ=context.obj, quiet=quiet, verbose=verbose)


_SERVE = "Serve MODEL here: gateway, engines and an embedded Valkey, all on loopback."
_CONFIG = "The effective settings of `octavo serve`, and what they mean."


def serve_command() -> click.Command:
    """Builds `serve`: all settings of all parts are its flags."""
    from octavo.cli.settings import GROUPS, MANAGED, ServeSettings
    from octavo.runtime.arguments import EPILOG, SettingsCommand, sources_of
    from octavo.v1.errors import BAD_USAGE, OctavoError

    def serve(**params: object) -> int:
        from octavo.cli.serve import serve

        invocation: Invocation = click.get_current_context().obj
        model = params.pop("name_or_path", None)
        if model is not None and params["model"] is not None:
            raise OctavoError(BAD_USAGE, reason="the model is given twice", command="octavo serve")
        params["model"] = params["model"] if model is None else model
        settings = ServeSettings.load(sources_of(params, invocation.environ))
        return serve(settings, invocation.environ, quiet=invocation.quiet)

    argument = click.Argument(["name_or_path"], required=False, metavar="[MODEL]")
    return SettingsCommand(
        "serve",
        callback=serve,
        params=[argument, *_settings_options(GROUPS, MANAGED)],
        help=_SERVE,
        epilog=EPILOG,
    )


def config_group() -> click.Group:
    """Builds `config`: what is set, from where, and what it means."""
    from octavo.cli import configuration
    from octavo.cli.settings import GROUPS, MANAGED, ServeSettings
    from octavo.runtime.arguments import EPILOG, SettingsCommand, sources_of

    def show(*, origin: bool, as_json: bool, **params: object) -> None:
        invocation: Invocation = click.get_current_context().obj
        settings = ServeSettings.load(sources_of(params, invocation.environ))
        click.echo(configuration.show(settings, origin=origin, as_json=as_json))

    def explain(*, key: str, as_json: bool) -> None:
        invocation: Invocation = click.get_current_context().obj
        settings = ServeSettings.load(sources_of({}, invocation.environ))
        click.echo(configuration.explain(settings, key, as_json=as_json))

    json_option = click.Option(["--json", "as_json"], is_flag=True, help="Print JSON.")
    origin_option = click.Option(["--origin"], is_flag=True, help="Say where each value is from.")
    return click.Group(
        "config",
        help=_CONFIG,
        commands={
            "show": SettingsCommand(
                "show",
                callback=show,
                params=[origin_option, json_option, *_settings_options(GROUPS, MANAGED)],
                help="Print the effective settings; secrets are masked.",
                epilog=EPILOG,
            ),
            "explain": click.Command(
                "explain",
                callback=explain,
                params=[click.Argument(["key"]), json_option],
                help="Say what the setting KEY means, its range, default and present value.",
            ),
        },
    )


def _settings_options(groups: Mapping[str, type], managed: Sequence[str]) -> list[click.Parameter]:
    from octavo.runtime.arguments import options

    context = click.get_current_context(silent=True)
    obj = context.find_root().obj if context else None
    environ = obj.environ if isinstance(obj, Invocation) else obj
    return options(groups, omit=managed, environ=environ)


octavo.add_command(Lazy("serve", serve_command, _SERVE))


@octavo.command()
@click.option("--prompt", "-p", help="Ask once and print only the answer.")
@click.option("--url", help="Where the API is.  [default: host and port of the settings]")
@click.option("--model", help="Served name.  [default: the first one]")
@click.option("--system", help="System message before the conversation.")
@click.pass_obj
def chat(
    invocation: Invocation,
    prompt: str | None,
    url: str | None,
    model: str | None,
    system: str | None,
) -> int:
    """Talk to a served model; reads one prompt from standard input when that is a pipe."""
    from octavo.cli.chat import chat

    if url is None:
        from octavo.cli.network import url_of
        from octavo.cli.settings import ServeSettings
        from octavo.runtime.arguments import sources_of

        gateway = ServeSettings.load(sources_of({}, invocation.environ)).gateway.value
        url = url_of(gateway.host, gateway.port)
    return chat(url.rstrip("/").removesuffix("/v1"), prompt=prompt, model=model, system=system)


octavo.add_command(Lazy("config", config_group, _CONFIG))


def _role(name: str) -> Callable[..., None]:
    """Returns the verb that becomes one of the processes."""

    def become(invocation: Invocation, arguments: tuple[str, ...]) -> None:
        from octavo.cli.settings import KNOWN
        from octavo.runtime.arguments import sources_of

        sources_of({}, invocation.environ).reject_unknown(KNOWN)
        os.execve(
            sys.executable,
            [sys.executable, "-m", f"octavo.{name}", *arguments],
            dict(invocation.environ),
        )

    return become


for _name, _help in (
    ("engine", "Run one engine: one model on one replica."),
    ("gateway", "Run one gateway in front of engines."),
):
    octavo.command(
        _name,
        help=f"{_help} Takes the flags of `python -m octavo.{_name}`.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True},
    )(click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(click.pass_obj(_role(_name))))
