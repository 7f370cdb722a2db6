"""How a backfill begins: what it swaps, where its cut is, and what it reads; after that its shadow can be run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weir.pipelines.application import Application
from weir.pipelines.backfill.errors import (
    NoDayOutputsError,
    OpenWindowsError,
    SourceFilesError,
    UnloggedStoreError,
)
from weir.pipelines.backfill.files import TIME_COLUMN, SourceFiles, check_files
from weir.pipelines.backfill.kept_topics import table_ranges
from weir.pipelines.backfill.outputs import DayOutputs, day_outputs
from weir.pipelines.backfill.ranges import (
    cut_of,
    kafka_ranges,
    partitions_of,
    require_beginnings,
    settled,
    whole_ranges,
)
from weir.pipelines.backfill.shadow import EVERYTHING, Backfill, Days, Shadow, new_id
from weir.pipelines.cluster import Cluster, History
from weir.pipelines.tasks.tables import application_tables
from weir.pipelines.topology.nodes import AggregateNode
from weir.state.commit.evolution import evolution
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import Place


def begin_from_kafka(
    application: Application,
    warehouse: Place,
    state_dir: Path,
    cluster: History,
    days: Days,
    *,
    margin_ms: int | None = None,
    passes_wall_clock: bool = False,
) -> Shadow:
    """Begin a backfill of ``days`` over what the topics hold; by default ``margin_ms`` is what the windows need, and
    nothing that processors do by the wall clock is due.

    Raises:
        NoDayOutputsError: No output has rows that belong to days.
        NoCutError: The application's newest commit cannot be the cut, or the topic of a global table does not exist.
        TopicReplacedError: A topic is no longer the one that the application has read.
        HistoryLostError: The topics may have lost some of the days' records.
    """
    outputs, cut = _outputs(application), cut_of(application, newest_commit(warehouse, application.id))
    ranges = kafka_ranges(application, cluster, cut, _from_ms(days, outputs, margin_ms))
    return _begun(
        warehouse,
        state_dir,
        Backfill(
            id=new_id(days),
            application=application.id,
            days=days,
            source="Kafka",
            ranges=ranges,
            global_ranges=table_ranges(application, cluster),
            topic_ids=cut.topic_ids,
            cut_epoch=cut.epoch,
            passes_wall_clock=passes_wall_clock,
            outputs=outputs.swapped,
            **_publishing(application, cut, days.end_ms + outputs.look_back_ms, outputs),
        ),
    )


def begin_from_files(
    application: Application,
    warehouse: Place,
    state_dir: Path,
    cluster: Cluster | None,
    paths: Mapping[str, str],
    days: Days,
    *,
    time_column: str = TIME_COLUMN,
    margin_ms: int | None = None,
    passes_wall_clock: bool = False,
) -> Shadow:
    """Begin a backfill of ``days`` over Delta tables or Parquet files, one for each topic but those of global tables,
    which are in ``cluster``; it may be None for a program without any.

    Raises:
        NoDayOutputsError, NoCutError: As for ``begin_from_kafka``.
        SourceFilesError: A topic has no files, or the files lack some of its columns.
        OpenWindowsError: The live run has not finished the days.
    """
    outputs, cut = _outputs(application), cut_of(application, newest_commit(warehouse, application.id))
    end_time_ms = days.end_ms + outputs.look_back_ms  # the days' last windows end later
    files = SourceFiles(
        paths=dict(paths), time_column=time_column, from_ms=_from_ms(days, outputs, margin_ms), end_ms=end_time_ms
    )
    for topic in application.topology.topics():
        if topic not in paths:
            raise SourceFilesError(topic, "no path", "is named")
        check_files(application.topology.source(topic), files)
    require_closed(application, cut, days, end_time_ms)
    source = ", ".join(f"{path} for {topic}" if len(paths) > 1 else path for topic, path in sorted(paths.items()))
    return _begun(
        warehouse,
        state_dir,
        Backfill(
            id=new_id(days),
            application=application.id,
            days=days,
            source=source,
            ranges=partitions_of(application, cut),
            global_ranges=table_ranges(application, cluster),
            cut_epoch=cut.epoch,
            passes_wall_clock=passes_wall_clock,
            outputs=outputs.swapped,
            **_publishing(application, cut, end_time_ms, outputs),
            files=files,
            end_time_ms=end_time_ms,
        ),
    )


def begin_everything(
    application: Application,
    warehouse: Place,
    state_dir: Path,
    cluster: Cluster,
    *,
    passes_wall_clock: bool = False,
) -> Shadow:
    """Begin a backfill of the whole history, stores included (docs/backfill.md, 12).

    Raises:
        UnloggedStoreError: A store has no changelog.
        NoCutError: The application has committed nothing, or rows are under way at its newest commit; or a topic does
            not exist.
        TopicReplacedError: A topic is no longer the one that the application has read.
        BeginningLostError: A topic has lost its first records.
        TableSchemaError: A table's columns differ from those that the program writes.
    """
    for sub_topology in application.topology.sub_topologies:
        for store in sub_topology.stores:
            if not store.is_logged:
                raise UnloggedStoreError(application.id, store.name)
    cut = settled(application, newest_commit(warehouse, application.id))
    for spec in application_tables(application.over(cut).topology):
        evolution(warehouse / application.id, spec)
    ranges = whole_ranges(application, cluster, cut)
    require_beginnings(application, cluster, ranges)
    return _begun(
        warehouse,
        state_dir,
        Backfill(
            id=new_id(EVERYTHING),
            application=application.id,
            days=EVERYTHING,
            source="Kafka",
            ranges=ranges,
            global_ranges=table_ranges(application, cluster),
            topic_ids=cut.topic_ids,
            cut_epoch=cut.epoch,
            passes_wall_clock=passes_wall_clock,
        ),
    )


def require_closed(application: Application, cut: CommitRecord, days: Days, end_time_ms: int) -> None:
    """Raise ``OpenWindowsError`` when a task's stream time at the cut has not reached ``end_time_ms``."""
    if (task := _open_windows(application, cut, end_time_ms)) is not None:
        raise OpenWindowsError(application.id, task, str(days))


def _open_windows(application: Application, cut: CommitRecord, end_time_ms: int) -> str | None:
    """A task whose stream time at the cut has not reached ``end_time_ms``."""
    windowed = {
        node.store.name
        for node in application.topology.nodes
        if isinstance(node, AggregateNode) and node.windows is not None
    }
    return next(
        (
            task
            for task, state in sorted(cut.tasks.items())
            if any(clock in windowed and time_ms < end_time_ms for clock, time_ms in state.clocks.items())
        ),
        None,
    )


def _publishing(application: Application, cut: CommitRecord, end_time_ms: int, outputs: DayOutputs) -> dict[str, Any]:
    """The sinks that can be published to, and what is left out: windows that the live run may still change, so that it
    publishes newer rows than the backfill has."""
    is_open = _open_windows(application, cut, end_time_ms) is not None
    still_open = [sink.name for sink in outputs.published if is_open and sink.has_windows]
    return {
        "published": tuple(sink.name for sink in outputs.published if sink.name not in still_open),
        "left_out": {
            **outputs.left_out,
            **dict.fromkeys(still_open, "the live run has not finished the days, so it may publish newer rows"),
        },
    }


def _outputs(application: Application) -> DayOutputs:
    outputs = day_outputs(application.topology)
    if not outputs.swapped and not outputs.published:
        raise NoDayOutputsError(
            application.id,
            "; ".join(f"{table!r}: {reason}" for table, reason in outputs.left_out.items())
            or "it has no outputs at all",
        )
    return outputs


def _from_ms(days: Days, outputs: DayOutputs, margin_ms: int | None) -> int:
    return max(0, days.start_ms - (outputs.look_back_ms if margin_ms is None else margin_ms))


def _begun(warehouse: Place, state_dir: Path, backfill: Backfill) -> Shadow:
    shadow = Shadow.of(warehouse, state_dir, backfill.application, backfill.id)
    shadow.begin(backfill)
    return shadow
