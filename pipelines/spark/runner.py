"""Runs one generation of one application: checks the place, takes the lease, starts Spark, drives, cleans up.

The loop is ``weir.pipelines.spark.driver``; this module only puts the parts together and takes them apart again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from pyspark import SparkContext

from weir.infra.control.guard import DriverControl
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin, UnknownTopicError
from weir.infra.kafka.broker import EmbeddedBroker
from weir.infra.settings import Settings
from weir.infra.spark.session import slot_context, stop_context
from weir.pipelines.application import Application, load_application
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.admission import admit
from weir.pipelines.spark.afterwards import Afterwards
from weir.pipelines.spark.control import ControlPanel, lease
from weir.pipelines.spark.coordinator import Coordinator, Offsets
from weir.pipelines.spark.driver import Driver, Source
from weir.pipelines.spark.mirror import offset_mirror
from weir.pipelines.spark.own_stores import feeding, followers
from weir.pipelines.spark.planner import Limits, TopicPartition
from weir.pipelines.spark.progress import Progress, RunSummary
from weir.pipelines.spark.restore import RestoreJobs
from weir.pipelines.spark.slots import SlotPool, assign
from weir.pipelines.spark.snapshots import SnapshotJobs
from weir.pipelines.spark.worker import WorkerSettings, load_step_hook
from weir.pipelines.tasks.epoch import TaskSettings
from weir.pipelines.tasks.tables import application_tables
from weir.state.commit.protocol import Committer, newest_commit
from weir.state.types import TaskId

log = logging.getLogger("weir.driver")

RETRY_S = 1.0
ANSWER_LIMIT_S = 4.0
"""How long one question to the brokers may take: a stop waits for it."""
FIRST_ANSWER_LIMIT_S = 120.0
"""How long a run until caught up waits for brokers that have not answered yet; one that goes on waits until stopped."""


def run(
    reference: str,
    settings: Settings,
    *,
    bootstrap_servers: str,
    until_caught_up: bool = False,
    take_over: bool = False,
    accept_state_loss: bool = False,
    owner: str = "weir run",
    stop: Event | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_step: str | None = None,
    spark: SparkContext | None = None,
) -> RunSummary:
    """Run the application at ``reference`` (``MODULE:APP``) until ``stop`` is set or it has caught up.

    Blocks. ``stop`` ends it after the epoch at hand, with a commit. ``take_over`` starts although another driver
    holds the lease; the other one is fenced at its next commit. ``accept_state_loss`` starts although another topology
    or partition count leaves stores empty. ``owner`` is the name the lease shows. ``on_step``
    names a ``MODULE:FUNCTION`` that is called with the name of each step of the commit protocol, here and in the
    workers. ``spark`` lends a context that stays open afterwards; without it one is started and stopped.

    Raises:
        UnknownTopicError: A source topic does not exist.
        BrokerUnreachableError: With ``until_caught_up``, no broker answered within two minutes of the start.
        LeaseHeldError: Another driver runs the application; the text names it.
        TopologyChangedError, PartitionCountError: The committed state does not fit the program or its topics.
        BadRecordError, TaskFailedError: A task cannot go on; everything before is committed.
        FencedError: A newer driver has taken over.
    """
    application = load_application(reference)
    connect_serdes(application.topology.serdes(), settings.schema_registry)  # refuses what the workers would
    stop = stop or Event()
    brokers = Brokers(settings, bootstrap_servers, application)
    control = DriverControl(settings.control_database_url, application.id, owner=owner, take_over=take_over)
    with lease(control), ExitStack() as stack:
        report = _reporting(settings, application, on_progress, stack)
        counts = brokers.partition_counts(
            stop,
            lambda message: report(_starting(application, message)),
            FIRST_ANSWER_LIMIT_S if until_caught_up else None,
        )
        if counts is None:
            return _stopped_early(application)
        partition_counts = application.topology.partition_counts(counts)
        # The coordinator asks too, beside its claim; Spark need not start for what is refused already.
        admit(
            application,
            settings.warehouse / application.id,
            newest_commit(settings.warehouse, application.id),
            counts,
            accept_state_loss,
        )
        report(_starting(application, "starting Spark"))
        context = spark or stack.enter_context(spark_context(settings, application))
        worker = WorkerSettings(
            reference=reference,
            kafka={**settings.kafka, "bootstrap.servers": bootstrap_servers},
            schema_registry=settings.schema_registry,
            on_step=on_step,
            tasks=TaskSettings(
                application_folder=str(settings.warehouse / application.id),
                state_folder=str(settings.state_dir / application.id),
                partition_counts=partition_counts,
                on_error=application.on_error,
            ),
        )
        driver = started_driver(
            stack,
            application,
            settings,
            warehouse=settings.warehouse,
            worker=worker,
            source=brokers,
            counts=counts,
            control=control,
            context=context,
            on_commit=stack.enter_context(_afterwards(application, settings, bootstrap_servers)),
            on_progress=report,
            beginning_offsets=brokers.beginning_offsets,
            accept_state_loss=accept_state_loss,
        )
        return driver.run(stop, until_caught_up=until_caught_up)


class Input(Source, Protocol):
    """What a driver reads; ``Brokers`` fits, and what a backfill has read."""

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with what was never read."""
        ...


def started_driver(
    stack: ExitStack,
    application: Application,
    settings: Settings,
    *,
    warehouse: Path,
    worker: WorkerSettings,
    source: Input,
    counts: Mapping[str, int],
    control: DriverControl,
    context: SparkContext,
    on_progress: Callable[[Progress], None],
    on_commit: Callable[[Mapping[TopicPartition, int]], None] = lambda positions: None,
    beginning_offsets: Offsets | None = None,
    accept_state_loss: bool = False,
) -> Driver:
    """A new generation of ``application`` in ``warehouse``, claimed, with its workers ready; ``stack`` takes it apart.

    ``counts`` are the partitions of each source topic; global tables need ``beginning_offsets`` too. Raises what
    ``Coordinator.start`` raises.
    """
    partition_counts = worker.tasks.partition_counts
    tasks = [TaskId(index, partition) for index, count in partition_counts.items() for partition in range(count)]
    assignment = assign(tasks, settings.slots)
    pool = SlotPool(context, settings.slots, worker, assignment)
    restores = RestoreJobs(context, worker, application.topology.task_name, assignment, settings.slots)
    stack.callback(restores.close)
    snapshots = SnapshotJobs(context, worker)
    stack.callback(snapshots.close)
    committer = Committer(
        warehouse,
        application.id,
        application_tables(application.topology),
        fingerprint=application.topology.fingerprint,
        on_step=load_step_hook(worker.on_step),
    )
    stack.callback(committer.close)
    coordinator = Coordinator(application, warehouse, committer, pool, on_commit)
    coordinator.start(
        counts, source.start_offsets, beginning_offsets=beginning_offsets, accept_state_loss=accept_state_loss
    )
    limits = Limits(
        max_records=max(1, settings.max_epoch_records // len(tasks)),
        max_bytes=max(1 << 10, settings.max_epoch_bytes // len(tasks)),
        max_skew_ms=max_skew_ms(application),
        max_task_idle_ms=max_task_idle_ms(application),
    )
    return Driver(
        coordinator,
        source,
        ControlPanel(control, assignment),
        restores,
        snapshots,
        limits,
        on_progress,
        snapshot_rows=settings.snapshot_rows,
    )


def _reporting(
    settings: Settings, application: Application, on_progress: Callable[[Progress], None] | None, stack: ExitStack
) -> Callable[[Progress], None]:
    """``on_progress``, and where the settings name a port, readings for Prometheus until ``stack`` closes."""
    report = on_progress or (lambda progress: None)
    if settings.metrics_port is None:
        return report
    from weir.infra.prometheus import PrometheusEndpoint

    endpoint = PrometheusEndpoint(application.id, settings.metrics_host, settings.metrics_port)
    stack.callback(endpoint.close)
    log.info("metrics of %r at http://%s:%s/metrics", application.id, settings.metrics_host, endpoint.port)

    def publish(progress: Progress) -> None:
        endpoint.publish(progress.readings)
        report(progress)

    return publish


class Brokers:
    """The Kafka cluster as a run uses it; an embedded broker that died is started again."""

    def __init__(self, settings: Settings, bootstrap_servers: str, application: Application) -> None:
        self._admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        self._embedded = None if settings.bootstrap_servers else EmbeddedBroker(settings.kafka_dir)
        self._application = application

    def partition_counts(
        self, stop: Event, on_wait: Callable[[str], None], limit_s: float | None
    ) -> dict[str, int] | None:
        """Partitions of each source topic, waiting for brokers that are away, with ``limit_s`` for so long; None when
        told to stop meanwhile.

        Raises:
            UnknownTopicError: A topic does not exist.
            BrokerUnreachableError: The time is over.
        """
        topology = self._application.topology
        topics = sorted([*topology.topics(), *(table.source.topic for table in topology.global_tables)])
        said, began = "", time.monotonic()
        until = "until stopped" if limit_s is None else f"for {limit_s:g} s"
        while not stop.is_set():
            try:
                counts = self._admin.partition_counts(topics)
            except BrokerUnreachableError as error:
                if limit_s is not None and time.monotonic() - began >= limit_s:
                    raise BrokerUnreachableError(error.bootstrap_servers, f"{error.reason}, {until}") from None
                if str(error) != said:
                    log.warning("%s; trying again %s", error, until)
                said = str(error)
                on_wait(f"{error}; trying again {until}")
                self._revive()
                stop.wait(RETRY_S)
                continue
            for topic in topics:
                if topic not in counts:
                    raise UnknownTopicError(topic, self._admin.bootstrap_servers)
            return counts
        return None

    def start_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Where to begin with what was never read: the oldest record kept, or the end for ``start="latest"``."""
        wanted = list(partitions)
        if self._application.start == "latest":
            return self._admin.end_offsets(wanted)
        return self._admin.beginning_offsets(wanted)

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The oldest record kept of each."""
        return self._admin.beginning_offsets(list(partitions))

    def end_offsets(self, topic_partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        try:
            return self._admin.end_offsets(topic_partitions)
        except BrokerUnreachableError:
            self._revive()
            raise

    def _revive(self) -> None:
        if self._embedded is not None:
            self._embedded.ensure_running()


def max_skew_ms(application: Application) -> int | None:
    """The application's ``max_skew`` in milliseconds; None for none."""
    return None if application.max_skew is None else application.max_skew // timedelta(milliseconds=1)


def max_task_idle_ms(application: Application) -> int | None:
    """The application's ``max_task_idle`` in milliseconds; None for no waiting."""
    return None if application.max_task_idle is None else application.max_task_idle // timedelta(milliseconds=1)


@contextmanager
def _afterwards(
    application: Application, settings: Settings, bootstrap_servers: str
) -> Iterator[Callable[[Mapping[TopicPartition, int]], None]]:
    """What follows a commit: its positions go to the group that the settings name, and own stores are fed."""
    followed: list[Afterwards[Any]] = []
    if settings.mirror_offsets_to_group is not None:
        admin = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        followed.append(offset_mirror(admin, settings.mirror_offsets_to_group))
    if application.own_stores:
        followed.append(
            feeding(followers(application, settings.warehouse / application.id, settings.state_dir / application.id))
        )

    def on_commit(positions: Mapping[TopicPartition, int]) -> None:
        for each in followed:
            each(positions)

    try:
        yield on_commit
    finally:
        for each in followed:
            each.close()


@contextmanager
def spark_context(settings: Settings, application: Application) -> Iterator[SparkContext]:
    """A context of its own, stopped after the block."""
    context = slot_context(settings, application.id)
    try:
        yield context
    finally:
        stop_context(context)


def _starting(application: Application, message: str) -> Progress:
    return Progress(
        application=application.id,
        generation=0,
        epoch=0,
        committed_epoch=0,
        records_in=0,
        lag=0,
        records_per_s=0.0,
        commit_ms=0.0,
        state="starting",
        message=message,
    )


def _stopped_early(application: Application) -> RunSummary:
    return RunSummary(
        application=application.id,
        generation=0,
        epoch=0,
        commits=0,
        records_in=0,
        seconds=0.0,
        reason="stopped",
        totals={},
    )
