"""Writes the pages of docs/ that are made from the code; `--check` says whether they are current.

Sources: the settings classes, the catalogue of errors, the gateway's table of parameters. A page
that is partly hand-written has a marked part.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from octavo.cli.configuration import written_range
from octavo.cli.settings import GROUPS, MANAGED
from octavo.gateway.api.parameters import PARAMETERS, Parameter
from octavo.loader.config import LoaderConfig
from octavo.operator.config import OperatorConfig
from octavo.runtime.arguments import metavar_of, shown_default
from octavo.runtime.settings import doc_of, env_of, flag_of, names
from octavo.v1.errors import CATALOGUE, ErrorKind

DOCS = Path(__file__).resolve().parent.parent / "docs"
BEGIN = "<!-- made by tools/gen_docs.py: begin -->"
END = "<!-- made by tools/gen_docs.py: end -->"

CONFIGURATION = """\
# Configuration

Made by `make docs` from the settings classes; do not edit.

Each setting is a flag (`--max-model-len`), a variable (`OCTAVO_MAX_MODEL_LEN`) and a key of a TOML
file (`max_model_len`). Precedence: flag, variable, file, default. The file is `--config FILE`, else
the one named by `OCTAVO_CONFIG`, else `octavo.toml` of the current folder if it exists; an empty
name reads none. A value outside its type or range stops the start with its origin; so does a flag,
a variable `OCTAVO_…` or a key that does not exist, with the nearest name. Lists are
comma-separated; switches are `--name` and `--no-name`.

`octavo serve` takes the settings of the first three tables but those marked "set by serve". Where
two tables have the same name, one flag sets both. `octavo config show --origin` prints the
effective values and where each comes from, `octavo config explain KEY` what one means.

Other variables: `OTEL_*` as OpenTelemetry defines them (no traces without them), `HF_*` as
`huggingface_hub` does (the loader knows `HF_TOKEN` and `HF_ENDPOINT`, and `AWS_*` for buckets),
`GOMP_SPINCOUNT` and `OMP_WAIT_POLICY` (without either the engine sets
`GOMP_SPINCOUNT=5000`), `XDG_STATE_HOME` for the logs. Compiled kernels are kept in
`~/.cache/octavo`.
"""

PROCESSES = {**GROUPS, "Loader": LoaderConfig, "Operator": OperatorConfig}
"""Settings classes by heading: those of `octavo serve`, then those of processes of their own."""

INTRODUCTIONS = {
    "Serve": "`octavo serve` itself: what runs on this machine.",
    "Engine": "`octavo engine`, which is `python -m octavo.engine`: one model on one replica.",
    "Gateway": "`octavo gateway`, which is `python -m octavo.gateway`.",
    "Loader": "`python -m octavo.loader`: brings a model to a volume; see [models.md](models.md).",
    "Operator": "`python -m octavo.operator`, as the chart starts it: in the pod's own cluster, or "
    "in that of `KUBECONFIG`. `python -m octavo.operator crd` prints the resource's definition.",
}

ERRORS = """\
# Errors

Made by `make docs` from `octavo.v1.errors`; do not edit.

One table for the HTTP body, the gRPC message, the log and the command line. In the body of an HTTP
error, `error.code` is the name below, `error.octavo.code` the code. A command ends with the exit
status: 1 negative answer, 2 usage, 3 cannot reach, 4 does not fit, 5 internal.
"""

FAMILIES = {
    "10": "The request is at fault",
    "12": "The start failed",
    "20": "The service cannot serve it now",
    "50": "The service broke",
}


def main() -> int:
    """Writes or checks all pages; returns the exit status."""
    stale = []
    for path, text in pages().items():
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"{'stale, run make docs:' if '--check' in sys.argv else 'written:'} {stale}")
    return 1 if stale and "--check" in sys.argv else 0


def pages() -> dict[Path, str]:
    """Returns the wanted content of each page."""
    api = DOCS / "api.md"
    return {
        DOCS / "configuration.md": configuration(),
        DOCS / "errors.md": errors(),
        api: with_part(api.read_text(encoding="utf-8"), parameters()),
    }


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a Markdown table."""
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines += [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def configuration() -> str:
    """Returns the page of settings."""
    parts = [CONFIGURATION]
    for heading, cls in PROCESSES.items():
        rows = [setting_row(cls, name) for name in names(cls)]
        head = ("flag", "value", "default", "meaning")
        parts.append(f"\n## {heading}\n\n{INTRODUCTIONS[heading]}\n\n{table(head, rows)}")
    return "".join(parts)


def setting_row(cls: type, name: str) -> tuple[str, str, str, str]:
    """Returns the table row of one setting."""
    doc = doc_of(cls, name)
    kind = cls.__annotations__[name]
    value = ", ".join(doc.choices)
    if not value:
        hint = {"int": int, "float": float}.get(kind, kind)
        words = "on, off" if kind == "bool" else metavar_of(doc.unit, hint).lower()
        value = " ".join(part for part in (words, written_range(doc.minimum, doc.maximum)) if part)
    notes = (" Masked when shown." if doc.secret else "") + (
        " Set by serve." if name in MANAGED and cls in GROUPS.values() else ""
    )
    flag = f'<a id="{env_of(name).lower()}"></a>`{flag_of(name)}`'
    default = shown_default(cls, name)
    return flag, value, default if default == "empty" else f"`{default}`", doc.help + notes


def errors() -> str:
    """Returns the page of the catalogue."""
    parts = [ERRORS]
    kinds = sorted(CATALOGUE.values(), key=lambda kind: kind.code)
    for family, heading in FAMILIES.items():
        head = ("code", "name", "HTTP", "exit", "message", "help")
        rows = [error_row(kind) for kind in kinds if kind.code.startswith(f"OCT-{family}")]
        parts.append(f"\n## {heading}\n\n{table(head, rows)}")
    return "".join(parts)


def error_row(kind: ErrorKind) -> tuple[str, ...]:
    """Returns the table row of one error."""
    code = f'<a id="{kind.code.lower()}"></a>{kind.code}'
    # A failed start is never an HTTP answer.
    status = "" if kind.code.startswith("OCT-12") else str(kind.status)
    return (code, f"`{kind.name}`", status, str(kind.exit_code), kind.message, kind.help)


def parameters() -> str:
    """Returns the three classes of parameters, one table."""
    # A name may stand in two rows: honoured at one endpoint, refused at the other.
    tables = PARAMETERS.values()
    rows = {(row.kind, row.name): row for rows in tables for row in rows.values()}
    order = ("honoured", "harmless", "refused")
    wanted = sorted(rows.values(), key=lambda row: (order.index(row.kind), row.name))
    head = ("parameter", "class", "endpoints", "note")
    return table(head, map(parameter_row, wanted))


def parameter_row(row: Parameter) -> tuple[str, ...]:
    """Returns the table row of one parameter."""
    where = "both" if len(row.endpoints) > 1 else next(iter(row.endpoints))
    allowed = ", ".join(f"`{default!r}`" for default in row.defaults)
    note = row.note + (f"; accepted: {allowed}" if allowed else "")
    return (f"`{row.name}`", row.kind, where, note)


def with_part(text: str, part: str) -> str:
    """Returns the page with its marked part replaced."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{part}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    sys.exit(main())
