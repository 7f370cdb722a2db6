"""Whether a program may start over what is committed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import polars as pl

from weir.pipelines.application import Application, topics_before
from weir.pipelines.spark.errors import (
    CommitLogLostError,
    GrownWithRowsError,
    KeysMovedError,
    MatchedTopicGoneError,
    NoMatchingTopicError,
    OtherApplicationError,
    PartitionCountError,
    PendingRowsError,
    ProgramReplacedError,
    StorePlacementError,
    TopologyChangedError,
)
from weir.pipelines.tasks.blobs import is_readable
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology import Topology
from weir.pipelines.topology.changes import TopologyChange, compare
from weir.pipelines.topology.naming import names_over
from weir.state.changelog.reading import TaskChangelog
from weir.state.changelog.rows import has_rows, stored_identity
from weir.state.commit.evolution import evolution
from weir.state.commit.log import COMMITS
from weir.state.commit.record import CommitRecord
from weir.state.engine.instances import instances
from weir.state.storage.places import Place, folder_at, is_table

NEWEST_EPOCH = 1 << 62
"""Later than any epoch."""


def admit(
    application: Application,
    app_folder: Place,
    committed: CommitRecord | None,
    source_counts: Mapping[str, int],
    accept_state_loss: bool,
) -> TopologyChange | None:
    """What a start changes, given the partitions of each source topic; None before the first commit.

    Raises:
        TopologyChangedError, PartitionCountError: Committed state would be lost, and that was not accepted.
        ProgramReplacedError: The stores have other names in this commit than those that the application has.
        PendingRowsError, GrownWithRowsError: Rows between sub-topologies would be lost.
        TableSchemaError: A table's columns differ from those that the program writes.
    """
    if committed is None:
        return None
    if names_over(application.topology, committed) != application.topology.names:
        raise ProgramReplacedError(application.id)
    change = change_of(application.topology, app_folder, committed, source_counts)
    topics = ", ".join(f"{topic}: {count} partitions" for topic, count in sorted(source_counts.items()))
    if change.is_blocked and not change.is_other_topology and has_grown(committed, source_counts):
        raise GrownWithRowsError(application.id, change.pending_blobs, topics)
    if change.is_blocked:
        raise PendingRowsError(application.id, change.pending_blobs)
    refuses_loss = change.loses_state and not accept_state_loss
    if refuses_loss and change.is_other_topology and change.is_unrelated:
        raise OtherApplicationError(application.id)
    if change.is_other_topology:  # first, since no way on from a loss of state passes by a table that does not fit
        for spec in application_tables(application.topology):
            if spec.name not in committed.removed_tables:
                evolution(app_folder, spec)
    if refuses_loss:
        if change.is_other_topology:
            raise TopologyChangedError(application.id, change.loss())
        counts = application.topology.partition_counts(source_counts)
        raise PartitionCountError(application.id, len(committed.tasks), sum(counts.values()), topics)
    for store in change.newly_divided:
        require_placement(application.topology, app_folder, store, source_counts)
    return change


def change_of(
    topology: Topology, app_folder: Place, committed: CommitRecord, source_counts: Mapping[str, int]
) -> TopologyChange:
    """What the program changes, given the partitions of each source topic."""
    form = committed.topology
    specs = {store.name: store for sub_topology in topology.sub_topologies for store in sub_topology.stores}
    known = {store for stores in form.stores.values() for store in stores} if form else set[str]()
    without_identity = {*known, *specs} if form is None or form.identities is None else set[str]()
    without_identity |= {name for name, kept in (form.aside if form else {}).items() if kept.identity is None}
    return compare(
        committed,
        topology,
        topology.partition_counts(source_counts),
        identities={
            name: found
            for name in without_identity
            if (found := stored_identity(app_folder, name, specs.get(name))) is not None
        },
        leftovers={
            name for name, spec in specs.items() if name not in known and spec.is_logged and has_rows(app_folder, name)
        },
        is_readable=lambda blob: is_readable(app_folder, blob, topology),
        partitions=source_counts,
    )


def has_grown(committed: CommitRecord, source_counts: Mapping[str, int]) -> bool:
    """Whether a topic has more partitions than the commit knows."""
    known = committed.partitions
    return any(0 < known.get(topic, count) < count for topic, count in source_counts.items())


def committed_counts(
    application: Application, committed: CommitRecord | None, source_counts: Mapping[str, int]
) -> dict[str, int]:
    """``source_counts`` with those partitions alone that the commit knows, of topics that it knows.

    Raises:
        KeysMovedError: A topic has not a multiple of them now, so keys may have moved from one of them to another.
    """
    known = {} if committed is None else committed.partitions
    counts = dict(source_counts)
    for topic in counts.keys() & known.keys():
        if 0 < known[topic] < counts[topic]:
            if counts[topic] % known[topic]:
                raise KeysMovedError(application.id, topic, known[topic], counts[topic])
            counts[topic] = known[topic]
    return counts


def require_placement(topology: Topology, app_folder: Place, store: str, source_counts: Mapping[str, int]) -> None:
    """Raise ``StorePlacementError`` unless each key in the store's changelog is in the task to which a repartition
    would send its rows: producers may have used another partitioner."""
    counts = topology.partition_counts(source_counts)
    sub_topology = next(each for each in topology.sub_topologies if store in {spec.name for spec in each.stores})
    spec = next(spec for spec in sub_topology.stores if spec.name == store)
    edge = sub_topology.keyed_edges[0]
    columns = edge.node.record.key.columns
    for partition in range(counts[sub_topology.index]):
        rows = TaskChangelog.of(app_folder, spec, f"_{partition}", through=NEWEST_EPOCH).newest_rows()
        keys = rows.filter(~pl.col("_deleted")).select(
            pl.col(name).cast(dtype).alias(own) for name, (own, dtype) in zip(spec.key, columns.items(), strict=False)
        )
        misplaced = keys.filter(edge.partition_of(keys, counts[sub_topology.index]) != partition)
        if misplaced.height:
            raise StorePlacementError(store, str(misplaced.row(0)), partition)


def require_matches(application: Application) -> None:
    """Raise ``NoMatchingTopicError`` when no topic matches a pattern of the program."""
    for pattern in application.topology.open_patterns:
        raise NoMatchingTopicError(application.id, pattern)


def require_topics_read(application: Application, committed: CommitRecord | None, topics: Collection[str]) -> None:
    """Raise ``MatchedTopicGoneError`` when ``committed`` has read a topic by a pattern that is not among ``topics``."""
    for topic in application.topology.matched(topics_before(committed)):
        if topic not in topics:
            raise MatchedTopicGoneError(application.id, topic)


def _is_there(folder: Place) -> bool:
    return next(iter(folder_at(folder).list(below=True)), None) is not None


def require_commit_log(application: Application, app_folder: Place, state_folder: Path) -> None:
    """Raise ``CommitLogLostError`` when something was committed but the log of it is gone, and with it every position.

    A first start writes to the log before anything else, so without one there is neither local state nor a table.
    """
    log = app_folder / COMMITS.name
    if is_table(log):
        return
    tables = [spec.name for spec in application_tables(application.topology) if _is_there(app_folder / spec.name)]
    if next(instances(state_folder), None) is not None:
        raise CommitLogLostError(application.id, str(log), f"local state in {state_folder}")
    if tables:
        raise CommitLogLostError(application.id, str(log), f"a table {tables[0]!r} beside it")
