"""``weir migrate to-group`` and ``to-checkpoints``: an application's committed positions for other systems."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, load_settings
from pipelines.cli.render import console

if TYPE_CHECKING:
    from infra.settings import Settings
    from pipelines.migrate.migration import TopicPartition
    from state.commit.record import CommitRecord

ServersOption = Annotated[str | None, typer.Option(
    "--bootstrap-servers", metavar="HOST:PORT,...", help="Your own Kafka; the folder's embedded broker when left out.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show exactly what would change; change nothing.")]
FolderArgument = Annotated[Path, typer.Argument(metavar="FOLDER")]


def _newest(settings: Settings, application: str) -> CommitRecord:
    """The newest commit; raises ``CommandError`` when the folder does not know the application, or has none."""
    from pipelines.cli.registry import require
    from state.commit.protocol import newest_commit

    newest = newest_commit(settings.warehouse, require(settings, application))
    if newest is None:
        raise CommandError(f"{application} has committed nothing yet; run it first")
    return newest


def to_group(application: AppArgument,
             group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's id.")],
             dry_run: DryRunOption = False, bootstrap_servers: ServersOption = None, directory: DirOption = None,
             debug: DebugOption = False) -> None:
    """Commit the application's positions for a consumer group, which has none of these topics yet.

    `weir run --set mirror_offsets_to_group=GROUP` does that at every commit.
    """
    from infra.kafka.admin import KafkaAdmin
    from infra.kafka.broker import broker_for
    from pipelines.cli.positions import committed_positions

    settings = load_settings(directory, {"bootstrap_servers": bootstrap_servers} if bootstrap_servers else None)
    positions = {(topic, number): offset
                 for topic, offsets in committed_positions(_newest(settings, application)).items()
                 for number, offset in offsets.items()}
    with broker_for(settings) as servers:
        admin = KafkaAdmin(servers, settings.kafka)
        held = admin.group_offsets(group)
        changed = {partition: offset for partition, offset in positions.items() if held.get(partition) != offset}
        for topic, number in sorted(changed.keys() & held.keys()):
            raise CommandError(f"consumer group {group!r} has offset {held[topic, number]} of topic {topic!r}, "
                               f"partition {number}, and the application {positions[topic, number]}; nothing was "
                               "changed: choose another group, or delete the group's offsets")
        if changed and not dry_run:
            admin.set_group_offsets(group, changed)
    for (topic, number), offset in sorted(changed.items()):
        console.print(f"topic {topic}, partition {number}: offset {offset:,}", markup=False, soft_wrap=True)
    outcome = ("has these offsets already; nothing was changed" if not changed
               else "nothing was changed (--dry-run)" if dry_run else "has the application's positions")
    console.print(f"consumer group {group}: {outcome}", markup=False, soft_wrap=True)


def to_checkpoints(application: AppArgument, folder: FolderArgument, dry_run: DryRunOption = False,
                   directory: DirOption = None, debug: DebugOption = False) -> None:
    """Write the positions as Kafka Streams' `.checkpoint` files, FOLDER/0_1/.checkpoint for task 0_1."""
    from pipelines.cli.registry import registered_application
    from pipelines.migrate.kafka_streams_files import CHECKPOINT, check_checkpoint, write_checkpoint
    from pipelines.spark.errors import TopologyChangedError
    from pipelines.topology.changes import sub_topology_of

    settings = load_settings(directory)
    topology, newest = registered_application(settings, application).topology, _newest(settings, application)
    by_task: dict[str, dict[TopicPartition, int]] = {}
    for name, commit in newest.tasks.items():
        if sub_topology_of(name) not in topology.committed_form.stores:
            raise TopologyChangedError(application, f"this program does not have its task {name}")
        if commit.positions:
            by_task[str(topology.task_of(name))] = {
                (topic, partition): offset for topic, offsets in commit.positions.items()
                for partition, offset in offsets.items()}
    to_write = [task for task, positions in sorted(by_task.items()) if not check_checkpoint(folder / task, positions)]
    for task in to_write:
        if not dry_run:
            write_checkpoint(folder / task, by_task[task])
        console.print(f"{folder / task / CHECKPOINT}: "
                      + ", ".join(f"{topic} {partition} up to {offset - 1}" for (topic, partition), offset
                                  in sorted(by_task[task].items()) if offset), markup=False, soft_wrap=True)
    outcome = "nothing was changed" if dry_run or not to_write else f"{len(to_write)} files written"
    console.print(f"{application}: {outcome}{' (--dry-run)' if dry_run else ''}", markup=False, soft_wrap=True)
