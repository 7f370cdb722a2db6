"""``weir migrate to-group`` and ``to-checkpoints``: an application's committed positions for other systems; and what
all directions share: their options, and how the outcome looks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, load_settings
from weir.pipelines.cli.render import console

if TYPE_CHECKING:
    from weir.infra.settings import Settings
    from weir.state.commit.record import CommitRecord
    from weir.state.types import TopicPartition

ServersOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="Your own Kafka; the folder's embedded broker when left out.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show exactly what would change; change nothing.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER")]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a migration changed, or would change."""

    what: str
    """The application that positions come to, or the consumer group or application that they are written for."""
    source: str = ""
    """Where they come from."""
    outcome: str
    changes: list[str]
    """A sentence each."""
    notes: list[str]


def migration_settings(directory: Path | None, bootstrap_servers: str | None) -> Settings:
    """The settings of a folder with the brokers that a flag names."""
    return load_settings(directory, None if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers})


def print_moved(moved: Moved) -> None:
    """A line a change, then one that sums up."""
    for line in (*moved.changes, *(f"note: {note}" for note in moved.notes)):
        console.print(line, markup=False, soft_wrap=True)
    console.print(": ".join(filter(None, (moved.what, moved.source, moved.outcome))), markup=False, soft_wrap=True)


def _newest(settings: Settings, application: str) -> CommitRecord:
    """The newest commit; raises ``CommandError`` when the folder does not know the application, or has none."""
    from weir.pipelines.cli.registry import require
    from weir.state.commit.protocol import newest_commit

    newest = newest_commit(settings.warehouse, require(settings, application))
    if newest is None:
        raise CommandError(f"{application} has committed nothing yet; run it first")
    return newest


def to_group(
    application: AppArgument,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's id.")],
    dry_run: DryRunOption = False,
    bootstrap_servers: ServersOption = None,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Commit the application's positions for a consumer group, which has none of these topics yet.

    `weir run --set mirror_offsets_to_group=GROUP` does that at every commit.
    """
    print_moved(move_to_group(migration_settings(directory, bootstrap_servers), application, group, dry_run=dry_run))


def move_to_group(settings: Settings, application: str, group: str, *, dry_run: bool) -> Moved:
    """Give a consumer group the committed positions; raises ``CommandError`` when it has others."""
    from weir.infra.kafka.admin import KafkaAdmin
    from weir.infra.kafka.broker import broker_for
    from weir.pipelines.cli.positions import committed_positions

    positions = {
        (topic, number): offset
        for topic, offsets in committed_positions(_newest(settings, application)).items()
        for number, offset in offsets.items()
    }
    with broker_for(settings) as servers:
        admin = KafkaAdmin(servers, settings.kafka)
        held = admin.group_offsets(group)
        changed = {partition: offset for partition, offset in positions.items() if held.get(partition) != offset}
        for topic, number in sorted(changed.keys() & held.keys()):
            raise CommandError(
                f"consumer group {group!r} has offset {held[topic, number]} of topic {topic!r}, "
                f"partition {number}, and the application {positions[topic, number]}; nothing was "
                "changed: choose another group, or delete the group's offsets"
            )
        if changed and not dry_run:
            admin.set_group_offsets(group, changed)
    outcome = (
        "has these offsets already; nothing was changed"
        if not changed
        else "nothing was changed (--dry-run)"
        if dry_run
        else "has the application's positions"
    )
    return Moved(
        what=f"consumer group {group}",
        outcome=outcome,
        notes=[],
        changes=[
            f"topic {topic}, partition {number}: offset {offset:,}"
            for (topic, number), offset in sorted(changed.items())
        ],
    )


def to_checkpoints(
    application: AppArgument,
    folder: FolderArgument,
    dry_run: DryRunOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Write the positions as Kafka Streams' `.checkpoint` files, FOLDER/0_1/.checkpoint for task 0_1."""
    print_moved(move_to_checkpoints(load_settings(directory), application, folder, dry_run=dry_run))


def move_to_checkpoints(settings: Settings, application: str, folder: Path, *, dry_run: bool) -> Moved:
    """Write a ``.checkpoint`` file a task that reads topics."""
    from weir.pipelines.cli.registry import registered_application
    from weir.pipelines.migrate.kafka_streams_files import CHECKPOINT, check_checkpoint, write_checkpoint
    from weir.pipelines.spark.errors import TopologyChangedError
    from weir.pipelines.topology.changes import sub_topology_of

    topology, newest = registered_application(settings, application).topology, _newest(settings, application)
    by_task: dict[str, dict[TopicPartition, int]] = {}
    for name, commit in newest.tasks.items():
        if sub_topology_of(name) not in topology.committed_form.stores:
            raise TopologyChangedError(application, f"this program does not have its task {name}")
        if commit.positions:
            by_task[str(topology.task_of(name))] = {
                (topic, partition): offset
                for topic, offsets in commit.positions.items()
                for partition, offset in offsets.items()
            }
    to_write = [task for task, positions in sorted(by_task.items()) if not check_checkpoint(folder / task, positions)]
    for task in to_write if not dry_run else ():
        write_checkpoint(folder / task, by_task[task])
    outcome = "nothing was changed" if dry_run or not to_write else f"{len(to_write)} files written"
    return Moved(
        what=application,
        outcome=f"{outcome}{' (--dry-run)' if dry_run else ''}",
        notes=[],
        changes=[
            f"{folder / task / CHECKPOINT}: "
            + ", ".join(
                f"{topic} {partition} up to {offset - 1}"
                for (topic, partition), offset in sorted(by_task[task].items())
                if offset
            )
            for task in to_write
        ],
    )
