"""``weir run`` and ``weir bench``."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import (
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    ServersOption,
    SetOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import console, print_table
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.text import counted
from weir.pipelines.spark.garbage import no_collections

if TYPE_CHECKING:
    from weir.pipelines.spark.progress import RunSummary


def summary_line(summary: RunSummary) -> str:
    """One sentence about a finished run."""
    if not summary.generation:
        return f"{summary.application} was stopped before it began; nothing was read"
    ended = "has caught up" if summary.reason == "caught_up" else "has stopped"
    return (
        f"{summary.application} {ended}: {counted(summary.records_in, 'record')} in {summary.seconds:.1f} s, "
        f"{counted(summary.commits, 'commit')}, generation {summary.generation}, epoch {summary.epoch}; "
        f"{counted(summary.totals.get('open_windows', 0), 'open window')}, "
        f"{counted(summary.totals.get('late_records', 0), 'late record')} since the first run (counted once per window)"
        + "".join(
            f", {counted(count, name)}{note}"
            for name, count, note in (
                ("dead letter", summary.totals.get("dead_letters", 0), " so far"),
                ("left-out record", summary.totals.get("failed_records", 0), ""),
            )
            if count
        )
    )


def run(
    reference: ReferenceArgument,
    until_caught_up: Annotated[
        bool,
        typer.Option(
            "--until-caught-up", help="Exit once everything that was in the topics at the start has been processed."
        ),
    ] = False,
    bootstrap_servers: ServersOption = None,
    assignments: SetOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            help="Serve metrics to Prometheus at 127.0.0.1:PORT/metrics during the run; "
            "--set metrics_host=0.0.0.0 serves every host.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="Run the tasks on a Spark cluster, such as spark://host:7077, instead of on this host; "
            "short for --set master=URL.",
        ),
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(
            "--archive",
            metavar="FILE",
            help="With a master: what `weir package MODULE:APP` has written, for executors whose hosts have neither "
            "Weir nor the program; short for --set archive=FILE.",
        ),
    ] = None,
    is_profiled: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="Write where the time of each epoch and task goes, and flame graphs of driver and workers, to "
            "`profile/APP` in the folder of --dir, and show a summary at the end.",
        ),
    ] = False,
    profile_folder: Annotated[
        Path | None,
        typer.Option("--profile-folder", metavar="FOLDER", help="The same, but write to this folder."),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over", help="Start even if another driver holds the application; the other is fenced and stops."
        ),
    ] = False,
    is_standby: Annotated[
        bool,
        typer.Option(
            "--standby",
            help="Wait while another driver runs the application, on this host or another, and take over when it dies.",
        ),
    ] = False,
    accept_state_loss: Annotated[
        bool,
        typer.Option(
            "--accept-state-loss",
            help="Start even if a new topology or partition count leaves stores empty; `weir plan MODULE:APP` shows "
            "which.",
        ),
    ] = False,
    accept_lost_records: Annotated[
        bool,
        typer.Option(
            "--accept-lost-records",
            help="Start even if a topic was recreated, or has lost records before they were read: keep all state and "
            "read it from its start, or continue where it can still be read; `weir plan MODULE:APP` shows where.",
        ),
    ] = False,
    committed_partitions: Annotated[
        bool,
        typer.Option(
            "--committed-partitions",
            help="Of topics that have got more partitions, read those that the newest commit knows; `weir repartition "
            "APP` then deals the state out for all of them. With --until-caught-up only.",
        ),
    ] = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Run an application until it has caught up, or until Ctrl-C.

    On Ctrl-C (or SIGTERM, or `weir stop`) it finishes the epoch, commits and exits. The next run continues from there,
    even after a kill -9.
    """
    from weir.infra.spark.session import java_ahead
    from weir.pipelines.operations.profile import require_folder

    overrides = parse_assignments(assignments or [])
    if metrics_port is not None:
        overrides["metrics_port"] = str(metrics_port)
    if master is not None:
        overrides["master"] = master
    if archive is not None:
        overrides["archive"] = archive
    settings = load_settings(directory, overrides, bootstrap_servers=bootstrap_servers, writes=True)
    with ExitStack() as stack:
        stack.enter_context(java_ahead(settings))
        with no_collections():
            from weir.pipelines.operations.registry import load_reference

            application = load_reference(reference)
        if is_profiled and profile_folder is None:
            profile_folder = settings.dir / "profile" / application.id
        if profile_folder is not None:
            require_folder(profile_folder)
        with no_collections():
            from weir.pipelines.cli.progress import TerminalWarnings, following
            from weir.pipelines.operations.drive import drive

        on_progress = stack.enter_context(following(reference))
        summary = drive(
            reference,
            settings,
            until_caught_up=until_caught_up,
            take_over=take_over,
            is_standby=is_standby,
            accept_state_loss=accept_state_loss,
            accept_lost_records=accept_lost_records,
            committed_partitions=committed_partitions,
            owner="weir run",
            profile=profile_folder,
            on_progress=on_progress,
            console=TerminalWarnings(),
        )
    if profile_folder is not None:
        show_profile(profile_folder)
    console.print(summary_line(summary), soft_wrap=True)


def show_profile(folder: Path) -> None:
    """Print where the time of a profiled run went, and where the files are."""
    from weir.pipelines.operations.profile import profile_summary

    print_table(profile_summary(folder), "Where the time went: shares of the epochs of each task")
    console.print(f"profile: {folder}", markup=False, soft_wrap=True)


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="One run of each, on 600,000 events.")] = False,
    job: Annotated[list[str] | None, typer.Option(help="Run only this job; can be repeated.")] = None,
    peers: Annotated[str, typer.Option(metavar="NAME,...", help="The peers by name, or all.")] = "",
    weir_alone: Annotated[bool, typer.Option("--weir-alone", help="Leave all peers out.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with a bench that was ended.")] = False,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Measure Weir and its peers side by side, on the same broker and events; in a clone of the repository only."""
    clone = Path(__file__).resolve().parents[2]
    if not (clone / "bench" / "__main__.py").exists():
        raise OperationError(
            "the benchmarks are not part of the installed package; clone Weir's repository and run `make bench` there"
        )
    sys.path.insert(0, str(clone))
    import bench as benchmark

    benchmark.main(
        quick=quick,
        as_json=as_json,
        jobs=job or (),
        peers=[name for name in peers.split(",") if name],
        weir_alone=weir_alone,
        fresh=fresh,
        dir=load_settings(directory, writes=True).dir,
    )
