"""Backfills without Spark and without a broker: shadows run in this process over topics in memory."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import polars as pl

from tests.pipelines.spark.inline import Desk, Place, Topics
from weir.infra.kafka.reader import PartitionReader
from weir.pipelines.application import Application
from weir.pipelines.backfill.begin import begin_everything, begin_from_files, begin_from_kafka
from weir.pipelines.backfill.files import SliceReader, write_slice
from weir.pipelines.backfill.kept_topics import KeptReader, keep
from weir.pipelines.backfill.ranges import Ranges, whole_ranges
from weir.pipelines.backfill.shadow import Completion, Days, Shadow, shadow_application
from weir.pipelines.spark.backfill import FixedRanges
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import read_table
from weir.state.types import TopicPartition


@dataclass
class Cluster:
    """Topics in memory, as a backfill asks about them; ``oldest`` is the first offset that retention has kept."""

    topics: Topics
    oldest: int = 0

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return self.topics.topic_ids(topics)

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.oldest)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.topics.end_offsets(partitions)

    def partition_counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        return {topic: count for topic, count in self.topics.partition_counts().items() if topic in topics}

    def offsets_at(self, partitions: Sequence[TopicPartition], time_ms: int) -> Mapping[TopicPartition, int | None]:
        return {
            wanted: next(
                (
                    offset
                    for offset, row in enumerate(self.topics.rows[wanted])
                    if offset >= self.oldest and row is not None and row[2] >= time_ms
                ),
                None,
            )
            for wanted in partitions
        }


def copy(folder: Path, to: Path) -> None:
    """Copy all that is in a folder; ``shutil`` would write a store's holes out."""
    to.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{folder}/.", to], check=True)


def copied(template: Place, folder: Path) -> Place:
    """A copy of the place in a folder of its own, with everything on disk and its topics."""
    copy(template.folder, folder)
    topics = Topics({partition: list(rows) for partition, rows in template.topics.rows.items()})
    return replace(template, folder=folder, desk=Desk(), topics=topics)


@dataclass
class RangedTopics(Topics):
    """Topics that begin and end where a backfill says."""

    ranges: Ranges = field(default_factory=dict)
    shadow: Shadow | None = None
    """Which has what was kept of the topics of global tables."""

    @property
    def fixed(self) -> FixedRanges:
        return FixedRanges(self.ranges, None, self.shadow.backfill.global_ranges if self.shadow else {})

    def partition_counts(self) -> dict[str, int]:
        return dict(self.fixed.topics())

    def topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        return super().topic_ids(set(topics) - self.fixed.global_ranges.keys())

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.fixed.beginning_offsets(partitions)

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {place: end.offset for place, end in self.fixed.log_ends(partitions).items()}

    def reader(self, topic: str, partition: int) -> PartitionReader | KeptReader:
        if topic in self.fixed.global_ranges:
            return KeptReader(self.shadow.folder, topic, partition)
        return super().reader(topic, partition)


@dataclass
class Slices(RangedTopics):
    """Slices of files instead of topics."""

    folder: Path = Path()

    def reader(self, topic: str, partition: int) -> SliceReader | KeptReader:
        if topic in self.fixed.global_ranges:
            return super().reader(topic, partition)
        return SliceReader(self.folder, topic, partition)


@dataclass
class ShadowPlace(Place):
    """Where a shadow runs."""

    shadow: Shadow | None = None

    @property
    def warehouse(self) -> Path:
        return self.shadow.warehouse

    @property
    def state_folder(self) -> Path:
        return self.shadow.state_folder

    def commit_before(self) -> CommitRecord | None:
        return self.shadow.commit_before()


def begun(place: Place, days: Days, program: Application | None = None, **options) -> Shadow:
    """A shadow of the place's application, or of another program for it, that has not run."""
    return begin_from_kafka(
        program or place.application, place.warehouse, place.folder / "shadows", Cluster(place.topics), days, **options
    )


def begun_whole(place: Place, program: Application | None = None, oldest: int = 0) -> Shadow:
    """A shadow of everything that has not run."""
    return begin_everything(
        program or place.application, place.warehouse, place.folder / "shadows", Cluster(place.topics, oldest)
    )


def run_on(
    place: Place, shadow: Shadow, program: Application | None = None, on_step: Callable[[str], None] = lambda step: None
) -> Shadow:
    """Run a shadow of everything to where the live application is now."""
    live, program = newest_commit(place.warehouse, place.application.id), program or place.application
    return run_shadow(place, shadow, program, on_step, whole_ranges(program, Cluster(place.topics), live))


def run_shadow(
    place: Place,
    shadow: Shadow,
    program: Application | None = None,
    on_step: Callable[[str], None] = lambda step: None,
    ranges: Ranges | None = None,
) -> Shadow:
    """Run it to its end and complete it."""
    if shadow.completion is None:
        keep(shadow.folder, shadow.backfill.global_ranges, place.topics.reader, on_step)
    topics = RangedTopics(place.topics.rows, ranges or shadow.backfill.ranges, shadow)
    there = ShadowPlace(
        shadow_application(program or place.application, shadow.id),
        topics,
        place.folder,
        max_records=place.max_records,
        shadow=shadow,
    )
    summary = there.run(on_step)
    shadow.complete(Completion(records_in=summary.records_in, seconds=summary.seconds))
    return shadow


def made(place: Place, days: Days, program: Application | None = None, **options) -> Shadow:
    """A complete backfill."""
    return run_shadow(place, begun(place, days, program, **options), program)


def made_from_files(place: Place, days: Days, path: Path, **options) -> Shadow:
    """A complete backfill over a table or files instead of the topic ``readings``."""
    shadow = begin_from_files(
        place.application,
        place.warehouse,
        place.folder / "shadows",
        Cluster(place.topics),
        {"readings": str(path)},
        days,
        **options,
    )
    keep(shadow.folder, shadow.backfill.global_ranges, place.topics.reader, lambda step: None)
    backfill, source = shadow.backfill, place.application.topology.source("readings")
    partitions = backfill.ranges["readings"]
    rows = {
        partition: write_slice(shadow.slices, source, partition, len(partitions), backfill.files)
        for partition in partitions
    }
    topics = Slices(
        place.topics.rows,
        {"readings": {partition: (0, count) for partition, count in rows.items()}},
        shadow,
        shadow.slices,
    )
    there = ShadowPlace(
        shadow_application(place.application, shadow.id),
        topics,
        place.folder,
        max_records=place.max_records,
        shadow=shadow,
    )
    summary = there.driver().run(Event(), until_caught_up=True, end_time_ms=backfill.end_time_ms)
    shadow.complete(Completion(records_in=summary.records_in, seconds=summary.seconds))
    return shadow


def output(place: Place, table: str) -> pl.DataFrame:
    """The current rows, sorted, without the columns that commits add."""
    rows = read_table(place.warehouse / place.application.id / table)
    rows = rows.drop("_epoch", "_seq", "_deleted")
    return rows.sort(rows.columns)


def of_days(rows: pl.DataFrame, days: Days, *, inside: bool) -> pl.DataFrame:
    """The rows of these days, or all others."""
    column = "window_start" if "window_start" in rows.columns else "_ts"
    is_inside = pl.col(column).dt.timestamp("ms").is_between(days.start_ms, days.end_ms, closed="left")
    return rows.filter(is_inside if inside else ~is_inside)
