"""``weir migrate``: positions and state of other systems into an application's first commit.

The commands that give positions back are in ``migrate_out`` beside this.
"""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pipelines.cli.migrate_out import DryRunOption, FolderArgument, ServersOption, to_checkpoints, to_group
from pipelines.cli.options import (
    CommandError,
    DebugOption,
    DirOption,
    JsonOption,
    ReferenceArgument,
    load_settings,
)
from pipelines.cli.render import console, print_json

if TYPE_CHECKING:
    from infra.kafka.admin import KafkaAdmin
    from infra.settings import Settings
    from pipelines.application import Application
    from pipelines.migrate.migration import Migration, TopicPartition

LEASE_TTL_S = 600.0
T = TypeVar("T")

EmptyStoresOption = Annotated[bool, typer.Option(
    "--empty-stores", help="The application's stores begin empty: results count only what is read from now on.")]


@dataclass(frozen=True, kw_only=True)
class Place:
    """An application that is to be migrated, and its topics."""

    settings: Settings
    application: Application
    admin: KafkaAdmin
    topic_counts: Mapping[str, int]
    reference: str

    def migration(self, source: str, found: Mapping[TopicPartition, int]) -> Migration:
        """Positions alone, of those topics that the application reads.

        Raises:
            MigrationError: They do not fit the topics.
        """
        from pipelines.migrate.migration import Migration, source_positions

        partitions = [(topic, number) for topic, count in self.topic_counts.items() for number in range(count)]
        positions = source_positions(
            self.application, self.topic_counts, found, self.admin.beginning_offsets(partitions),
            self.admin.end_offsets(partitions), source)
        return Migration(application=self.application, source=source, positions=positions,
                         counts=self.application.topology.partition_counts(self.topic_counts))

    def carry_out(self, migration: Migration, *, dry_run: bool, as_json: bool, notes: Sequence[str] = ()) -> None:
        """Show what the migration changes, and write it unless ``dry_run``."""
        from infra.control import ControlDatabase, this_host
        from pipelines.cli.registry import register

        is_there = migration.is_written(self.settings.warehouse)
        if not dry_run and not is_there:
            database = ControlDatabase(self.settings.control_database_url)
            lease = database.acquire_lease(self.application.id, owner="weir migrate", pid=os.getpid(),
                                           host=this_host(), ttl_s=LEASE_TTL_S)
            try:
                migration.write(self.settings.warehouse)
            finally:
                database.release(lease)
            register(self.settings, self.application.id, self.reference)
        outcome = ("is in place already; nothing was changed" if is_there
                   else "nothing was changed (--dry-run)" if dry_run else "committed as the application's epoch 1")
        if as_json:
            print_json({"application": self.application.id, "source": migration.source, "outcome": outcome,
                        "changes": lines(migration, self.topic_counts), "notes": list(notes)})
            return
        for line in (*lines(migration, self.topic_counts), *(f"note: {note}" for note in notes)):
            console.print(line, markup=False, soft_wrap=True)
        console.print(f"{self.application.id}: {migration.source}: {outcome}", markup=False, soft_wrap=True)


def lines(migration: Migration, topic_counts: Mapping[str, int]) -> list[str]:
    """What a migration changes, a line each."""
    from pipelines.migrate.migration import missing

    start, outputs = migration.application.start, Counter[str]()
    for table, rows in migration.outputs:
        outputs[table.name] += rows.height
    return [
        *(f"topic {topic}, partition {partition}: begins at offset {offset:,}" for (topic, partition), offset
          in sorted(migration.positions.items())),
        *(f"topic {topic}, partition {partition}: has no offset, begins at the {start}" for topic, partition
          in missing(migration.positions, topic_counts)),
        *(f"store {each.store.name}, task {each.task}: {each.rows.height:,} rows" for each in migration.stores),
        *(f"output {name}: {rows:,} rows" for name, rows in outputs.items())]


@contextmanager
def place(reference: str, directory: Path | None, bootstrap_servers: str | None) -> Iterator[Place]:
    """The application at ``reference``, with its broker up for the block."""
    from infra.kafka.admin import KafkaAdmin
    from infra.kafka.broker import broker_for
    from pipelines.cli.plan import source_counts
    from pipelines.cli.registry import load_reference

    settings = load_settings(directory, {"bootstrap_servers": bootstrap_servers} if bootstrap_servers else None)
    application = load_reference(reference)
    with broker_for(settings) as servers:
        yield Place(settings=settings, application=application, admin=KafkaAdmin(servers, settings.kafka),
                    topic_counts=source_counts(settings, application, servers), reference=reference)


def require_empty_stores(application: Application, accepted: bool) -> list[str]:
    """Notes on the stores of an application that takes positions over without state.

    Raises:
        CommandError: It has stores, and nobody said that they may begin empty.
    """
    from pipelines.migrate.migration import stores_of

    stores = stores_of(application)
    if stores and not accepted:
        raise CommandError(f"{application.id} keeps state ({', '.join(stores)}), and positions alone bring none: its "
                           "results would count only what is read from now on; accept that with --empty-stores, or "
                           "leave the migration out to read everything anew")
    return [f"store {store} begins empty" for store in stores]


def from_group(reference: ReferenceArgument,
               group: Annotated[str, typer.Argument(metavar="GROUP", help="The consumer group's id.")],
               empty_stores: EmptyStoresOption = False, dry_run: DryRunOption = False, as_json: JsonOption = False,
               bootstrap_servers: ServersOption = None, directory: DirOption = None,
               debug: DebugOption = False) -> None:
    """Begin where a consumer group has got to. Stop its consumers first.

    The application must not have committed anything yet.
    """
    with place(reference, directory, bootstrap_servers) as where:
        notes = require_empty_stores(where.application, empty_stores)
        if members := where.admin.group_members(group):
            raise CommandError(f"consumer group {group!r} has {members} consumers, which would go on reading; stop "
                               "them first")
        migration = where.migration(f"consumer group {group!r}", where.admin.group_offsets(group))
        where.carry_out(migration, dry_run=dry_run, as_json=as_json, notes=notes)


def from_checkpoints(reference: ReferenceArgument,
                     paths: Annotated[list[Path], typer.Argument(
                         metavar="PATH...", help=".checkpoint or .position files, or folders with such files.")],
                     empty_stores: EmptyStoresOption = False, dry_run: DryRunOption = False,
                     as_json: JsonOption = False, bootstrap_servers: ServersOption = None,
                     directory: DirOption = None, debug: DebugOption = False) -> None:
    """Begin where Kafka Streams' `.checkpoint` and `.position` files have source topics.

    Changelog topics in them are left out: state comes over with `weir migrate from-kafka-streams`.
    """
    from pipelines.migrate.kafka_streams_files import offset_files, read_positions

    with place(reference, directory, bootstrap_servers) as where:
        notes = require_empty_stores(where.application, empty_stores)
        files = offset_files(paths)
        found = read_positions(files)
        others = sorted({topic for topic, _ in found} - where.topic_counts.keys())
        notes += [f"topic {topic} is not read by the application and is left out" for topic in others]
        source = f"{len(files)} files of Kafka Streams in {', '.join(map(str, paths))}"
        where.carry_out(where.migration(source, found), dry_run=dry_run, as_json=as_json, notes=notes)


def from_spark(reference: ReferenceArgument, folder: FolderArgument, empty_stores: EmptyStoresOption = False,
               dry_run: DryRunOption = False, as_json: JsonOption = False, bootstrap_servers: ServersOption = None,
               directory: DirOption = None, debug: DebugOption = False) -> None:
    """Begin where the newest committed batch of a Spark Structured Streaming query ends.

    FOLDER is the query's checkpointLocation. Stop the query first.
    """
    from pipelines.migrate.spark_checkpoint import read_spark_checkpoint

    with place(reference, directory, bootstrap_servers) as where:
        notes = require_empty_stores(where.application, empty_stores)
        found = read_spark_checkpoint(folder)
        if found.is_interrupted:
            notes.append(f"a batch behind {found.batch} was begun and not committed: its input is read again, and what "
                         "the query wrote of it is for you to judge")
        migration = where.migration(f"batch {found.batch} of Spark checkpoint {folder}", found.positions)
        where.carry_out(migration, dry_run=dry_run, as_json=as_json, notes=notes)


def from_kafka_streams(
        reference: ReferenceArgument,
        application_id: Annotated[str, typer.Argument(metavar="APPLICATION_ID", help="Kafka Streams' application.id.")],
        changelogs: Annotated[list[str] | None, typer.Option(
            "--changelog", metavar="STORE=TOPIC", help="A changelog that is not called "
            "APPLICATION_ID-STORE-changelog; may be given more than once.")] = None,
        serdes: Annotated[list[str] | None, typer.Option(
            "--serdes", metavar="STORE=MODULE:NAME", help="A pipelines.migrate.StoreSerdes that reads a store's "
            "changelog, where the program does not suggest the right one.")] = None,
        dry_run: DryRunOption = False, as_json: JsonOption = False, bootstrap_servers: ServersOption = None,
        directory: DirOption = None, debug: DebugOption = False) -> None:
    """Take a stopped Kafka Streams application over: its changelog topics as state, its offsets as positions.

    Stop it cleanly first. MODULE:APP has the same topology, with the same store names.
    """
    from infra.kafka.reader import PartitionReader
    from pipelines.cli.options import parse_assignments
    from pipelines.migrate.formats import StoreSerdes
    from pipelines.migrate.kafka_streams_app import KafkaStreamsApp
    from pipelines.migrate.migration import stores_of

    topics = parse_assignments(changelogs or [], option="--changelog", example="totals=shop-totals-changelog")
    named = parse_assignments(serdes or [], option="--serdes", example="totals=my_jobs.serdes:totals")
    with place(reference, directory, bootstrap_servers) as where:
        for store in topics.keys() | named.keys():
            if store not in stores_of(where.application):
                raise CommandError(f"{where.application.id} has no store {store!r}; it has "
                                   f"{', '.join(stores_of(where.application)) or 'none'}")
        kafka = {**where.settings.kafka, "bootstrap.servers": where.admin.bootstrap_servers}
        app = KafkaStreamsApp(
            id=application_id, application=where.application, cluster=where.admin, topic_counts=where.topic_counts,
            reader=lambda topic, partition: PartitionReader(kafka, topic, partition), changelogs=topics,
            serdes={store: load_object(name, StoreSerdes) for store, name in named.items()})
        migration = app.migration()
        filled = {table.name for table, _ in migration.outputs}
        notes = [f"output {name} begins with what is read from now on" for name
                 in where.application.topology.committed_form.outputs if name not in filled]
        where.carry_out(migration, dry_run=dry_run, as_json=as_json, notes=notes)


def load_object(name: str, kind: type[T]) -> T:
    """What ``module:attribute`` leads to.

    Raises:
        CommandError: Nothing of that kind.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise CommandError(f"{name} leads nowhere ({error}); write package.module:name of a {kind.__name__}") from error
    if not isinstance(found, kind):
        raise CommandError(f"{name} is a {type(found).__name__}; name a {kind.__name__}")
    return found


migrate = typer.Typer(no_args_is_help=True, rich_markup_mode="rich",
                      epilog="Example: weir migrate from-group my_jobs.shop:app old-consumers --dry-run",
                      help="Take positions and state over from other systems, and give positions back.")
for name, command, example in (
    ("from-group", from_group, "my_jobs.shop:app old-consumers --dry-run"),
    ("from-checkpoints", from_checkpoints, "my_jobs.shop:app /var/lib/kafka-streams/shop --dry-run"),
    ("from-spark", from_spark, "my_jobs.shop:app /data/checkpoints/shop --dry-run"),
    ("from-kafka-streams", from_kafka_streams, "my_jobs.shop:app shop-on-kafka-streams --dry-run"),
    ("to-group", to_group, "shop shop-positions"),
    ("to-checkpoints", to_checkpoints, "shop /tmp/shop-checkpoints"),
):
    migrate.command(name, epilog=f"Example: weir migrate {name} {example}")(command)
