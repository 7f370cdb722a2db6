"""Where backfills of a world run: the driver of a shadow, over the topics from their beginnings to where it is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.pipelines.backfill import inline
from tests.simulation.brokers import Brokers
from tests.simulation.place import SimulatedPlace
from tests.simulation.substitutes import Event
from weir.infra.kafka.reader import PartitionReader
from weir.pipelines.backfill.kept_topics import KeptReader, keep
from weir.pipelines.backfill.ranges import Ranges, require_same_topics
from weir.pipelines.backfill.shadow import Completion, Shadow, shadow_application
from weir.pipelines.spark.backfill import FixedRanges
from weir.pipelines.spark.parts import RunSpec
from weir.state.commit.record import CommitRecord
from weir.state.types import TopicPartition


@dataclass
class Cluster(inline.Cluster):
    """The topics of a world, as a backfill asks about them."""

    topics: Brokers

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self.topics.beginning_offsets(partitions)

    def offsets_at(self, partitions: Sequence[TopicPartition], time_ms: int) -> Mapping[TopicPartition, int | None]:
        def first(at: TopicPartition) -> int | None:
            begin = self.topics.oldest.get(at, 0)
            rows = enumerate(self.topics.rows[at][begin:], begin)
            return next((offset for offset, row in rows if row is not None and row[2] >= time_ms), None)

        return {at: first(at) for at in partitions}


@dataclass(frozen=True)
class RangedBrokers(FixedRanges):
    """The topics of a world that begin and end where a backfill says."""

    brokers: Brokers = field(kw_only=True)
    shadow: Shadow = field(kw_only=True)
    """Which has what was kept of the topics of global tables."""

    def partition_counts(self) -> Mapping[str, int]:
        return self.topics()

    def reader(self, topic: str, partition: int) -> PartitionReader | KeptReader:
        if topic in self.global_ranges:
            return KeptReader(self.shadow.folder, topic, partition)
        return self.brokers.reader(topic, partition)


@dataclass
class ShadowPlace(SimulatedPlace):
    """Where a shadow runs."""

    shadow: Shadow = field(kw_only=True)

    @property
    def warehouse(self) -> Path:
        return self.shadow.warehouse

    @property
    def state_folder(self) -> Path:
        return self.shadow.state_folder

    def commit_before(self) -> CommitRecord | None:
        return self.shadow.commit_before()

    def spec(self, **accepts: bool) -> RunSpec:
        spec = super().spec(**accepts)
        return replace(spec, limits=replace(spec.limits, passes_wall_clock=self.shadow.backfill.passes_wall_clock))


def run_shadow(live: SimulatedPlace, brokers: Brokers, shadow: Shadow, ranges: Ranges) -> None:
    """Run a shadow until it has read ``ranges``, and complete it: what ``weir.pipelines.spark.backfill`` does with
    Spark."""
    cluster, backfill = Cluster(brokers), shadow.backfill
    require_same_topics(live.application, cluster, backfill.topic_ids)
    if shadow.completion is None:
        keep(shadow.folder, backfill.global_ranges, brokers.reader, live.scheduler.point)
    there = ShadowPlace(
        shadow_application(live.application, shadow.id),
        RangedBrokers(ranges, cluster, backfill.global_ranges, brokers=brokers, shadow=shadow),
        live.folder,
        max_records=live.max_records,
        slots_count=live.slots_count,
        scheduler=live.scheduler,
        stores=live.stores,
        shadow=shadow,
    )
    summary = there.driver().run(Event(live.scheduler), until_caught_up=True)
    live.scheduler.note(f"{shadow.id}: {summary.reason}, {summary.records_in} records")
    shadow.complete(Completion(records_in=summary.records_in, seconds=summary.seconds))
