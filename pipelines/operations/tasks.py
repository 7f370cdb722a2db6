"""The tasks of an application, as Kafka's tools show the members of a consumer group: where each one runs, what it has
committed of its partitions, how far that is behind, what its stores hold, and what it has not committed.

Where a task runs and what is measured of it comes from the control database, committed offsets from the commit log, the
ends of topics from a broker that runs. Of the application as a whole: ``weir.pipelines.operations.status``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from weir.infra.control import ApplicationStatus, ControlDatabase, TaskStatusRow
from weir.infra.kafka.admin import KafkaAdmin, KafkaAdminError
from weir.infra.kafka.broker import broker_of
from weir.infra.settings import Settings
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.positions import committed_positions
from weir.pipelines.operations.status import stored_names, task_sizes
from weir.pipelines.tasks.run_metrics import PACE, ROWS, USED_BYTES
from weir.state.commit.protocol import newest_commit
from weir.state.engine.task_store import RESERVED_STORES
from weir.state.storage.places import folder_at
from weir.state.types import Positions, TopicPartition

ANSWER_LIMIT_S = 2.0
"""How long brokers may take to say where topics end."""
NO_BROKER = "the folder's own broker does not run"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a driver measures of a task as a whole; None is what it has not measured yet."""

    records_per_s: float | None = None
    """Over the last minute."""
    rows: int | None = None
    """Of all its stores, as the next one."""
    used_bytes: int | None = None


NOTHING = Measured()


def measured(driver: ApplicationStatus) -> dict[str, Measured]:
    """By task, of those of which a driver has measured anything."""
    found: dict[str, dict[str, float]] = {}
    for reading in driver.readings:
        if reading["tags"].keys() == {"task-id"}:
            found.setdefault(reading["tags"]["task-id"], {})[reading["name"]] = reading["value"]
    return {
        task: Measured(
            records_per_s=values.get(PACE), rows=_whole(values.get(ROWS)), used_bytes=_whole(values.get(USED_BYTES))
        )
        for task, values in found.items()
    }


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def seconds_behind(lag: int, records_per_s: float | None) -> float | None:
    """How long a task needs for its lag at the pace of its last minute; None if it has read nothing in it."""
    if lag <= 0:
        return 0.0
    return lag / records_per_s if records_per_s else None


def application_tasks(settings: Settings, database: ControlDatabase, application: str) -> dict[str, Any]:
    """The tasks that the newest driver of an application has reported, as plain values, by sub-topology and partition.

    ``lag`` counts from the committed offsets to the ends of the topics. Where those are not known, ``ends_unknown``
    says why, and ``lag`` is what the driver last reported, at ``reported_at``: records that it has not read. A broker
    that does not run is not started.

    Raises:
        OperationError: No driver has reported any.
    """
    life = _with_tasks(settings, database.application_status(application, of_driver=True), application)
    newest = newest_commit(folder_at(settings.warehouse), application)
    names = stored_names(settings, application)
    ends, ends_unknown = _ends(settings, [each for row in life.tasks for each in _reads(row)])
    found, committed = measured(life), committed_positions(newest)
    return {
        "application": application,
        "state": life.state,
        "is_running": life.is_running,
        "host": life.host,
        "pid": life.pid,
        "reported_at": datetime.fromtimestamp(max(row.updated_at_ms for row in life.tasks) / 1000, UTC),
        "ends_unknown": ends_unknown,
        "tasks": [
            _task(settings, life, row, names.get(row.task), found.get(row.task, NOTHING), committed, ends)
            for row in life.tasks
        ],
    }


def _with_tasks(settings: Settings, life: ApplicationStatus | None, application: str) -> ApplicationStatus:
    """``life`` itself if it has tasks."""
    if life is not None and life.tasks:
        return life
    if life is not None and life.is_running:
        raise OperationError(
            f"the driver of {application!r} has not reported its tasks yet ({life.waits_for or life.state}); "
            f"`weir logs {application}` shows what it does"
        )
    raise OperationError(
        f"no run of {application!r} has reported tasks in {settings.dir} yet; start one with `weir run MODULE:APP`"
    )


def _task(
    settings: Settings,
    life: ApplicationStatus,
    row: TaskStatusRow,
    name: str | None,
    figures: Measured,
    committed: Positions,
    ends: Mapping[TopicPartition, int],
) -> dict[str, Any]:
    """One task; a pace is that of a driver that runs. What was not measured of its stores is read from those that are
    on this host."""
    partitions = [_partition(each, committed, ends) for each in _reads(row)]
    lags = [each["lag"] for each in partitions]
    lag = row.lag if None in lags or not lags else sum(lags)
    records_per_s = figures.records_per_s if life.is_running else None
    rows, used_bytes = figures.rows, figures.used_bytes
    if name and (rows is None or used_bytes is None):
        rows, used_bytes = _held(settings, life.application, name)
    return {
        "task": row.task,
        "name": name,
        "sub_topology": name.rpartition("_")[0] if name else None,
        "slot": row.slot,
        "executor": row.executor,
        "standbys": dict(row.standbys or {}),
        "status": row.status if life.is_running else life.state,
        "partitions": partitions,
        "lag": lag,
        "seconds_behind": seconds_behind(lag, records_per_s),
        "records_per_s": records_per_s,
        "rows": rows,
        "bytes": used_bytes,
        "uncommitted_records": row.uncommitted_records,
        "uncommitted_bytes": row.uncommitted_bytes,
        "reason": row.reason,
    }


def _held(settings: Settings, application: str, name: str) -> tuple[int | None, int | None]:
    """Rows and bytes of a task's stores on this host, if they are here."""
    sizes = task_sizes(settings, application, name)
    of_program = [size for store, size in sizes.items() if store not in RESERVED_STORES]
    if not sizes:
        return None, None
    return sum(size.rows for size in of_program), sum(size.bytes for size in of_program)


def _reads(row: TaskStatusRow) -> list[TopicPartition]:
    return sorted((topic, int(partition)) for topic, offsets in row.positions.items() for partition in offsets)


def _partition(
    topic_partition: TopicPartition, committed: Positions, ends: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    topic, partition = topic_partition
    offset, end = committed.get(topic, {}).get(partition), ends.get(topic_partition)
    return {
        "topic": topic,
        "partition": partition,
        "committed_offset": offset,
        "end_offset": end,
        "lag": None if offset is None or end is None else end - offset,
    }


def _ends(settings: Settings, partitions: Iterable[TopicPartition]) -> tuple[Mapping[TopicPartition, int], str | None]:
    """The end of each partition that exists, and why they are not known, if so."""
    wanted = sorted(set(partitions))
    if not wanted:
        return {}, None
    broker = broker_of(settings)
    if broker is None:
        return {}, NO_BROKER
    servers, settings = broker
    until_s = time.monotonic() + ANSWER_LIMIT_S
    try:
        admin = KafkaAdmin(servers, settings.kafka, time_limit_s=ANSWER_LIMIT_S)
        counts = admin.partition_counts({topic for topic, _ in wanted})
        admin.time_limit_s = max(0.1, until_s - time.monotonic())
        return admin.end_offsets([each for each in wanted if each[1] < counts.get(each[0], 0)]), None
    except KafkaAdminError as error:
        return {}, str(error)
