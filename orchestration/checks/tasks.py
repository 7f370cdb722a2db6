"""The tasks of a running driver as a table: where each is, how far it has read, and what it has not committed."""

from __future__ import annotations

import dagster as dg

from weir.infra.control import ApplicationStatus, TaskStatusRow
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.text import duration
from weir.pipelines.tasks.run_metrics import PACE, ROWS, USED_BYTES

SHOWN = 50
UNKNOWN = "-"


def task_table(driver: ApplicationStatus) -> dg.TableMetadataValue:
    """Those furthest behind come first; more than ``SHOWN`` are cut.

    ``behind`` is how long a task needs for its lag at the pace of its last minute.
    """
    tasks = sorted(driver.tasks, key=lambda task: (-task.lag, tuple(map(int, task.task.split("_")))))
    measured = _measured(driver)
    rows = [_row(task, measured.get(task.task, {})) for task in tasks[:SHOWN]]
    columns = rows[0] if rows else {}
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in rows],
        dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in columns]),
    )


def _measured(driver: ApplicationStatus) -> dict[str, dict[str, float]]:
    """By task, what is measured of it as a whole, by name."""
    found: dict[str, dict[str, float]] = {}
    for reading in driver.readings:
        if reading["tags"].keys() == {"task-id"}:
            found.setdefault(reading["tags"]["task-id"], {})[reading["name"]] = reading["value"]
    return found


def _row(task: TaskStatusRow, measured: dict[str, float]) -> dict[str, str]:
    reads = ", ".join(
        f"{topic}-{partition} at {offset:,}"
        for topic, offsets in task.positions.items()
        for partition, offset in sorted(offsets.items(), key=lambda each: int(each[0]))
    )
    pace, rows, size = (measured.get(name) for name in (PACE, ROWS, USED_BYTES))
    return {
        "task": task.task,
        "slot": str(task.slot),
        "state": task.status,
        "reads": reads or "rows of other tasks",
        "lag": f"{task.lag:,}",
        "behind": _behind(task.lag, pace),
        "records/s": UNKNOWN if pace is None else f"{pace:,.0f}",
        "records read": f"{task.records_in:,}",
        "rows": UNKNOWN if rows is None else f"{rows:,.0f}",
        "size": UNKNOWN if size is None else size_text(round(size)),
        "uncommitted": size_text(task.uncommitted_bytes),
        "open windows": f"{task.open_windows:,}",
        "late": f"{task.late_records:,}",
        "note": task.reason,
    }


def _behind(lag: int, pace: float | None) -> str:
    if not lag:
        return duration(0)
    return duration(1_000 * lag / pace) if pace else UNKNOWN
