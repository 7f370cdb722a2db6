"""How much of the topics a task's committed state reflects, wherever in the topology the task is (KIP-892, KIP-796).

A task that reads topics keeps its positions itself. For one behind a repartition the commit log knows how far the tasks
before it had read, and which rows were still on their way to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from weir.pipelines.tasks.blobs import BLOBS, read_blob
from weir.pipelines.tasks.order import OFFSETS, ORIGIN, origin
from weir.pipelines.topology.sub_topology import SubTopology
from weir.pipelines.topology.topology import Topology
from weir.state.commit.log import COMMITS, commits_above, newest_of
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions
from weir.state.storage.places import Place, is_table, table_at
from weir.state.types import BlobRef, Positions, StateId


def commit_with(app_folder: Place, task: str, state: StateId) -> CommitRecord | None:
    """The newest commit that has ``task`` at ``state``; None if the log has none."""
    folder = app_folder / COMMITS.name
    if not is_table(folder):
        return None
    files = file_actions(table_at(folder))
    newest = newest_of(folder, files)
    if newest is None or _has(newest, task, state):
        return newest
    found = [record for record in commits_above(folder, files, state.version - 1) if _has(record, task, state)]
    return found[-1] if found else None


def input_before(
    topology: Topology, sub_topology: SubTopology, app_folder: Place, record: CommitRecord, task: str
) -> Positions:
    """By topic and partition, the offset before which every record has had all its effects on ``task`` as of a commit.

    The topics are those that the sub-topologies before the task's own read.

    Raises:
        FileNotFoundError: Rows that were on their way at this commit have been taken by a later one.
    """
    before = _before(topology, sub_topology)
    names = {each.stored_name for each in before}
    positions: Positions = {}
    for name, committed in record.tasks.items():
        if name.rpartition("_")[0] in names:
            for topic, offsets in committed.positions.items():
                positions.setdefault(topic, {}).update(offsets)
    under_way = [
        blob for blob in record.pending_blobs if blob.target == task or blob.target.rpartition("_")[0] in names
    ]
    for number in _origins(app_folder / BLOBS, under_way, {edge.name: edge.schema for edge in topology.edges}):
        for topic, offsets in positions.items():
            for partition, offset in offsets.items():
                if origin(topology.topic_ranks[topic], partition, 0) == number & ~OFFSETS:
                    offsets[partition] = min(offset, number & OFFSETS)
    return positions


def _has(record: CommitRecord, task: str, state: StateId) -> bool:
    return task in record.tasks and record.tasks[task].state == state


def _before(topology: Topology, sub_topology: SubTopology) -> list[SubTopology]:
    """The sub-topologies whose rows lead to ``sub_topology``; itself too, if they lead back."""
    found: dict[int, SubTopology] = {}
    waiting = [sub_topology]
    while waiting:
        for edge in waiting.pop().edges_in:
            if edge.source not in found:
                found[edge.source] = topology.sub_topology(edge.source)
                waiting.append(found[edge.source])
    return list(found.values())


def _origins(folder: Place, blobs: Iterable[BlobRef], schemas: Mapping[str, pl.Schema]) -> Iterable[int]:
    """For each topic partition whose records caused rows in ``blobs``, the origin of the first of them."""
    for blob in blobs:
        rows = read_blob(folder, blob, schemas[blob.edge])
        yield from rows.group_by((pl.col(ORIGIN) & ~OFFSETS).alias("of")).agg(pl.col(ORIGIN).min())[ORIGIN]
