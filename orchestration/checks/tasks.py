"""The tasks of a running driver as a table: where each is, how far it has read, and what it has not committed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg

from weir.infra.control import ApplicationStatus, AssignmentRow, TaskStatusRow
from weir.orchestration.advice import in_dagster
from weir.orchestration.thresholds import size_text
from weir.pipelines.operations.tasks import NOTHING, Measured, measured, seconds_behind
from weir.pipelines.operations.text import duration, utc_text

SHOWN, SHOWN_MOVES = 50, 10
UNKNOWN = "-"


def task_table(driver: ApplicationStatus) -> dg.TableMetadataValue:
    """Those furthest behind come first; more than ``SHOWN`` are cut.

    ``behind`` is how long a task needs for its lag at the pace of its last minute.
    """
    tasks = sorted(driver.tasks, key=lambda task: (-task.lag, tuple(map(int, task.task.split("_")))))
    figures = measured(driver)
    rows = [_row(driver.application, task, figures.get(task.task, NOTHING)) for task in tasks[:SHOWN]]
    return _table(rows)


def assignment_table(assignment: AssignmentRow) -> dg.TableMetadataValue:
    """The newest assignment: what each executor has and had, and the tasks that moved there, with the reasons."""
    at = utc_text(datetime.fromtimestamp(assignment.at_ms / 1000, UTC))
    rows = []
    for executor, of_it in assignment.executors.items():
        moves = [move for move in assignment.moves if (move["target"] or "").partition("/")[0] == executor]
        new = [f"{move['task']} {move['role']}: {move['reason']}" for move in moves[:SHOWN_MOVES]]
        if len(moves) > SHOWN_MOVES:
            new.append(f"and {len(moves) - SHOWN_MOVES} more")
        rows.append(
            {
                "at": at,
                "took": f"{1000 * assignment.seconds:,.1f} ms",
                "why": assignment.reason,
                "executor": executor,
                "slots": str(of_it["slots"]),
                "active": f"{len(of_it['active']):,}",
                "standby": f"{len(of_it['standby']):,}",
                "previous": f"{len(of_it['previous']):,}",
                "new": "; ".join(new) or UNKNOWN,
            }
        )
    return _table(rows)


def _table(rows: Sequence[dict[str, str]]) -> dg.TableMetadataValue:
    return dg.MetadataValue.table(
        [dg.TableRecord(row) for row in rows],
        dg.TableSchema(columns=[dg.TableColumn(name, "text") for name in (rows[0] if rows else {})]),
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
