"""``weir migrate``: moves positions and state from other systems into an application's first commit, and back
out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    ServersOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import console, print_json

if TYPE_CHECKING:
    from weir.pipelines.operations.migration import Moved

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show exactly what would change; change nothing.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False)]
EmptyStoresOption = Annotated[
    bool,
    typer.Option(
        "--empty-stores", help="Let the application's stores start empty: results count only records read from now on."
    ),
]


ChangelogOption = Annotated[
    list[str] | None,
    typer.Option(
        "--changelog",
        metavar="STORE=TOPIC",
        help="A changelog topic with a name other than APPLICATION_ID-STORE-changelog; can be repeated.",
    ),
]
SerdesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--serdes",
        metavar="STORE=MODULE:NAME",
        help="The weir.StoreSerdes of a store's changelog, if the one derived from the program does not fit.",
    ),
]


def _print_moved(moved: Moved) -> None:
    """One line per change, then a summary."""
    for line in (*moved.changes, *(f"note: {note}" for note in moved.notes)):
        console.print(line, markup=False, soft_wrap=True)
    console.print(": ".join(filter(None, (moved.what, moved.source, moved.outcome))), markup=False, soft_wrap=True)


def _show(moved: Moved, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "application": moved.what,
                "source": moved.source,
                "outcome": moved.outcome,
                "changes": moved.changes,
                "notes": moved.notes,
            }
        )
    else:
        _print_moved(moved)


def from_group(
    reference: ReferenceArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's id.")],
    empty_stores: EmptyStoresOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Start from a consumer group's committed offsets. Stop its consumers first.

    The application must not have committed anything yet.
    """
    from weir.pipelines.operations.migration import move_from_group, place

    with place(load_settings(directory, bootstrap_servers=bootstrap_servers, writes=True), reference) as where:
        _show(move_from_group(where, group, empty_stores=empty_stores, dry_run=dry_run), as_json)


def from_checkpoints(
    reference: ReferenceArgument,
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help=".checkpoint or .position files, or folders that contain them."),
    ],
    empty_stores: EmptyStoresOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Start from the source topics' offsets in Kafka Streams' `.checkpoint` and `.position` files.

    Changelog topics in them are ignored: to move state as well, use `weir migrate from-kafka-streams`.
    """
    from weir.pipelines.operations.migration import move_from_checkpoints, place

    with place(load_settings(directory, bootstrap_servers=bootstrap_servers, writes=True), reference) as where:
        _show(move_from_checkpoints(where, paths, empty_stores=empty_stores, dry_run=dry_run), as_json)


def from_spark(
    reference: ReferenceArgument,
    folder: FolderArgument,
    empty_stores: EmptyStoresOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Start from the end of the last committed batch of a Spark Structured Streaming query.

    FOLDER is the query's checkpointLocation. Stop the query first.
    """
    from weir.pipelines.operations.migration import move_from_spark, place

    with place(load_settings(directory, bootstrap_servers=bootstrap_servers, writes=True), reference) as where:
        _show(move_from_spark(where, folder, empty_stores=empty_stores, dry_run=dry_run), as_json)


def from_kafka_streams(
    reference: ReferenceArgument,
    application_id: Annotated[str, typer.Argument(metavar="APPLICATION_ID", help="Kafka Streams' application.id.")],
    changelogs: ChangelogOption = None,
    serdes: SerdesOption = None,
    empty_stores: EmptyStoresOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Migrate a stopped Kafka Streams application: its changelog topics become state, its offsets positions.

    Stop it cleanly first. MODULE:APP must have the same topology and store names.
    """
    from weir.pipelines.operations.migration import move_from_kafka_streams, place

    topics = parse_assignments(changelogs or [], option="--changelog", example="totals=shop-totals-changelog")
    named = parse_assignments(serdes or [], option="--serdes", example="totals=my_jobs.serdes:totals")
    with place(load_settings(directory, bootstrap_servers=bootstrap_servers, writes=True), reference) as where:
        moved = move_from_kafka_streams(
            where, application_id, changelogs=topics, serdes=named, empty_stores=empty_stores, dry_run=dry_run
        )
        _show(moved, as_json)


def to_kafka_streams(
    application: AppArgument,
    application_id: Annotated[str, typer.Argument(metavar="APPLICATION_ID", help="Kafka Streams' application.id.")],
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            metavar="FOLDER",
            help="Write .checkpoint files there: FOLDER/0_1/.checkpoint for task 0_1. It must be empty.",
        ),
    ] = None,
    changelogs: ChangelogOption = None,
    serdes: SerdesOption = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Overwrite what the Kafka Streams application left in its topics and group."),
    ] = False,
    empty_stores: Annotated[
        bool,
        typer.Option("--empty-stores", help="Let Kafka Streams start those stores empty that cannot be written."),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Hand the application to Kafka Streams: its stores become changelog topics, its positions the group's offsets.

    Stop the application first, and start Kafka Streams once this has ended. If it is interrupted, give the same command
    again.
    """
    from weir.pipelines.operations.migration import move_to_kafka_streams

    topics = parse_assignments(changelogs or [], option="--changelog", example="totals=shop-totals-changelog")
    named = parse_assignments(serdes or [], option="--serdes", example="totals=my_jobs.serdes:totals")
    moved = move_to_kafka_streams(
        load_settings(directory, bootstrap_servers=bootstrap_servers, writes=True),
        application,
        application_id,
        state_dir=state_dir,
        changelogs=topics,
        serdes=named,
        replace=replace,
        empty_stores=empty_stores,
        dry_run=dry_run,
    )
    _show(moved, as_json)


def to_group(
    application: AppArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's id.")],
    dry_run: DryRunOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Commit the application's positions for a consumer group that has no offsets for its topics yet.

    `weir run --set mirror_offsets_to_group=GROUP` does so at every commit.
    """
    from weir.pipelines.operations.migration import move_to_group

    settings = load_settings(directory, bootstrap_servers=bootstrap_servers)
    _print_moved(move_to_group(settings, application, group, dry_run=dry_run))


def to_checkpoints(
    application: AppArgument,
    folder: FolderArgument,
    dry_run: DryRunOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Write the positions as Kafka Streams' `.checkpoint` files: FOLDER/0_1/.checkpoint for task 0_1."""
    from weir.pipelines.operations.migration import move_to_checkpoints

    _print_moved(move_to_checkpoints(load_settings(directory), application, folder, dry_run=dry_run))


migrate = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    epilog="Example: weir migrate from-group my_jobs.shop:app old-consumers --dry-run",
    help="Take positions and state from other systems, and hand them back.",
)
for name, command, example in (
    ("from-group", from_group, "my_jobs.shop:app old-consumers --dry-run"),
    ("from-checkpoints", from_checkpoints, "my_jobs.shop:app /var/lib/kafka-streams/shop --dry-run"),
    ("from-spark", from_spark, "my_jobs.shop:app /data/checkpoints/shop --dry-run"),
    ("from-kafka-streams", from_kafka_streams, "my_jobs.shop:app shop-on-kafka-streams --dry-run"),
    ("to-group", to_group, "shop shop-positions"),
    ("to-kafka-streams", to_kafka_streams, "shop shop-on-kafka-streams --dry-run"),
    ("to-checkpoints", to_checkpoints, "shop /tmp/shop-checkpoints"),
):
    migrate.command(name, epilog=f"Example: weir migrate {name} {example}")(command)
