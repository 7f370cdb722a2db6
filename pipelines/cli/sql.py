"""``weir sql``: Spark SQL over an application's outputs and changelogs, whether it is running or not."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    SetOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import notices, print_csv, print_json, print_table
from weir.pipelines.operations.statements import Statement, statements

if TYPE_CHECKING:
    from weir.pipelines.spark.sql import SqlSession

SHOWN_ROWS = 1_000
HISTORY_LINES = 1_000
_LEAVE = ("\\q", "exit", "quit")


class Format(StrEnum):
    """How rows are printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def sql(
    application: AppArgument,
    query: Annotated[
        str | None,
        typer.Argument(metavar="SQL", help="Statements, separated by `;`. Without any, a prompt asks for them."),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How rows are printed.")] = Format.TABLE,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default=f"{SHOWN_ROWS:,} as a table, else all",
            help="Print at most this many rows of a statement; 0 for all.",
        ),
    ] = None,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Query outputs and changelogs with Spark SQL, while the application runs or afterwards.

    An output has its name and says what counts now, as `weir show` does: for a table the newest row of each key, for
    facts all rows. `updates.NAME` has all updates of a table, `changelog.STORE` all changes of a store, and
    `store.STORE` what the store holds; `commits.expectations` has what each commit counted of expectations. `SHOW
    TABLES` lists them. In names, dots and dashes become underscores.

    Each statement sees the application as of one commit, the newest that all its tables have.

    At the prompt `;` ends a statement; `\\q` or Ctrl-D leaves, and Ctrl-C cancels. Statements can also be piped in:
    `weir sql flights < report.sql`.
    """
    from weir.pipelines.cli.progress import waiting
    from weir.pipelines.operations.sql import opened_sql

    settings = load_settings(directory, parse_assignments(assignments or []), writes=True)
    most = (SHOWN_ROWS if form is Format.TABLE else 0) if limit is None else limit
    is_asked = query is None and sys.stdin.isatty()
    text = query if query is not None or is_asked else sys.stdin.read()
    with ExitStack() as stack:
        with waiting(application, "reading the newest commit") as say:
            session = stack.enter_context(opened_sql(settings, application, on_step=say))
        if text is not None:
            for statement in statements(text):
                _print(session, statement, form, most)
        else:
            _converse(session, settings.dir / "spark" / "sql_history", form, most)


def _print(session: SqlSession, statement: Statement, form: Format, most: int) -> None:
    from weir.pipelines.cli.progress import waiting
    from weir.pipelines.operations.rows import as_dictionaries

    with waiting(session.application, f"running the statement of line {statement.line}"):
        rows = session.run(statement.text, at_most=most + 1 if most else 0, first_line=statement.line)
    shown = rows.head(most) if most else rows
    if not rows.width:
        notices.print("done")
    elif form is Format.JSON:
        print_json(as_dictionaries(shown))
    elif form is Format.CSV:
        print_csv(shown)
    else:
        print_table(shown)
    if shown.height < rows.height:
        notices.print(f"the first {most:,} rows; --limit 0 prints all", soft_wrap=True)


def _converse(session: SqlSession, history: Path, form: Format, most: int) -> None:
    """Ask for statements until somebody leaves."""
    import readline

    from weir.pipelines.spark.sql import SparkEndedError, SqlError

    with suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer_delims(" \t\n,;()=<>")
    readline.set_completer(lambda text, state: [*_completions(session, text), None][state])
    readline.parse_and_bind("tab: complete")
    notices.print("`;` ends a statement, SHOW TABLES; lists what there is, \\q leaves", markup=False, soft_wrap=True)
    pending = ""
    try:
        while True:
            try:
                line = input("   > " if pending else "sql> ")
                if not pending and line.strip().removesuffix(";").lower() in _LEAVE:
                    return
                found = list(statements(f"{pending}{line}\n"))
                pending = f"{found[-1].text}\n" if found and not found[-1].is_ended else ""
                for statement in found:
                    if statement.is_ended:
                        _print(session, statement, form, most)
            except SparkEndedError:
                raise
            except SqlError as error:
                notices.print(str(error), markup=False, soft_wrap=True)
            except KeyboardInterrupt:
                pending = ""
                notices.print("\ncancelled")
            except EOFError:
                notices.print()
                return
    finally:
        readline.write_history_file(history)


def _completions(session: SqlSession, text: str) -> list[str]:
    return [name for name in session.names if name.lower().startswith(text.lower())]
