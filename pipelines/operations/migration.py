"""Moves positions and state of other systems into an application's first commit, and its positions out to them.

What a migration is and how it is read belongs to ``weir.pipelines.migrate``.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from weir.infra.control import ControlDatabase
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.kafka.reader import PartitionReader
from weir.infra.kafka.writer import RecordWriter
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.migrate.kafka_streams_app import KafkaStreamsApp
from weir.pipelines.migrate.kafka_streams_files import (
    CHECKPOINT,
    check_checkpoint,
    offset_files,
    read_positions,
    write_checkpoint,
)
from weir.pipelines.migrate.kafka_streams_return import KafkaStreamsReturn
from weir.pipelines.migrate.migration import Migration, missing, source_positions, stores_of
from weir.pipelines.migrate.serdes import StoreSerdes
from weir.pipelines.migrate.spark_checkpoint import read_spark_checkpoint
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.errors import OperationError, OtherProgramError
from weir.pipelines.operations.plan import source_counts
from weir.pipelines.operations.positions import committed_positions
from weir.pipelines.operations.registry import (
    load_reference,
    register,
    registered_application,
    registered_reference,
    require,
)
from weir.pipelines.operations.text import counted
from weir.pipelines.spark.admission import require_commit_log
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology.changes import sub_topology_of
from weir.pipelines.topology.nodes import SuppressNode
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.commit.upserts import shown_name
from weir.state.storage.places import folder_at
from weir.state.types import TopicPartition

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What a migration changed, or would change."""

    what: str
    """The application that receives positions, or the consumer group or application whose positions are written."""
    source: str = ""
    """Where they come from."""
    outcome: str
    changes: list[str]
    """One line each."""
    notes: list[str]


@dataclass(frozen=True, kw_only=True)
class Place:
    """An application to be migrated, and its topics."""

    settings: Settings
    application: Application
    admin: KafkaAdmin
    topic_counts: Mapping[str, int]
    reference: str

    def migration(self, source: str, found: Mapping[TopicPartition, int]) -> Migration:
        """A migration of positions alone, for the topics that the application reads.

        Raises:
            MigrationError: They do not fit the topics.
        """
        topic_ids = self.admin.topic_ids(self.topic_counts)
        partitions = [(topic, number) for topic, count in self.topic_counts.items() for number in range(count)]
        positions = source_positions(
            self.application,
            self.topic_counts,
            found,
            self.admin.beginning_offsets(partitions),
            self.admin.end_offsets(partitions),
            source,
        )
        return Migration(
            application=self.application,
            source=source,
            positions=positions,
            topic_ids=topic_ids,
            counts=self.application.topology.partition_counts(self.topic_counts),
        )

    def carry_out(self, migration: Migration, *, dry_run: bool, notes: Sequence[str] = ()) -> Moved:
        """Write the migration unless ``dry_run``, and say what it changes.

        Raises:
            CommitLogLostError: The application has local state or tables without a commit log.
        """
        settings, application = self.settings, self.application.id
        require_commit_log(
            self.application, folder_at(settings.warehouse) / application, settings.state_dir / application
        )
        is_there = migration.is_written(folder_at(self.settings.warehouse))
        if not dry_run and not is_there:
            with at_rest(ControlDatabase(settings.control_database_url), application):
                migration.write(folder_at(self.settings.warehouse))
            register(self.settings, self.application.id, self.reference)
        outcome = (
            "is already in place; nothing was changed"
            if is_there
            else "nothing was changed (--dry-run)"
            if dry_run
            else "committed as the application's epoch 1"
        )
        return Moved(
            what=self.application.id,
            source=migration.source,
            outcome=outcome,
            changes=lines(migration, self.topic_counts),
            notes=list(notes),
        )


def lines(migration: Migration, topic_counts: Mapping[str, int]) -> list[str]:
    """What a migration changes, one line per change."""
    start, outputs = migration.application.start, Counter[str]()
    for table, rows in migration.outputs:
        outputs[shown_name(table.name)] += rows.height
    return [
        *(
            f"topic {topic}, partition {partition}: starts at offset {offset:,}"
            for (topic, partition), offset in sorted(migration.positions.items())
        ),
        *(
            f"topic {topic}, partition {partition}: has no offset, starts at the {start}"
            for topic, partition in missing(migration.positions, topic_counts)
        ),
        *(
            f"store {each.store.name}, task {each.task}: {counted(each.rows.height, 'row')}"
            for each in migration.stores
        ),
        *(f"output {name}: {counted(rows, 'row')}" for name, rows in outputs.items()),
    ]


@contextmanager
def place(settings: Settings, reference: str) -> Iterator[Place]:
    """The application at ``reference``, with its broker running inside the block."""
    application = load_reference(reference)
    with broker_for(settings) as (servers, settings):
        admin = KafkaAdmin(servers, settings.kafka)
        application = application.over(newest_commit(folder_at(settings.warehouse), application.id), admin.topics())
        yield Place(
            settings=settings,
            application=application,
            admin=admin,
            topic_counts=source_counts(application, admin),
            reference=reference,
        )


def require_empty_stores(application: Application, accepted: bool) -> list[str]:
    """Notes on the stores of an application that takes positions without state.

    Raises:
        OperationError: It has stores, and it was not accepted that they start empty.
    """
    stores = stores_of(application)
    if stores and not accepted:
        raise OperationError(
            f"{application.id} keeps state ({', '.join(stores)}), which positions alone do not bring: its "
            "results would count only records read from now on; accept that with --empty-stores in "
            "the same command, or do not migrate and read everything from the beginning"
        )
    return [f"store {store} starts empty" for store in stores]


def move_from_group(where: Place, group: str, *, empty_stores: bool, dry_run: bool) -> Moved:
    """Start from a consumer group's committed offsets; raises ``OperationError`` while it has consumers."""
    notes = require_empty_stores(where.application, empty_stores)
    if members := where.admin.group_members(group):
        raise OperationError(
            f"consumer group {group!r} has {counted(members, 'consumer')}, which would keep reading; stop them first"
        )
    migration = where.migration(f"consumer group {group!r}", where.admin.group_offsets(group))
    return where.carry_out(migration, dry_run=dry_run, notes=notes)


def move_from_checkpoints(where: Place, paths: Sequence[Path], *, empty_stores: bool, dry_run: bool) -> Moved:
    """Start from the source topics' offsets in ``.checkpoint`` and ``.position`` files, or folders with such files."""
    notes = require_empty_stores(where.application, empty_stores)
    files = offset_files(paths)
    found = read_positions(files, where.topic_counts)
    others = sorted({topic for topic, _ in found} - where.topic_counts.keys())
    notes += [f"topic {topic} is not read by the application and is ignored" for topic in others]
    source = f"{counted(len(files), 'Kafka Streams file')} in {', '.join(map(str, paths))}"
    return where.carry_out(where.migration(source, found), dry_run=dry_run, notes=notes)


def move_from_spark(where: Place, folder: Path, *, empty_stores: bool, dry_run: bool) -> Moved:
    """Start from the end of the last committed batch of a Structured Streaming query; ``folder`` is its checkpoint."""
    notes = require_empty_stores(where.application, empty_stores)
    found = read_spark_checkpoint(folder)
    if found.is_interrupted:
        notes.append(
            f"a batch after {found.batch} was started but not committed: its input is read again; check what the "
            "query has already written for it"
        )
    migration = where.migration(f"batch {found.batch} of Spark checkpoint {folder}", found.positions)
    return where.carry_out(migration, dry_run=dry_run, notes=notes)


def move_from_kafka_streams(
    where: Place,
    application_id: str,
    *,
    changelogs: Mapping[str, str],
    serdes: Mapping[str, str],
    empty_stores: bool,
    dry_run: bool,
) -> Moved:
    """Migrate a stopped Kafka Streams application; ``changelogs`` are topics by store and ``serdes`` are
    ``module:name`` by store, for stores where those derived from the program do not fit."""
    _require_stores(where.application, {*changelogs, *serdes}, stores_of(where.application))
    kafka = {**where.settings.kafka, "bootstrap.servers": where.admin.bootstrap_servers}
    app = KafkaStreamsApp(
        id=application_id,
        application=where.application,
        cluster=where.admin,
        topic_counts=where.topic_counts,
        reader=lambda topic, partition: PartitionReader(kafka, topic, partition),
        changelogs=changelogs,
        serdes={store: load_object(name, StoreSerdes) for store, name in serdes.items()},
    )
    migration = app.migration()
    filled = {shown_name(table.name) for table, _ in migration.outputs}
    notes = [
        *(f"store {store} starts empty: {reason}" for store, reason in migration.left_out.items()),
        *(
            f"output {name} starts with records read from now on"
            for name in where.application.topology.committed_form.outputs
            if name not in filled
        ),
    ]
    if migration.left_out and not (empty_stores or dry_run):
        listed = "; ".join(f"{store}, since {reason}" for store, reason in migration.left_out.items())
        raise OperationError(
            f"some state of {where.application.id} cannot be taken: {listed}; accept that these stores start empty "
            "with --empty-stores in the same command, or do not migrate and read everything from the beginning"
        )
    return where.carry_out(migration, dry_run=dry_run, notes=notes)


def _require_stores(application: Application, named: Iterable[str], known: Sequence[str]) -> None:
    for store in sorted(set(named) - set(known)):
        raise OperationError(f"{application.id} has no store {store!r}; it has {', '.join(known) or 'none'}")


def load_object(name: str, kind: type[T]) -> T:
    """The object at ``module:attribute``.

    Raises:
        OperationError: There is none, or it is of another kind.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise OperationError(
            f"{name} cannot be loaded ({error}); write package.module:name of a {kind.__name__}"
        ) from error
    if not isinstance(found, kind):
        raise OperationError(f"{name} is a {type(found).__name__}; name a {kind.__name__}")
    return found


def move_to_kafka_streams(
    settings: Settings,
    application: str,
    application_id: str,
    *,
    state_dir: Path | None,
    changelogs: Mapping[str, str],
    serdes: Mapping[str, str],
    replace: bool,
    empty_stores: bool,
    dry_run: bool,
) -> Moved:
    """Write the application's committed stores to the changelog topics of a Kafka Streams application, and its
    positions to that one's group; doing it again finishes what was cut off.

    Raises:
        OperationError: Some state has no counterpart in Kafka Streams, and it was not accepted that it starts empty.
        OperationError: The program has changed since the newest commit.
        MigrationError: Kafka Streams runs, or its topics or group hold something else.
        LeaseHeldError: The application runs.
    """
    program = registered_application(settings, application)
    stored = program.topology.stored
    changelogs = {stored(store): topic for store, topic in changelogs.items()}
    serdes = {stored(store): each for store, each in serdes.items()}
    known = [*stores_of(program), *(node.store.name for node in _fused_suppressions(program))]
    _require_stores(program, {*changelogs, *serdes}, known)
    with ExitStack() as stack:
        newest = _newest(settings, application) if dry_run else stack.enter_context(_held(settings, program))
        _require_committed(settings, program, newest)
        servers, settings = stack.enter_context(broker_for(settings))
        kafka, admin = {**settings.kafka, "bootstrap.servers": servers}, KafkaAdmin(servers, settings.kafka)
        back = KafkaStreamsReturn(
            id=application_id,
            application=program,
            commit=newest,
            app_folder=folder_at(settings.warehouse) / application,
            cluster=admin,
            reader=lambda topic, partition: PartitionReader(kafka, topic, partition),
            topic_counts=source_counts(program, admin),
            state_dir=state_dir,
            serdes={store: load_object(name, StoreSerdes) for store, name in serdes.items()},
            changelogs=changelogs,
        )
        found = back.plan(replace=replace)
        if found.left_out and not (empty_stores or dry_run):
            listed = "; ".join(f"{store}, since {reason}" for store, reason in found.left_out.items())
            raise OperationError(
                f"some state of {application} has no counterpart in Kafka Streams: {listed}; accept that Kafka Streams "
                "starts these stores empty with --empty-stores in the same command"
            )
        if not dry_run:
            back.write(found, RecordWriter(kafka))
    outcome = (
        "already has everything; nothing was changed"
        if found.is_done
        else "nothing was changed (--dry-run)"
        if dry_run
        else "now has the application's stores and positions; start it"
    )
    return Moved(
        what=f"Kafka Streams application {application_id}",
        source=f"epoch {newest.epoch} of {application}",
        outcome=outcome,
        changes=[
            *(
                f"topic {topic.topic}: {counted(topic.rows, 'record')}{' in a new topic' if topic.is_new else ''}"
                for topic in found.topics
                if topic.is_new or topic.rows
            ),
            *(f"file {folder / CHECKPOINT}" for folder in found.checkpoints),
            *(
                f"group {application_id}, topic {topic}, partition {number}: offset {offset:,}"
                for (topic, number), offset in found.offsets.items()
            ),
        ],
        notes=[*(f"store {store} starts empty: {reason}" for store, reason in found.left_out.items()), *found.notes],
    )


def _fused_suppressions(application: Application) -> Iterator[SuppressNode]:
    for sub_topology in application.topology.sub_topologies:
        for node in sub_topology.nodes:
            if isinstance(node, SuppressNode) and node.fused_with:
                yield node


@contextmanager
def _held(settings: Settings, program: Application) -> Iterator[CommitRecord]:
    """The newest commit; inside the block no driver runs, and the tables have everything that the commit log
    promises."""
    with at_rest(ControlDatabase(settings.control_database_url), program.id):
        _require_committed(settings, program, _newest(settings, program.id))
        topology = program.topology
        committer = Committer(
            folder_at(settings.warehouse), program.id, application_tables(topology), fingerprint=topology.fingerprint
        )
        try:
            claim = committer.claim()
        finally:
            committer.close()
        assert claim.newest is not None
        yield claim.newest


def _require_committed(settings: Settings, program: Application, newest: CommitRecord) -> None:
    """Raise ``OperationError`` unless the program, whose file may have been edited, made the commit."""
    if newest.fingerprint != program.topology.fingerprint:
        reference = registered_reference(settings, program.id)
        raise OperationError(
            f"{reference} is not the program that committed last: its topology has changed since; run it first with "
            f"`weir run {reference} --until-caught-up`, or put the old one back"
        )


def move_to_group(settings: Settings, application: str, group: str, *, dry_run: bool) -> Moved:
    """Commit the application's positions for a consumer group; raises ``OperationError`` if it has others."""
    positions = {
        (topic, number): offset
        for topic, offsets in committed_positions(_newest(settings, application)).items()
        for number, offset in offsets.items()
    }
    with broker_for(settings) as (servers, settings):
        admin = KafkaAdmin(servers, settings.kafka)
        held = admin.group_offsets(group)
        changed = {partition: offset for partition, offset in positions.items() if held.get(partition) != offset}
        for topic, number in sorted(changed.keys() & held.keys()):
            raise OperationError(
                f"consumer group {group!r} has offset {held[topic, number]} of topic {topic!r}, "
                f"partition {number}, but the application has {positions[topic, number]}; nothing was "
                "changed: choose another group, or delete the group's offsets"
            )
        if changed and not dry_run:
            admin.set_group_offsets(group, changed)
    outcome = (
        "already has these offsets; nothing was changed"
        if not changed
        else "nothing was changed (--dry-run)"
        if dry_run
        else "now has the application's positions"
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


def move_to_checkpoints(settings: Settings, application: str, folder: Path, *, dry_run: bool) -> Moved:
    """Write one ``.checkpoint`` file per task that reads topics."""
    topology, newest = registered_application(settings, application).topology, _newest(settings, application)
    by_task: dict[str, dict[TopicPartition, int]] = {}
    for name, commit in newest.tasks.items():
        if sub_topology_of(name) not in topology.committed_form.stores:
            raise OtherProgramError(application, name)
        if commit.positions:
            by_task[str(topology.task_of(name))] = {
                (topic, partition): offset
                for topic, offsets in commit.positions.items()
                for partition, offset in offsets.items()
            }
    to_write = [task for task, positions in sorted(by_task.items()) if not check_checkpoint(folder / task, positions)]
    for task in to_write if not dry_run else ():
        write_checkpoint(folder / task, by_task[task])
    outcome = "nothing was changed" if dry_run or not to_write else f"{counted(len(to_write), 'file')} written"
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


def _newest(settings: Settings, application: str) -> CommitRecord:
    """The newest commit; raises ``OperationError`` if there is none, or the folder does not know the application."""
    newest = newest_commit(folder_at(settings.warehouse), require(settings, application))
    if newest is None:
        raise OperationError(f"{application} has committed nothing yet; run it first with `weir run MODULE:APP`")
    return newest
