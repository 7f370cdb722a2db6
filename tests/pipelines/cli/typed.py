"""The command line over topics in memory: commands as they are typed, without Spark and without a broker.

Everything else is real: settings, registry, leases and requests in the control database, local stores, Delta tables.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.pipelines.spark.inline import InlineRestores, InlineSlots, InlineSnapshots, InlineStandbys, Topics
from tests.waiting import wait_for
from weir.infra.control import ControlDatabase
from weir.infra.kafka import admin, broker
from weir.infra.kafka.admin import BrokerUnreachableError, UnknownTopicError
from weir.infra.kafka.log_ends import LogEnd
from weir.infra.kafka.reader import PartitionReader
from weir.infra.settings import Settings
from weir.infra.spark import session
from weir.pipelines.application import Application, load_application
from weir.pipelines.backfill.files import SliceReader, SourceFiles, write_slice
from weir.pipelines.backfill.kept_topics import KeptReader
from weir.pipelines.backfill.ranges import Ranges
from weir.pipelines.cli.app import app
from weir.pipelines.operations import backfill as backfills
from weir.pipelines.operations import drive, migration, plan, repartition
from weir.pipelines.spark import backfill, brokers, runner
from weir.pipelines.spark.driver import Driver, started_driver
from weir.pipelines.spark.parts import Executors, Listeners, RunSpec
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.epoch import EpochRunner
from weir.state.storage.places import folder_at
from weir.state.types import TopicPartition

BROKERS, OTHER_BROKERS, NO_BROKERS = "first:9092", "second:9092", "nobody:9092"


@dataclass
class Admin:
    """Replaces ``KafkaAdmin``."""

    held: Topics
    bootstrap_servers: str
    groups: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)

    def topics(self) -> dict[str, int]:
        return self.held.partition_counts()

    def partition_counts(self, topics: Iterable[str]) -> Mapping[str, int]:
        counts = self.held.partition_counts()
        return {topic: counts[topic] for topic in topics if topic in counts}

    def partition_count(self, topic: str) -> int:
        if topic not in self.partition_counts([topic]):
            raise UnknownTopicError(topic, self.bootstrap_servers)
        return self.partition_counts([topic])[topic]

    def create_topic(self, topic: str, partitions: int = 1) -> bool:
        is_new = not self.partition_counts([topic])
        if is_new:
            self.held.rows |= {(topic, partition): [] for partition in range(partitions)}
        return is_new

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return self.held.topic_ids(topics)

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.held.beginning_offsets(partitions)

    def end_offsets(
        self, partitions: Sequence[TopicPartition], *, is_committed: bool = True
    ) -> Mapping[TopicPartition, int]:
        return self.held.end_offsets(partitions)

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return self.held.log_ends(partitions)

    def truncations(self, positions: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int]:
        return self.held.truncations(positions)

    def group_offsets(self, group: str) -> Mapping[TopicPartition, int]:
        return self.groups.get(group, {})

    def group_members(self, group: str) -> int:
        return 0

    def set_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.groups[group] = dict(offsets)

    def offsets_at(self, partitions: Sequence[TopicPartition], time_ms: int) -> Mapping[TopicPartition, int | None]:
        return {
            wanted: next(
                (
                    offset
                    for offset, row in enumerate(self.held.rows[wanted])
                    if offset >= self.held.oldest.get(wanted, 0) and row[2] >= time_ms
                ),
                None,
            )
            for wanted in partitions
        }


@dataclass(frozen=True)
class Answer:
    """What a command printed, on one line and without the folder in commands that it names, and its exit code."""

    code: int
    text: str

    @property
    def commands(self) -> set[str]:
        """The commands that it names, without ``weir``; MODULE:APP stands for any program."""
        named = re.findall(r"`weir ([^`]+)`", self.text)
        return {re.sub(r"\b(OLD_)?(MODULE:APP|programs:\w+)", "MODULE:APP", each) for each in named}


@dataclass
class Terminal:
    """Where commands are typed: a folder, clusters by address, and the module ``programs``."""

    folder: Path
    clusters: dict[str, Topics]
    programs: ModuleType
    restores: list[InlineRestores] = field(default_factory=list)
    """Of each run, the newest last."""
    program: str = "MODULE:APP"
    """The one that was named last, for commands that leave it open."""

    @property
    def topics(self) -> Topics:
        return self.clusters[BROKERS]

    @property
    def settings(self) -> Settings:
        return Settings(dir=self.folder)

    @property
    def warehouse(self) -> Path:
        return self.settings.warehouse

    def has(self, name: str, program: Application) -> str:
        """Make a program known as ``programs:NAME``; returns this."""
        setattr(self.programs, name, program)
        return f"programs:{name}"

    def weir(self, command: str, *more: str, answer: str = "y\n") -> Answer:
        """Type ``weir COMMAND``, with more arguments at its end, and ``answer`` what it asks."""
        if found := re.search(r"\bprograms:\w+", command):
            self.program = found[0]
        arguments = [*shlex.split(command.replace("MODULE:APP", self.program)), *more]
        if "--dir" not in arguments:
            arguments += ["--dir", str(self.folder)]
        done = CliRunner().invoke(app, arguments, input=answer)
        text = " ".join(done.output.split())
        return Answer(done.exit_code, text.replace(f" --dir {self.folder}", ""))

    def run(self, program: str, *flags: str) -> Answer:
        """``weir run`` until it has caught up."""
        return self.weir(f"run {program} --until-caught-up", *flags)

    @contextmanager
    def typing_beside(self, *commands: str, once: Event | None = None) -> Iterator[list[int]]:
        """Type ``weir COMMAND`` in another terminal once a driver of ``clicks`` runs, and ``once`` something has
        happened; gives the exit codes.

        What they print until the driver has ended is in the driver's answer.
        """
        codes: list[int] = []

        def type_them() -> None:
            database = ControlDatabase(self.settings.control_database_url)
            wait_for(lambda: database.is_running("clicks"), "a driver runs", every_s=0.01)
            assert once is None or once.wait(90)
            for command in commands:
                arguments = [*shlex.split(command), "--dir", str(self.folder)]
                codes.append(get_command(app).main(arguments, standalone_mode=False) or 0)

        other = Thread(target=type_them)
        other.start()
        yield codes
        other.join()

    def take(self, way_out: str, of: Answer, *more: str, **filled: str) -> Answer:
        """Type the command that a message names, with its words in capitals replaced as ``filled`` says."""
        assert way_out in of.commands, of.text
        for name, text in filled.items():
            way_out = way_out.replace({"MODULE": "MODULE:APP", "HOST": "HOST:PORT"}.get(name, name), text)
        return self.weir(way_out, *more)

    @contextmanager
    def driver(
        self, context: None, worker: WorkerSettings, spec: RunSpec, listeners: Listeners, *place: object
    ) -> Iterator[Driver]:
        """Replaces ``spark_driver``: tasks run in this process."""
        kept = {table.source.topic for table in spec.application.topology.global_tables if worker.backfill}

        def reader(topic: str, partition: int) -> PartitionReader | SliceReader | KeptReader:
            if topic in kept:
                return KeptReader(folder_at(worker.tasks.application_folder), topic, partition)
            if worker.slices is not None:
                return SliceReader(Path(worker.slices), topic, partition)
            return self.clusters[worker.kafka["bootstrap.servers"]].reader(topic, partition)

        tasks = EpochRunner(
            spec.application.topology, spec.task_settings, reader, lambda step: None, spec.application.error_handling
        )
        restores = InlineRestores(spec.application, spec.task_settings, reader)
        self.restores.append(restores)
        executors = Executors(
            slots=InlineSlots(tasks),
            restores=restores,
            snapshots=InlineSnapshots(spec.application, spec.task_settings),
            standbys=InlineStandbys(spec.application, spec.task_settings),
        )
        with closing(spec.committer(lambda step: None)) as committer:
            yield started_driver(spec, committer, executors, listeners)

    def reader(self, properties: Mapping[str, object], topic: str, partition: int) -> PartitionReader:
        """Replaces ``PartitionReader``."""
        return self.clusters[str(properties["bootstrap.servers"])].reader(topic, partition)

    def admin(self, bootstrap_servers: str, *properties: object, **limits: object) -> Admin:
        """Replaces ``KafkaAdmin``."""
        if bootstrap_servers not in self.clusters:
            raise BrokerUnreachableError(bootstrap_servers, "no answer")
        return Admin(self.clusters[bootstrap_servers], bootstrap_servers)


def _slices(
    context: None, reference: str, folder: Path, counts: Mapping[str, int], files: SourceFiles, registry: object
) -> Ranges:
    """Replaces ``write_slices``."""
    topology = load_application(reference).topology
    return {
        topic: {
            partition: (0, write_slice(folder, topology.source(topic), partition, count, files))
            for partition in range(count)
        }
        for topic, count in counts.items()
    }


@contextmanager
def _no_context(*arguments: object) -> Iterator[None]:
    yield


@contextmanager
def _brokers(settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Replaces ``broker_for``."""
    yield settings.bootstrap_servers or BROKERS, settings


def opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal over an empty folder and topics that are empty too."""
    found = Terminal(folder, {BROKERS: Topics()}, ModuleType("programs"))
    monkeypatch.setitem(sys.modules, "programs", found.programs)
    for name in ("WEIR_DIR", "WEIR_BOOTSTRAP_SERVERS"):
        monkeypatch.delenv(name, raising=False)
    for module in (broker, drive, plan, backfills, migration, repartition):
        monkeypatch.setattr(module, "broker_for", _brokers)
    for module in (admin, brokers, backfill, runner, plan, backfills, migration, repartition):
        monkeypatch.setattr(module, "KafkaAdmin", found.admin)
    for module in (repartition, backfill):
        monkeypatch.setattr(module, "PartitionReader", found.reader)
    for module in (runner, backfill):
        monkeypatch.setattr(module, "spark_context", _no_context)
        monkeypatch.setattr(module, "spark_driver", found.driver)
    monkeypatch.setattr(backfill, "write_slices", _slices)
    monkeypatch.setattr(session, "java_ahead", _no_context)  # or each run would wait until it can end it
    return found
