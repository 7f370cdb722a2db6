"""Which offsets a backfill reads: up to the cut, starting at the days' first record less a margin, or at the beginning
(docs/backfill.md, 2, 3, 12)."""

from __future__ import annotations

from collections.abc import Mapping

from weir.pipelines.application import Application
from weir.pipelines.backfill.errors import BeginningLostError, HistoryLostError, NoCutError, TopicReplacedError
from weir.pipelines.cluster import Cluster, History
from weir.state.commit.record import CommitRecord

Ranges = dict[str, dict[int, tuple[int, int]]]
"""Topic to partition to ``[start, end)``."""


def cut_of(application: Application, newest: CommitRecord | None) -> CommitRecord:
    """The live application's newest commit, as the cut of a backfill that begins now.

    Raises:
        NoCutError: There is none, it does not know a topic, or it has rows under way between sub-topologies.
    """
    newest = settled(application, newest)
    known = {topic for task in newest.tasks.values() for topic in task.positions}
    if new := sorted(set(application.topology.topics()) - known):
        raise NoCutError(
            application.id,
            f"its newest commit does not know topic {new[0]!r}; run this program first with `weir run MODULE:APP`",
        )
    return newest


def settled(application: Application, newest: CommitRecord | None) -> CommitRecord:
    """The live application's newest commit, at which no rows are under way: where those come among others depends on
    records that it has not read (PROTOCOL 31), so reading up to it would not give the same results.

    Raises:
        NoCutError: There is none, or it has rows under way between sub-topologies.
    """
    newest = committed(application, newest)
    if newest.pending_blobs:
        raise NoCutError(
            application.id,
            "rows between its tasks are still under way at its newest commit; wait until none are, which "
            f"`weir status {application.id}` shows, stop it with `weir stop {application.id} --drain`, or, if it has "
            "stopped, run the program that ran last with `weir run OLD_MODULE:APP --until-caught-up`; then run the "
            "backfill again",
        )
    return newest


def committed(application: Application, newest: CommitRecord | None) -> CommitRecord:
    """The live application's newest commit; raises ``NoCutError`` when there is none."""
    if newest is None:
        raise NoCutError(application.id, "it has not committed anything; run it first with `weir run MODULE:APP`")
    return newest


def partitions_of(application: Application, cut: CommitRecord) -> Ranges:
    """The offsets up to the cut, of each topic partition that ``cut`` knows and the program reads."""
    topics, ranges = set(application.topology.topics()), Ranges()
    for task in cut.tasks.values():
        for topic in topics & task.positions.keys():
            ranges.setdefault(topic, {}).update(
                {partition: (0, offset) for partition, offset in task.positions[topic].items()}
            )
    return ranges


def kafka_ranges(application: Application, cluster: History, cut: CommitRecord, from_ms: int) -> Ranges:
    """The offsets from the first record at or after ``from_ms`` to the cut, of each topic partition that ``cut`` knows.

    The brokers only know the records' own timestamps: a topic whose time the program takes from elsewhere is read from
    its beginning.

    Raises:
        TopicReplacedError: A topic is no longer the one that ``cut`` has offsets of.
        HistoryLostError: A partition may have lost records at or after ``from_ms``.
    """
    require_same_topics(application, cluster, cut.topic_ids)
    ends = {
        (topic, partition): end
        for topic, partitions in partitions_of(application, cut).items()
        for partition, (_, end) in partitions.items()
    }
    wanted = sorted(ends)
    oldest, first = cluster.beginning_offsets(wanted), cluster.offsets_at(wanted, from_ms)
    kept = cluster.offsets_at(wanted, 0)  # partitions may begin with offsets that hold no record
    ranges: Ranges = {}
    for (topic, partition), end in sorted(ends.items()):
        found = first[topic, partition]
        start = end if found is None else min(found, end)
        if not application.topology.source(topic).timestamp.is_records_own:
            start = oldest[topic, partition]
        first_kept = kept[topic, partition]
        if oldest[topic, partition] > 0 and (first_kept is None or start <= first_kept):
            raise HistoryLostError(application.id, topic, partition, oldest[topic, partition])
        ranges.setdefault(topic, {})[partition] = (start, end)
    return ranges


def whole_ranges(application: Application, cluster: Cluster, cut: CommitRecord) -> Ranges:
    """The offsets of each topic partition from 0 to the cut, or to the end for topics that the cut does not know.

    Raises:
        TopicReplacedError: A topic is no longer the one that ``cut`` has offsets of.
        NoCutError: A topic does not exist.
    """
    require_same_topics(application, cluster, cut.topic_ids)
    ranges = partitions_of(application, cut)
    new = sorted(set(application.topology.topics()) - ranges.keys())
    counts = cluster.partition_counts(new) if new else {}
    if missing := [topic for topic in new if topic not in counts]:
        raise NoCutError(application.id, f"there is no topic {missing[0]!r}; create it first")
    ends = cluster.end_offsets([(topic, partition) for topic in new for partition in range(counts[topic])])
    for (topic, partition), end in ends.items():
        ranges.setdefault(topic, {})[partition] = (0, end)
    return ranges


def require_same_topics(application: Application, cluster: Cluster, known: Mapping[str, str]) -> None:
    """Raise ``TopicReplacedError`` when a topic that the program reads has another id than the ``known`` one."""
    for topic, topic_id in cluster.topic_ids(known.keys() & set(application.topology.topics())).items():
        if topic_id != known[topic]:
            raise TopicReplacedError(application.id, topic)


def require_beginnings(application: Application, cluster: Cluster, ranges: Ranges) -> None:
    """Raise ``BeginningLostError`` when a partition has lost its first records."""
    wanted = [(topic, partition) for topic, partitions in sorted(ranges.items()) for partition in sorted(partitions)]
    for (topic, partition), oldest in cluster.beginning_offsets(wanted).items():
        if oldest > 0:
            raise BeginningLostError(application.id, topic, partition, oldest)
