"""What an application's newest commit left, as metadata of its assets: values and types as Dagster Pipes has them.

Read by a driver that a run started, at its end (``weir.orchestration.worker``), and by the sensors in between and for
drivers that no run started. No Dagster here: the driver does without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.settings import Settings
from weir.orchestration.last_hour import last_hour_markdown
from weir.pipelines.operations.positions import committed_positions, committed_totals
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import count_rows

COUNTED_ROWS_MAX = 1_000_000
"""A table of updates that holds more is not counted: its keys would have to be read (0.12 s for so many)."""


def commit_metadata(newest: CommitRecord) -> dict[str, Any]:
    """Which commit it is; the same on all assets of the application."""
    return {
        "generation": newest.generation,
        "epoch": newest.epoch,
        "committed_at": {"raw_value": newest.at_ms / 1000, "type": "timestamp"},
    }


def ingest_metadata(newest: CommitRecord, topics: Iterable[str]) -> dict[str, Any]:
    """How far the ingest has read, and what it has counted since the application began."""
    return {
        **commit_metadata(newest),
        **offsets_metadata(committed_positions(newest, topics)),
        **{f"total_{name}": count for name, count in committed_totals(newest).items()},
    }


def pace_metadata(settings: Settings, application: str) -> dict[str, Any]:
    """Lag and latency as the driver reported them last, and its last hour; empty without a control database."""
    try:
        database = ControlDatabase(settings.control_database_url)
        status, minutes = database.application_status(application), database.last_hour(application)
    except ControlDatabaseError:
        return {}
    metric = status.metric if status else None
    newest = {} if metric is None else {"lag_records": metric.lag, "commit_ms": round(metric.commit_ms, 1)}
    return {**newest, "last_hour": {"raw_value": last_hour_markdown(minutes), "type": "md"}}


def offsets_metadata(offsets: Any) -> dict[str, Any]:
    """Next offsets to read, as one JSON value."""
    return {"offsets": {"raw_value": offsets, "type": "json"}}


def table_data_version(newest: CommitRecord, table: str) -> str:
    """Changes when a commit has brought rows of the table, and then alone: what is downstream goes by it."""
    return str(newest.table_versions.get(table, 0))


def table_metadata(newest: CommitRecord, folder: Path) -> dict[str, Any]:
    """Where a table lies and, as far as that is known without much reading, how many rows stand in it."""
    rows = count_rows(folder, read_at_most=COUNTED_ROWS_MAX)
    return {
        **commit_metadata(newest),
        "dagster/uri": {"raw_value": str(folder), "type": "path"},
        **({} if rows is None else {"dagster/row_count": rows}),
    }
