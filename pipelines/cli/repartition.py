"""``weir repartition``: deals an application's state out after its topics got more partitions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, DebugOption, DirOption, JsonOption, ServersOption, load_settings
from weir.pipelines.cli.render import console, notices, print_json

if TYPE_CHECKING:
    from weir.state.changelog.dealing import Dealt


def repartition(
    application: AppArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and count everything; change nothing.")] = False,
    keyed_by_record: Annotated[
        list[str] | None,
        typer.Option(
            "--keyed-by-record",
            metavar="STORE",
            help="A processor's store whose keys are those of the records; can be repeated.",
        ),
    ] = None,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Keep an application's state when its topics have got more partitions: each key's rows go to the task of the
    partition where its new records are.

    Stop the application first. Everything changes with one commit, or nothing; give the command again if it was
    interrupted. Records that are unread in the old partitions have to be read before, with
    `weir run MODULE:APP --until-caught-up --committed-partitions`.
    """
    from weir.pipelines.operations.repartition import repartitioned

    settings = load_settings(directory, bootstrap_servers=bootstrap_servers, writes=not dry_run)

    def tell(dealt: Dealt) -> None:
        task = f"{dealt.sub_topology}_{dealt.partition}"
        notices.print(f"{task}: {dealt.spec.name}, {dealt.rows.height:,} rows", markup=False, soft_wrap=True)

    done = repartitioned(settings, application, keyed_by_record=keyed_by_record or (), dry_run=dry_run, on_dealt=tell)
    if as_json:
        print_json(asdict(done))
        return
    for line in done.changes:
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"{done.application}: {done.outcome}", markup=False, soft_wrap=True)
