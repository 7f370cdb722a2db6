"""Assembles the ``weir`` commands and decides how an error looks: one sentence, with the stack trace under --debug."""

from __future__ import annotations

import re
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from weir.pipelines.cli import (
    backfill,
    compact,
    control,
    dead_letters,
    demo,
    inspect,
    kafka,
    migrate,
    package,
    plan,
    query,
    repartition,
    run,
    setup,
    sink,
    sql,
    stacks,
    state,
    status,
    tasks,
    top,
    verify,
)
from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.options import DEBUG
from weir.pipelines.cli.render import notices
from weir.pipelines.operations.errors import says_what_to_do
from weir.state.printable import printable


def _sentence(error: Exception) -> str:
    """Weir's own errors say what to do; any other is shown with its type and how to see more."""
    text = printable(re.sub(r"\s+", " ", str(error).strip(), flags=re.ASCII))
    if says_what_to_do(error):
        return text
    return f"unexpected {type(error).__name__}: {text or 'no message'}; run it again with --debug for the stack trace"


class CommandGroup(TyperGroup):
    """Turns whatever a command raises into one sentence on standard error and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.TyperException, typer.Exit, typer.Abort, KeyboardInterrupt, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.meta.get(DEBUG):
                traceback.print_exception(error)
            notices.print("weir:", style="bold red", end=" ")
            notices.print(advised(_sentence(error), ctx), markup=False, soft_wrap=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="weir",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Event-time stream processing: run applications, query their state and tables, and control them.",
    epilog="Start here: weir demo",
)

for name, command, example in (
    ("demo", demo.demo, "weir demo --no-ui"),
    ("setup", setup.setup, "weir setup"),
    ("run", run.run, "weir run weir.pipelines.examples.flights:app --until-caught-up --set slots=2"),
    ("package", package.package, "weir package weir.pipelines.examples.flights:app --output flights.tar.gz"),
    ("plan", plan.plan, "weir plan weir.pipelines.examples.flights:app"),
    ("describe", inspect.describe, "weir describe weir.pipelines.examples.flights:app"),
    ("status", status.status, "weir status --json"),
    ("tasks", tasks.tasks, "weir tasks flights"),
    ("top", top.top, "weir top flights --every 5"),
    ("logs", inspect.logs, "weir logs flights --lines 100"),
    ("stacks", stacks.stacks, "weir stacks flights"),
    ("show", inspect.show, "weir show flights carrier_totals --limit 16"),
    ("query", query.query, "weir query flights by_carrier UA --isolation read_uncommitted"),
    ("sql", sql.sql, 'weir sql flights "SELECT carrier, flights FROM carrier_totals ORDER BY flights DESC LIMIT 3"'),
    ("verify", verify.verify, "weir verify flights"),
    ("commit", control.commit, "weir commit flights"),
    ("pause", control.pause, "weir pause flights"),
    ("resume", control.resume, "weir resume flights"),
    ("scale", control.scale, "weir scale flights --slots 3"),
    ("snapshot", control.snapshot, "weir snapshot flights"),
    ("restore", control.restore, "weir restore flights 0_1 --from-changelog"),
    ("stop", control.stop, "weir stop flights"),
    ("repartition", repartition.repartition, "weir repartition flights --dry-run"),
    ("compact", compact.compact, "weir compact flights --dry-run"),
    ("reset", control.reset, "weir reset flights --yes"),
    ("bench", run.bench, "weir bench --quick --json"),
):
    app.command(name, epilog=f"Example: {example}")(command)

app.add_typer(kafka.kafka, name="kafka")
app.add_typer(migrate.migrate, name="migrate")
app.add_typer(backfill.backfill, name="backfill")
app.add_typer(dead_letters.dead_letters, name="dead-letters")
app.add_typer(sink.sink, name="sink")
app.add_typer(state.state, name="state")


def _version(wanted: bool) -> None:
    if wanted:
        from weir import __version__

        typer.echo(f"weir {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print Weir's version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The entry point of the ``weir`` command."""
    app(prog_name="weir")
