"""Asset metadata of an application's newest commit, as values and types of Dagster Pipes.

A driver that a run started reports it at its end (``weir.orchestration.drivers.ingest``); sensors report it in between,
and for drivers that no run started. Imports no Dagster, because drivers run without it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from weir.infra.control import ApplicationStatus, ControlDatabase, ControlDatabaseError, MinuteRow
from weir.infra.settings import Settings
from weir.orchestration.advice import in_dagster
from weir.pipelines.expectations import expectation_counts, other_counts
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.positions import committed_positions, committed_totals
from weir.pipelines.operations.quarantine import QuarantineStatus, quarantine_status
from weir.pipelines.operations.sinks import sinks_of
from weir.state.commit.outbox import sink_of
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import count_rows
from weir.state.commit.upserts import shown_name
from weir.state.storage.places import folder_at

COUNTED_ROWS_MAX = 1_000_000
"""A larger table of updates is not counted, because its keys would have to be read (0.12 s for this many)."""
MINUTE_MS = 60_000
HOUR_MINUTES, DAY_MINUTES = 60, 24 * 60
SHOWN_BARS = 30
"""Sixty would be wider than the column that Dagster gives them."""
PLOTTED_MINUTES = 10
"""About as long as there is between two materializations of a driver that keeps committing."""
BARS = "▁▂▃▄▅▆▇█"
NO_READING = "·"


def commit_metadata(newest: CommitRecord) -> dict[str, Any]:
    """Which commit it is; the same for all assets of the application."""
    return {
        "generation": newest.generation,
        "epoch": newest.epoch,
        "committed_at": {"raw_value": newest.at_ms / 1000, "type": "timestamp"},
    }


def ingest_metadata(newest: CommitRecord, topics: Iterable[str]) -> dict[str, Any]:
    """How far the ingest has read, and what it has counted since the application was first started."""
    totals = committed_totals(newest)
    expectations = {name: asdict(counts) for name, counts in expectation_counts(totals).items()}
    return {
        **commit_metadata(newest),
        **offsets_metadata(committed_positions(newest, topics)),
        **{f"total_{name}": count for name, count in other_counts(totals).items()},
        **({"expectations": {"raw_value": expectations, "type": "json"}} if expectations else {}),
    }


def health_metadata(settings: Settings, application: str) -> dict[str, Any]:
    """Of this moment, not of a commit: the pace, and what is in quarantine."""
    return {**_pace(settings, application), **quarantine_metadata(quarantine_status(settings, application))}


def _pace(settings: Settings, application: str) -> dict[str, Any]:
    """How the driver did since the materialization before, as numbers, of which Dagster makes plots, and its last hour
    and day; empty without a control database. The lag as of now is in the check ``lag``."""
    try:
        database = ControlDatabase(settings.control_database_url)
        status, of_hour = database.application_status(application), database.last_hour(application)
        of_day = database.last_day(application)
    except ControlDatabaseError:
        return {}
    return {
        **_plotted(status, of_hour),
        "last_hour": {"raw_value": pace_markdown(of_hour, "hour", HOUR_MINUTES), "type": "md"},
        "last_day": {"raw_value": pace_markdown(of_day, "day", DAY_MINUTES), "type": "md"},
    }


def _plotted(status: ApplicationStatus | None, minutes: Sequence[MinuteRow]) -> dict[str, float | int]:
    if status is None or status.metric is None:
        return {}
    recent = [row for row in minutes if row.at_ms > minutes[-1].at_ms - PLOTTED_MINUTES * MINUTE_MS]
    return {
        "commit_ms": round(status.metric.commit_ms, 1),
        **({} if status.metric.state_bytes is None else {"state_bytes": status.metric.state_bytes}),
        **(
            {
                "records_per_s": round(sum(row.records_per_s for row in recent) / len(recent), 1),
                "greatest_lag_records": max(row.lag for row in recent),
            }
            if recent
            else {}
        ),
    }


def quarantine_metadata(found: QuarantineStatus) -> dict[str, Any]:
    """How many folders are in quarantine on this host, their size on disk, since when and where."""
    counts = {"quarantine_folders": found.folders, "quarantine_bytes": found.size_bytes}
    if found.oldest_at is None:
        return counts
    return {
        **counts,
        "quarantine_oldest_at": {"raw_value": found.oldest_at.timestamp(), "type": "timestamp"},
        "quarantine_path": {"raw_value": found.path, "type": "path"},
    }


def offsets_metadata(offsets: Any) -> dict[str, Any]:
    """The next offsets to read, as one JSON value."""
    return {"offsets": {"raw_value": offsets, "type": "json"}}


def table_data_version(newest: CommitRecord, table: str) -> str:
    """Changes only with commits that wrote rows of the table, so that only those refresh what is downstream."""
    return str(newest.table_versions.get(table, 0))


def table_metadata(settings: Settings, newest: CommitRecord, application: str, table: str) -> dict[str, Any]:
    """Where a table is and, if that is quick to count, how many rows it holds; of an outbox, how its sink is doing."""
    if (sink := sink_of(table)) is not None:
        return {**commit_metadata(newest), **sink_metadata(settings, application, sink)}
    folder = folder_at(settings.warehouse) / application / shown_name(table)
    rows = count_rows(folder, read_at_most=COUNTED_ROWS_MAX)
    return {
        **commit_metadata(newest),
        "dagster/uri": {"raw_value": str(folder), "type": "path"},
        **({} if rows is None else {"dagster/row_count": rows}),
    }


def sink_metadata(settings: Settings, application: str, sink: str) -> dict[str, Any]:
    """How a sink is doing, as the driver last reported; empty without a control database."""
    try:
        found = next((state for state in sinks_of(settings, application) if state.sink == sink), None)
    except (ControlDatabaseError, OperationError):
        return {}
    if found is None:
        return {}
    return {
        "target": found.target,
        "published_epoch": found.epoch,
        "waiting_rows": found.waiting_rows,
        "waiting_bytes": found.waiting_bytes,
        "waiting_s": round(found.lag_s(time.time()), 1),
        "refused_rows": found.refused_rows,
        **({"refused": "\n".join(map(str, found.refused))} if found.refused else {}),
        "state": in_dagster(found.summary, application),
    }


def bars(values: Sequence[float | None]) -> str:
    """One character per value, scaled from zero to the greatest; ``·`` where there is no reading."""
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(
        NO_READING if value is None else BARS[round(value / top * (len(BARS) - 1)) if top > 0 else 0]
        for value in values
    )


def pace_markdown(minutes: Sequence[MinuteRow], span: str, span_minutes: int) -> str:
    """Pace, lag, commit time and size of the state over the ``span`` that ends with the newest reading, as one line of
    ``SHOWN_BARS`` bars each, as far as there are readings; one sentence if there are none."""
    if not minutes:
        return f"no reading in the last {span}"
    by_minute = {row.at_ms // MINUTE_MS: row for row in minutes}
    newest, per_bar = max(by_minute), span_minutes // SHOWN_BARS
    rows = [by_minute.get(minute) for minute in range(newest - span_minutes + 1, newest + 1)]
    lines = [f"| | newest minute | greatest | the {span} |", "| --- | ---: | ---: | --- |"]
    for title, column, unit in (
        ("records/s", "records_per_s", 1),
        ("lag, records", "lag", 1),
        ("commit, ms", "commit_ms", 1),
        ("state, MiB", "state_bytes", 1 << 20),
    ):
        readings = [None if row is None else getattr(row, column) for row in rows]
        values = [None if value is None else value / unit for value in readings]
        if not (known := [value for value in values if value is not None]):
            continue
        means = [_mean(values[start : start + per_bar]) for start in range(0, span_minutes, per_bar)]
        lines.append(f"| {title} | {known[-1]:,.0f} | {max(known):,.0f} | `{bars(means)}` |")
    return "\n".join(lines)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
