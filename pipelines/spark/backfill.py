"""Runs a backfill: the ordinary driver over a fixed range of each topic partition, or over files instead of topics, in
the folders of a shadow.

The ranges and the shadow's folders belong to ``weir.pipelines.backfill``; the loop to ``weir.pipelines.spark.driver``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event

from pyspark import SparkContext

from weir.infra.control.guard import DriverControl
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.log_ends import LogEnd
from weir.infra.kafka.reader import PartitionReader
from weir.infra.settings import Settings
from weir.pipelines.application import load_application, load_step_hook
from weir.pipelines.backfill.errors import TopicReplacedError
from weir.pipelines.backfill.files import SourceFiles, write_slice
from weir.pipelines.backfill.kept_topics import keep
from weir.pipelines.backfill.ranges import Ranges, require_same_topics
from weir.pipelines.backfill.shadow import Completion, Shadow, shadow_application
from weir.pipelines.cluster import Cluster
from weir.pipelines.serdes.registry import connect_serdes
from weir.pipelines.spark.brokers import ANSWER_LIMIT_S
from weir.pipelines.spark.control import ControlPanel, lease
from weir.pipelines.spark.errors import OffsetsLostError
from weir.pipelines.spark.parts import Listeners, RunSpec
from weir.pipelines.spark.progress import Progress
from weir.pipelines.spark.runner import (
    limits_of,
    spark_context,
    spark_driver,
    starting_report,
    waiting_for_brokers,
    waiting_for_disk,
)
from weir.pipelines.spark.worker import WorkerSettings
from weir.pipelines.tasks.tables import application_tables
from weir.state.changelog.upserts import refresh_at_rest
from weir.state.types import TopicPartition

log = logging.getLogger("weir.driver")


@dataclass(frozen=True)
class FixedRanges:
    """A source whose topic partitions begin and end where a backfill says."""

    ranges: Ranges
    cluster: Cluster | None = None
    """Where the topics are; None if files are read instead."""
    global_ranges: Ranges = field(default_factory=dict)
    """Those of global tables, which are read from what was kept of them, whatever becomes of the topics."""

    def topics(self) -> Mapping[str, int]:
        return {topic: len(partitions) for topic, partitions in self._all.items()}

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return {} if self.cluster is None else self.cluster.topic_ids(set(topics) - self.global_ranges.keys())

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {(topic, partition): self._all[topic][partition][0] for topic, partition in partitions}

    start_offsets = beginning_offsets

    def compacted(self, topics: Iterable[str]) -> set[str]:
        return set()  # a backfill begins with empty folders: it has lost nothing

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, LogEnd]:
        return {(topic, partition): LogEnd(self._all[topic][partition][1], None) for topic, partition in partitions}

    def truncations(self, positions: Mapping[TopicPartition, LogEnd]) -> Mapping[TopicPartition, int]:
        return {}

    @property
    def _all(self) -> Ranges:
        return {**self.ranges, **self.global_ranges}


def write_slices(
    spark_context: SparkContext,
    reference: str,
    folder: Path,
    counts: Mapping[str, int],
    files: SourceFiles,
    schema_registry: Mapping[str, str],
) -> Ranges:
    """Write the slices of ``files``, one Spark task each; returns what there is to read.

    ``counts`` are the partitions of each topic.
    """
    wanted = [(topic, partition, count) for topic, count in sorted(counts.items()) for partition in range(count)]
    slices = (
        spark_context.parallelize(wanted, len(wanted))
        .mapPartitions(partial(_run_slices, reference, folder, files, schema_registry))
        .collect()
    )
    ranges: Ranges = {}
    for topic, partition, rows in slices:
        ranges.setdefault(topic, {})[partition] = (0, rows)
    return ranges


def _run_slices(
    reference: str,
    folder: Path,
    files: SourceFiles,
    schema_registry: Mapping[str, str],
    wanted: Iterable[tuple[str, int, int]],
) -> Iterator[tuple[str, int, int]]:
    """Inside a Spark task: the topic, partition and number of records of each slice that was written."""
    slices = list(wanted)
    topology = load_application(reference).under({}, {topic for topic, _, _ in slices}).topology
    connect_serdes(topology.serdes(), schema_registry)
    for topic, partition, count in slices:
        yield topic, partition, write_slice(folder, topology.source(topic), partition, count, files)


def run_shadow(
    reference: str,
    settings: Settings,
    shadow: Shadow,
    *,
    bootstrap_servers: str,
    owner: str,
    stop: Event,
    ranges: Ranges | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_step: str | None = None,
    spark: SparkContext | None = None,
) -> Completion | None:
    """Run a shadow that has begun until it has read its ranges, and complete it; None when ``stop`` came first.

    Blocks. ``ranges`` are for a backfill of everything that continues from where it is; the other arguments are those
    of ``weir.pipelines.spark.runner.run``.

    Raises:
        SchemaRegistryError: The program needs a schema registry, and none is configured.
        LeaseHeldError: Another process runs this very backfill.
        TopicReplacedError: A topic is no longer the one that the ranges belong to.
        TimeoutError: The brokers do not give the records of a global table.
        BadRecordError, ExpectationViolatedError, TaskFailedError: A task cannot continue. The shadow stays as it is,
            incomplete.
    """
    backfill = shadow.backfill
    ranges = ranges or backfill.ranges
    application = shadow_application(load_application(reference), shadow.id).over(shadow.commit_before(), ranges)
    connect_serdes(application.topology.serdes(), settings.schema_registry)  # fails here as it would in the workers
    counts = {topic: len(partitions) for topic, partitions in ranges.items()}
    control = DriverControl(settings.control_database_url, shadow.lease_name, owner=owner)
    cluster = None
    if backfill.files is None:
        cluster = KafkaAdmin(bootstrap_servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
    kafka = {**settings.kafka, "bootstrap.servers": bootstrap_servers}
    step = load_step_hook(on_step)

    def say(message: str) -> None:
        on_progress(starting_report(application, message))

    with lease(control, reference), ExitStack() as stack:
        if cluster is not None:
            require_same_topics(application, cluster, backfill.topic_ids)
        if backfill.global_note and shadow.completion is None:
            log.info("backfill %s of %r: %s", shadow.id, shadow.application, backfill.global_note)
            say(backfill.global_note)
            if not keep(shadow.folder, backfill.global_ranges, partial(PartitionReader, kafka), step, stop.is_set):
                return None
        context = spark or stack.enter_context(spark_context(settings, application))
        if backfill.files is not None:
            ranges = write_slices(context, reference, shadow.slices, counts, backfill.files, settings.schema_registry)
        spec = RunSpec(
            application=application,
            source=FixedRanges(ranges, cluster, backfill.global_ranges),
            source_counts={**counts, **{topic: len(of_topic) for topic, of_topic in backfill.global_ranges.items()}},
            warehouse=shadow.warehouse,
            state_folder=shadow.state_folder,
            limits=replace(limits_of(settings, application), passes_wall_clock=backfill.passes_wall_clock),
            slots=settings.slots,
        )
        worker = WorkerSettings(
            reference=reference,
            kafka=kafka,
            schema_registry=settings.schema_registry,
            on_step=on_step,
            slices=None if backfill.files is None else str(shadow.slices),
            tasks=spec.task_settings,
            names=application.topology.names,
            topics=application.topology.read,
            backfill=shadow.id,
        )
        panel = ControlPanel(control)
        listeners = Listeners(
            control=panel,
            on_progress=on_progress,
            wait_for_disk=waiting_for_disk(say, stop),
            wait_for_brokers=waiting_for_brokers(say, stop),
        )
        with spark_driver(context, worker, spec, listeners) as driver, panel.serving():
            try:
                summary = driver.run(stop, until_caught_up=True, end_time_ms=backfill.end_time_ms)
            except OffsetsLostError as error:  # what the program is told of a live run does not help here
                raise TopicReplacedError(shadow.application, error.lost[0].topic) from None
    if summary.reason != "caught_up":
        return None
    before = shadow.completion or Completion(records_in=0, seconds=0.0)
    completion = Completion(records_in=before.records_in + summary.records_in, seconds=before.seconds + summary.seconds)
    refresh_at_rest(shadow.folder, application_tables(application.topology), shadow.id)
    step("shadow made")
    shadow.complete(completion)
    log.info("backfill %s of %r is complete: %s records", shadow.id, shadow.application, summary.records_in)
    return completion
