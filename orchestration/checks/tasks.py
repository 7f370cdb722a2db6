"""The tasks of a running driver as a table: where each is, how far it has read, and what it has not committed."""

from __future__ import annotations

import dagster as dg

from weir.infra.control import ApplicationStatus, TaskStatusRow
from weir.orchestration.thresholds import size_text

COLUMNS = ("task", "slot", "state", "reads", "lag", "records read", "uncommitted", "open windows", "late", "note")
SHOWN = 50


def task_table(driver: ApplicationStatus) -> dg.TableMetadataValue:
    """Those furthest behind come first; more than ``SHOWN`` are cut."""
    rows = sorted(driver.tasks, key=lambda task: (-task.lag, tuple(map(int, task.task.split("_")))))
    return dg.MetadataValue.table(
        [dg.TableRecord(dict(zip(COLUMNS, _cells(task), strict=True))) for task in rows[:SHOWN]],
        dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in COLUMNS]),
    )


def _cells(task: TaskStatusRow) -> tuple[str, ...]:
    reads = ", ".join(
        f"{topic}-{partition} at {offset:,}"
        for topic, offsets in task.positions.items()
        for partition, offset in sorted(offsets.items(), key=lambda each: int(each[0]))
    )
    counts = (task.records_in, size_text(task.uncommitted_bytes), task.open_windows, task.late_records)
    return (
        task.task,
        str(task.slot),
        task.status,
        reads or "rows of other tasks",
        f"{task.lag:,}",
        *(count if isinstance(count, str) else f"{count:,}" for count in counts),
        task.reason,
    )
