"""``weir demo``: runs an example, by default the flights application over a year of real departures from New York."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import DebugOption, DirOption, SetOption, load_settings, parse_assignments
from weir.pipelines.cli.render import console, notices, print_table

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.infra.spark.standalone import StandaloneCluster
    from weir.pipelines.examples.loading import LoadSummary
    from weir.pipelines.spark.progress import RunSummary

REFERENCE = "weir.pipelines.examples.flights:app"
WORST_HOURS = 8
MIN_DEPARTURES = 10
"""The mean delay of an hour with fewer departures says little."""


class Example(StrEnum):
    """What ``weir demo`` can show."""

    FLIGHTS = "flights"
    CUSTOMERS = "customers"


def demo(
    example: Annotated[
        Example, typer.Argument(help="Departures by carrier and hour; or deliveries to PostgreSQL and Kafka.")
    ] = Example.FLIGHTS,
    no_ui: Annotated[
        bool, typer.Option("--no-ui", help="Exit after printing the results, without starting the Dagster UI.")
    ] = False,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            metavar="N",
            min=0,
            help="Run the flights on a Spark cluster of a master and N workers, processes of this host that end with "
            "the demo; without the UI.",
        ),
    ] = 0,
    assignments: SetOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Load 336,776 real flights into Kafka, run the flights application over them, and show the results.

    With `customers`, load 200,000 made-up events of 1,000 customers instead, and deliver them in batches to a table of
    PostgreSQL and to a topic, without the UI.

    If it is killed, start it again in the same folder: it continues where it was.
    """
    settings = load_settings(directory, parse_assignments(assignments or []), writes=True)
    notices.print(f"Weir's demo in {settings.dir}: starting Kafka", markup=False, soft_wrap=True)
    if example is Example.CUSTOMERS:
        if workers:
            raise typer.BadParameter("only the flights run on a cluster: leave out --workers, or `customers`")
        from weir.pipelines.cli.demo_customers import deliver

        deliver(settings)
    else:
        _show_flights(settings, workers, no_ui=no_ui or bool(workers))


def _show_flights(settings: Settings, workers: int, *, no_ui: bool) -> None:
    from weir.infra.kafka.broker import broker_for
    from weir.infra.spark.standalone import StandaloneCluster
    from weir.pipelines.cli.progress import TerminalWarnings, counting, following
    from weir.pipelines.examples.load_flights import load
    from weir.pipelines.operations.drive import drive

    with broker_for(settings) as (bootstrap_servers, settings):
        with counting("loading flights") as show:
            loaded = load(
                bootstrap_servers,
                client_properties=settings.kafka,
                on_progress=lambda done, total: show(done, total, ""),
            )
        on_cluster = StandaloneCluster(settings.dir / "cluster", settings, workers) if workers else nullcontext()
        with following("running flights") as on_progress, on_cluster as cluster:
            summary = drive(
                REFERENCE,
                cluster.settings if cluster else settings,
                until_caught_up=True,
                owner="weir run",
                on_progress=on_progress,
                console=TerminalWarnings(),
            )
        if summary.reason != "caught_up":
            console.print("Stopped and committed; `weir demo` continues from here.")
            return
        print_results(settings, loaded, summary, cluster)
        if not no_ui:
            from weir.pipelines.cli.dagster_ui import serve

            serve(settings)


def print_results(
    settings: Settings, loaded: LoadSummary, summary: RunSummary, cluster: StandaloneCluster | None = None
) -> None:
    """A summary of the two output tables, counts, where everything is stored, and what to try next."""

    import polars as pl

    from weir.pipelines.operations.rows import without_bookkeeping
    from weir.state.commit.tables import read_table
    from weir.state.storage.places import folder_at

    folder = folder_at(settings.warehouse) / summary.application
    if not loaded.loaded and not summary.records_in:
        console.print(
            "\nNothing to do: every flight is in the topic and has been processed. The results so far:", soft_wrap=True
        )
    carriers = without_bookkeeping(read_table(folder / "carrier_totals")).sort("flights", descending=True)
    hours = without_bookkeeping(read_table(folder / "late_departures"))
    worst = hours.filter(pl.col("flights") - pl.col("cancelled") >= MIN_DEPARTURES).sort(
        ["mean_delay", "carrier", "origin", "window_start"], descending=[True, False, False, False], nulls_last=True
    )
    console.print()
    print_table(
        carriers.with_columns((100 * pl.col("late") / pl.col("flights")).alias("late %")),
        f"Departures by carrier in 2013, all {carriers.height} carriers (carrier_totals)",
    )
    console.print()
    print_table(
        worst.head(WORST_HOURS).drop("window_end").rename({"window_start": "hour (UTC)"}),
        f"The worst hours with at least {MIN_DEPARTURES} departures, of {hours.height:,} final ones (late_departures)",
    )
    total = carriers.select(pl.col("flights", "late", "cancelled").sum()).row(0, named=True)
    console.print(
        f"\n{total['flights']:,} flights, {total['late']:,} late, {total['cancelled']:,} cancelled; "
        f"{summary.totals.get('open_windows', 0):,} windows are still open, and "
        f"{summary.totals.get('late_records', 0):,} records arrived after their window had closed and were dropped.",
        soft_wrap=True,
    )
    if loaded.loaded or summary.records_in:
        console.print(
            f"This time: {loaded.loaded:,} records loaded in {loaded.seconds:.1f} s, {summary.records_in:,} "
            f"processed in {summary.seconds:.1f} s; commits: {summary.commits}.",
            soft_wrap=True,
        )
    weir = "weir" if shutil.which("weir") else os.path.relpath(sys.argv[0])
    where = "" if settings.dir == Path.cwd() / ".weir" else f" --dir {settings.dir}"
    console.print(
        f"\nTables (Delta):  {folder}/carrier_totals\n                 {folder}/late_departures"
        f"\nState (LMDB):    {_places(settings, summary.application, cluster)}"
        f"\n\nTry next:\n  {weir} show {summary.application} late_departures --limit 5{where}"
        + (
            f"\n  {weir} tasks {summary.application}"
            if cluster
            else f"\n  {weir} query {summary.application} by_carrier UA"
        )
        + f"{where}\n  {weir} status{where}\n  {weir} describe {REFERENCE}",
        markup=False,
        soft_wrap=True,
    )


def _places(settings: Settings, application: str, cluster: StandaloneCluster | None) -> str:
    """Where the tasks' state is; on a cluster, also of which tasks."""
    if cluster is None:
        return str(settings.state_dir / application)
    folders = [cluster.dir_of(number) / "state" / application for number in sorted(cluster.workers)]
    return "\n                 ".join(
        f"{folder}: {', '.join(sorted(place.parent.name for place in folder.glob('*/CURRENT'))) or 'no task'}"
        for folder in folders
    )
