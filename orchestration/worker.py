"""A supervised driver (``python -m orchestration.worker``): runs one application and reports to Dagster by Pipes.

Started by an ingest asset. It imports neither Dagster nor its definitions, ends with its parent, and on SIGINT or
SIGTERM finishes the epoch, commits, and still reports what the run left.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_pipes import PipesContext, open_dagster_pipes

from infra.process import end_with
from infra.settings import Settings
from pipelines.cli.drive import drive
from pipelines.cli.positions import committed_positions
from pipelines.cli.registry import load_reference
from state.commit.protocol import newest_commit
from state.commit.tables import read_table

if TYPE_CHECKING:
    from pipelines.spark.runner import Progress, RunSummary

LOG_EVERY_S = 60.0


def _report(pipes: PipesContext, settings: Settings, summary: RunSummary) -> None:
    """One materialization of the ingest and one of each output table that is there."""
    commit: dict[str, Any] = {"generation": summary.generation, "epoch": summary.epoch}
    topics = load_reference(pipes.get_extra("reference")).topology.topics()
    offsets = committed_positions(newest_commit(settings.warehouse, summary.application), topics)
    pipes.report_asset_materialization(asset_key=pipes.get_extra("ingest"), metadata={
        **commit, "ended": summary.reason, "records_in": summary.records_in, "commits": summary.commits,
        "seconds": round(summary.seconds, 3), "offsets": {"raw_value": offsets, "type": "json"},
        **{f"total_{name}": count for name, count in summary.totals.items()}})
    for table, asset_key in pipes.get_extra("tables").items():
        folder = settings.warehouse / summary.application / table
        if not folder.exists():  # the run was ended before its first claim
            continue
        pipes.report_asset_materialization(asset_key=asset_key, metadata={
            **commit, "dagster/row_count": read_table(folder).height,
            "dagster/uri": {"raw_value": str(folder), "type": "path"}})


def _logged(pipes: PipesContext) -> Any:
    """An ``on_progress`` that writes one line a minute to the run's log."""
    last = [0.0]

    def on_progress(progress: Progress) -> None:
        if time.monotonic() - last[0] >= LOG_EVERY_S:
            last[0] = time.monotonic()
            pipes.log.info("%s: epoch %d, %d records so far, %d waiting, %.0f records/s %s", progress.state,
                           progress.epoch, progress.records_in, progress.lag, progress.records_per_s,
                           progress.message)

    return on_progress


def main() -> int:
    """Returns the exit code; an error is one sentence in the run's log."""
    with open_dagster_pipes() as pipes:
        if not end_with(pipes.get_extra("parent"), signal.SIGTERM):
            pipes.log.error("the Dagster step that started this driver has ended; start it again")
            return 1
        settings = Settings.load(Path(pipes.get_extra("dir")))
        try:
            summary = drive(pipes.get_extra("reference"), settings, on_progress=_logged(pipes),
                            until_caught_up=pipes.get_extra("until_caught_up"),
                            take_over=pipes.get_extra("take_over"),
                            owner=f"dagster run {pipes.run_id}", console=logging.StreamHandler())
        except Exception as error:
            pipes.log.error("%s", error)
            return 1
        _report(pipes, settings, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
