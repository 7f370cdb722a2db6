"""A supervised driver (``python -m weir.orchestration.drivers.ingest``): runs one application and reports to Dagster
through Pipes.

An ingest asset starts it. It imports neither Dagster nor its definitions and ends with its parent. On SIGINT or
SIGTERM it finishes the epoch, commits, and still reports what the run left.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_pipes import PipesContext, open_dagster_pipes

from weir.infra.process import close_files, end_with
from weir.infra.settings import Settings
from weir.orchestration.drivers.dagster_run import owner_of, progress_logger
from weir.orchestration.drivers.metadata import health_metadata, ingest_metadata, table_data_version, table_metadata
from weir.pipelines.operations.drive import drive
from weir.pipelines.operations.registry import load_reference
from weir.pipelines.topology.naming import stored_table
from weir.state.commit.protocol import newest_commit
from weir.state.storage.places import folder_at

if TYPE_CHECKING:
    from weir.pipelines.spark.progress import RunSummary


def _materializations(pipes: PipesContext, settings: Settings, summary: RunSummary) -> list[dict[str, Any]]:
    """One of the ingest and one of each table, in this order; empty if nothing was ever committed.

    Pipes itself takes none of an asset that the run does not select.
    """
    newest = newest_commit(folder_at(settings.warehouse), summary.application)
    if newest is None:
        return []
    topology = load_reference(pipes.get_extra("reference")).over(newest).topology
    of_ingest = {
        **health_metadata(settings, summary.application),
        **ingest_metadata(newest, topology.topics()),
        "ended": summary.reason,
        "records_in": summary.records_in,
        "commits": summary.commits,
        "seconds": round(summary.seconds, 3),
    }
    reports = [{"asset": pipes.get_extra("ingest"), "metadata": of_ingest}]
    for of_program, asset in pipes.get_extra("tables").items():
        table = stored_table(of_program, topology.names)
        reports.append(
            {
                "asset": asset,
                "metadata": table_metadata(settings, newest, summary.application, table),
                "data_version": table_data_version(newest, table),
            }
        )
    return reports


def main() -> int:
    """Leaves a closing record: how the run ended and what to show of it, or the error that ended it in one sentence.
    Returns the exit code, which nobody relies on: whoever started the driver reads that record."""
    with open_dagster_pipes() as pipes:
        parent = pipes.get_extra("parent")
        if not end_with(parent, signal.SIGTERM):
            pipes.log.error("the Dagster step that started this driver has ended; start it again")
            return 1
        sys.path[:0] = pipes.get_extra("import_from")
        try:
            settings = Settings.load(Path(pipes.get_extra("dir")))
            close_files(settings.umask)
            summary = drive(
                pipes.get_extra("reference"),
                settings,
                on_progress=progress_logger(pipes.log.info),
                until_caught_up=pipes.get_extra("until_caught_up"),
                take_over=pipes.get_extra("take_over"),
                accept_state_loss=pipes.get_extra("accept_state_loss"),
                accept_lost_records=pipes.get_extra("accept_lost_records"),
                committed_partitions=pipes.get_extra("committed_partitions"),
                owner=owner_of(pipes.run_id),
                console=logging.StreamHandler(),
            )
        except Exception as error:
            pipes.report_custom_message({"error": str(error) or type(error).__name__})
            return 0
        if os.getppid() == parent:
            materializations = _materializations(pipes, settings, summary)
            pipes.report_custom_message({"ended": summary.reason, "materializations": materializations})
    gc.freeze()  # or the interpreter's end looks through all that was imported, 0.6 s of CPU for which the step waits
    return 0


if __name__ == "__main__":
    sys.exit(main())
