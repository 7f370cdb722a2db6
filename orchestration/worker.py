"""A supervised driver (``python -m weir.orchestration.worker``): runs one application and reports to Dagster by Pipes.

Started by an ingest asset. It imports neither Dagster nor its definitions, ends with its parent, and on SIGINT or
SIGTERM finishes the epoch, commits, and still reports what the run left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_pipes import PipesContext, open_dagster_pipes

from weir.infra.process import end_with
from weir.infra.settings import Settings
from weir.orchestration.committed import ingest_metadata, pace_metadata, table_data_version, table_metadata
from weir.orchestration.owner import owner_of
from weir.pipelines.operations.drive import drive
from weir.pipelines.operations.registry import load_reference
from weir.state.commit.protocol import newest_commit

if TYPE_CHECKING:
    from weir.pipelines.spark.progress import Progress, RunSummary

LOG_EVERY_S = 300.0
"""While nothing changes; Dagster keeps every line of a run in its database."""


def _report(pipes: PipesContext, settings: Settings, summary: RunSummary) -> None:
    """One materialization of the ingest and one of each table; none where nothing was ever committed."""
    newest = newest_commit(settings.warehouse, summary.application)
    if newest is None:
        return
    topics = load_reference(pipes.get_extra("reference")).topology.topics()
    pipes.report_asset_materialization(
        asset_key=pipes.get_extra("ingest"),
        metadata={
            **pace_metadata(settings, summary.application),
            **ingest_metadata(newest, topics),
            "ended": summary.reason,
            "records_in": summary.records_in,
            "commits": summary.commits,
            "seconds": round(summary.seconds, 3),
        },
    )
    for table, asset_key in pipes.get_extra("tables").items():
        folder = settings.warehouse / summary.application / table
        pipes.report_asset_materialization(
            asset_key=asset_key, metadata=table_metadata(newest, folder), data_version=table_data_version(newest, table)
        )


def logged(log: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> Callable[[Progress], None]:
    """An ``on_progress`` that logs a line when the run's state or its message changes, else every five minutes.

    It never raises for want of a listener: a driver whose run worker was killed has still to commit.
    """
    last: tuple[str, str] | None = None
    last_s = 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal last, last_s
        if (progress.state, progress.message) == last and now_s() - last_s < LOG_EVERY_S:
            return
        last, last_s = (progress.state, progress.message), now_s()
        with contextlib.suppress(OSError):
            pace = f", {progress.records_per_s:,.0f} records/s" if progress.records_per_s else ""
            log(
                f"{progress.state}: epoch {progress.epoch}, {progress.records_in:,} records so far, "
                f"{progress.lag:,} waiting{pace} {progress.message}".rstrip()
            )

    return on_progress


def main() -> int:
    """Leaves a closing record, how the run ended or the error that ended it in one sentence; returns the exit code.

    Whoever started the driver goes by that record, not by the exit code.
    """
    with open_dagster_pipes() as pipes:
        parent = pipes.get_extra("parent")
        if not end_with(parent, signal.SIGTERM):
            pipes.log.error("the Dagster step that started this driver has ended; start it again")
            return 1
        try:
            settings = Settings.load(Path(pipes.get_extra("dir")))
            summary = drive(
                pipes.get_extra("reference"),
                settings,
                on_progress=logged(pipes.log.info),
                until_caught_up=pipes.get_extra("until_caught_up"),
                take_over=pipes.get_extra("take_over"),
                owner=owner_of(pipes.run_id),
                console=logging.StreamHandler(),
            )
        except Exception as error:
            pipes.report_custom_message({"error": str(error) or type(error).__name__})
            return 0
        if os.getppid() == parent:
            _report(pipes, settings, summary)
            pipes.report_custom_message({"ended": summary.reason})
    return 0


if __name__ == "__main__":
    sys.exit(main())
