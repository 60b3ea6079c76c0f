"""`octavo chat`: a conversation in the terminal, or one question and its answer."""

from __future__ import annotations

import json
import sys

import click

from octavo.cli.client import Answer, ChatClient, Message
from octavo.runtime.arguments import complain
from octavo.v1.errors import ENDPOINT_UNREACHABLE, OctavoError

HELP = """\
/stats   tokens and times of the last answer, and which engine gave it
/raw     show the events of the stream as they come, or stop that
/clear   begin a new conversation
/bye     leave (also Ctrl-D); Ctrl-C stops an answer"""


def chat(url: str, *, prompt: str | None, model: str | None, system: str | None) -> int:
    """Runs one question or a conversation; returns the exit status."""
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read()
    client = ChatClient(url)
    try:
        talk = Conversation(client, model=model or client.first_model(), system=system)
        if prompt is None:
            return talk.repl()
        talk.ask(prompt)
        return 0
    except OctavoError as error:
        status = complain(error)
        # Everything but a server that is away or not ready is an answer, a negative one.
        return status if error.kind.exit_code == ENDPOINT_UNREACHABLE.exit_code else 1
    finally:
        client.close()


class Conversation:
    """The turns so far, and the switches of the terminal."""

    def __init__(self, client: ChatClient, *, model: str, system: str | None) -> None:
        self._client = client
        self._model = model
        self._system: list[Message] = [{"role": "system", "content": system}] if system else []
        self._turns: list[Message] = []
        self._last: Answer | None = None
        self._is_raw = False

    def ask(self, prompt: str) -> None:
        """Asks and prints the answer as it comes; raises OctavoError when there is none."""
        messages = [*self._system, *self._turns, {"role": "user", "content": prompt}]
        self._last = answer = Answer()
        pieces: list[str] = []
        raw = (lambda data: click.echo(f"data: {data}")) if self._is_raw else None
        try:
            for piece in self._client.stream(self._model, messages, answer, raw):
                pieces.append(piece)
                if raw is None:
                    click.echo(piece, nl=False)
        finally:
            if pieces:
                click.echo()
                self._turns = [*messages[len(self._system) :], _said("".join(pieces))]

    def repl(self) -> int:
        """Reads prompts until the end of input."""
        _enable_line_editing()
        click.echo(f"{self._model}   /help lists the commands, /bye leaves")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                click.echo()
                return 0
            if line in ("/bye", "/exit", "/quit"):
                return 0
            if line.startswith("/"):
                click.echo(self._command(line))
            elif line:
                self._try_to_ask(line)

    def _try_to_ask(self, line: str) -> None:
        try:
            self.ask(line)
        except KeyboardInterrupt:
            click.echo("(stopped)")
        except OctavoError as error:
            complain(error)

    def _command(self, line: str) -> str:
        if line == "/stats":
            return stats(self._last) if self._last else "no answer yet"
        if line == "/raw":
            self._is_raw = not self._is_raw
            return f"raw events {'on' if self._is_raw else 'off'}"
        if line == "/clear":
            self._turns = []
            return "a new conversation"
        return HELP if line == "/help" else f"there is no command {line}\n{HELP}"


def _said(text: str) -> Message:
    return {"role": "assistant", "content": text}


def stats(answer: Answer) -> str:
    """Returns the numbers of an answer, a line each."""
    facts: dict[str, object] = {"finish_reason": answer.finish_reason or "none"}
    facts |= answer.usage | answer.metrics | answer.headers
    return "\n".join(
        f"{name:<24} {value if isinstance(value, str) else json.dumps(value)}"
        for name, value in facts.items()
    )


def _enable_line_editing() -> None:
    """Gives `input` history and arrow keys where the interpreter has readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return
