"""A Jinja sandbox with the conventions of Hugging Face chat templates, and with limits.

The template reaches plain data and a few functions, no attributes of Python, no files. Loops and
macros count steps against a deadline; output and repeated strings are capped. Knows no tokens.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from octavo.runtime.env import Env
from octavo.v1.errors import INVALID_VALUE, MODEL_UNREADABLE, OctavoError

DEADLINE_S: Final = 1.0
"""A template of 92 microseconds has no business with more."""
OUTPUT_CHARS: Final = 1024 * 1024
"""What a template may add to its input, as often as it repeats it."""
OUTPUT_FACTOR: Final = 8
_TICKS_PER_LOOK: Final = 256
_TICK: Final = "octavo_tick"


class _LimitError(Exception):
    """The template ran into a limit."""


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own convention

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _PlainNamespace(Namespace):
    """A namespace without underscored names."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace takes no underscored names")


class _PlainDict:
    """`dict(...)` without the class behind it."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a tick in each loop and macro and a cap on repetition."""

    intercepted_binops = frozenset(["*", "**"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        bodies = [node.body for node in tree.find_all(nodes.For)]
        bodies += [node.body for node in tree.find_all(nodes.Macro)]
        for body in bodies:
            call = nodes.Call(nodes.Name(_TICK, "load"), [], [], None, None)
            body.insert(0, nodes.ExprStmt(call, lineno=body[0].lineno if body else 1))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(left) < 2**32 and abs(right) < 64):
            raise _LimitError("a power is too large")
        sized, count = (left, right) if hasattr(left, "__len__") else (right, left)
        if hasattr(sized, "__len__") and len(sized) * count > OUTPUT_CHARS:
            raise _LimitError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class Sandbox:
    """One compiled template.

    Raises:
        OctavoError: MODEL_UNREADABLE when the source is no template.
    """

    def __init__(self, source: str, env: Env) -> None:
        self._env = env
        jinja = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
        )
        jinja.filters["tojson"] = _tojson
        jinja.globals.update(
            raise_exception=_raise_exception,
            strftime_now=self._strftime_now,
            dict=_PlainDict(),
            namespace=_PlainNamespace,
        )
        try:
            self._template = jinja.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise OctavoError(
                MODEL_UNREADABLE, path="chat_template.jinja", reason=str(error)[:200]
            ) from error

    def render(self, variables: Mapping[str, object], *, num_input_chars: int) -> str:
        """Returns the text.

        Args:
            variables: plain JSON data.
            num_input_chars: the callers' share of it; the cap on the output grows with it.

        Raises:
            OctavoError: INVALID_VALUE when the template refuses, fails or passes a limit.
        """
        limit = OUTPUT_CHARS + OUTPUT_FACTOR * num_input_chars
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate({**variables, _TICK: self._ticker()}):
                size += len(piece)
                if size > limit:
                    raise _LimitError("the output is too long")
                pieces.append(piece)
        except jinja2.UndefinedError as error:
            raise _refusal(f"the chat template needs something else: {error}") from error
        except SecurityError as error:
            raise _refusal("the chat template is not safe to run") from error
        except (jinja2.TemplateError, _LimitError) as error:
            raise _refusal(f"the chat template refuses them: {error}") from error
        except (
            ArithmeticError,
            LookupError,
            MemoryError,
            RecursionError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:
            raise _refusal(f"the chat template fails on them ({type(error).__name__})") from error
        return "".join(pieces)

    def _ticker(self) -> Callable[[], None]:
        end = self._env.now() + DEADLINE_S
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1
            if ticks % _TICKS_PER_LOOK == 0 and self._env.now() > end:
                raise _LimitError("it takes too long")

        return tick

    def _strftime_now(self, format: str) -> str:
        return datetime.datetime.fromtimestamp(self._env.wall()).strftime(format)


def _refusal(reason: str) -> OctavoError:
    return OctavoError(INVALID_VALUE, param="messages", reason=reason[:300])
