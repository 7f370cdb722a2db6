"""The tasks of a running driver as a table: where each is, how far it has read, and what it has not committed."""

from __future__ import annotations

import dagster as dg

from weir.infra.control import ApplicationStatus, TaskStatusRow
from weir.orchestration.advice import in_dagster
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.tasks import NOTHING, Measured, measured, seconds_behind
from weir.pipelines.operations.text import duration

SHOWN = 50
UNKNOWN = "-"


def task_table(driver: ApplicationStatus) -> dg.TableMetadataValue:
    """Those furthest behind come first; more than ``SHOWN`` are cut.

    ``behind`` is how long a task needs for its lag at the pace of its last minute.
    """
    tasks = sorted(driver.tasks, key=lambda task: (-task.lag, tuple(map(int, task.task.split("_")))))
    figures = measured(driver)
    rows = [_row(driver.application, task, figures.get(task.task, NOTHING)) for task in tasks[:SHOWN]]
    columns = rows[0] if rows else {}
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in rows],
        dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in columns]),
    )


def _row(application: str, task: TaskStatusRow, figures: Measured) -> dict[str, str]:
    reads = ", ".join(
        f"{topic}-{partition} at {offset:,}"
        for topic, offsets in task.positions.items()
        for partition, offset in sorted(offsets.items(), key=lambda each: int(each[0]))
    )
    pace, behind_s = figures.records_per_s, seconds_behind(task.lag, figures.records_per_s)
    return {
        "task": task.task,
        "slot": str(task.slot),
        "state": task.status,
        "restored": UNKNOWN if task.restored_per_cent is None else f"{task.restored_per_cent:.0f} %",
        "reads": reads or "rows of other tasks",
        "lag": f"{task.lag:,}",
        "behind": UNKNOWN if behind_s is None else duration(1_000 * behind_s),
        "records/s": UNKNOWN if pace is None else f"{pace:,.0f}",
        "records read": f"{task.records_in:,}",
        "rows": UNKNOWN if figures.rows is None else f"{figures.rows:,}",
        "size": UNKNOWN if figures.used_bytes is None else size_text(figures.used_bytes),
        "uncommitted": size_text(task.uncommitted_bytes),
        "open windows": f"{task.open_windows:,}",
        "late": f"{task.late_records:,}",
        "note": in_dagster(task.reason, application),
    }
