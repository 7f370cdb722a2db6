"""A supervised backfill (``python -m weir.orchestration.drivers.backfill``): recomputes days or everything, swaps the
result in, and reports to Dagster through Pipes.

A backfill asset or a job starts it. It does not import Dagster, ends with its parent, and on SIGINT or SIGTERM
removes its files.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from dagster_pipes import PipesContext, open_dagster_pipes

from weir.infra.process import close_files, end_with
from weir.infra.settings import Settings
from weir.orchestration.drivers.dagster_run import owner_of, progress_logger
from weir.pipelines.backfill.differences import TableDifference
from weir.pipelines.backfill.shadow import EVERYTHING, Days
from weir.pipelines.operations.backfill import BackfillInput, make_backfill, swap_in
from weir.pipelines.operations.signals import stop_on_signals


def _backfill(pipes: PipesContext) -> dict[str, Any] | None:
    """Make the backfill and, if asked to, swap it in; or swap in one that is there already. Returns what to report, or
    None if a signal ended it."""
    settings, reference = Settings.load(Path(pipes.get_extra("dir"))), pipes.get_extra("reference")
    close_files(settings.umask)
    owner = owner_of(pipes.run_id)
    if (known := pipes.extras.get("backfill")) is not None:
        return {"backfill": known, **_swapped_in(pipes, settings, reference, known, owner, f"backfill {known}")}
    first, end, margin_hours = pipes.get_extra("first"), pipes.get_extra("end"), pipes.get_extra("margin_hours")
    days = EVERYTHING if first is None else Days(first=date.fromisoformat(first), end=date.fromisoformat(end))
    source = BackfillInput(
        paths=pipes.get_extra("paths"),
        time_column=pipes.get_extra("time_column"),
        margin_ms=None if margin_hours is None else round(margin_hours * 3_600_000),
    )
    made = make_backfill(
        settings,
        reference,
        days,
        source,
        passes_wall_clock=pipes.get_extra("wall_clock"),
        owner=owner,
        on_progress=progress_logger(pipes.log.info),
        console=logging.StreamHandler(),
    )
    if made is None:
        return None
    shadow, completion = made
    metadata: dict[str, Any] = {
        "backfill": shadow.id,
        "days": str(days),
        "records_in": completion.records_in,
        "seconds": round(completion.seconds, 3),
        "cut_epoch": shadow.backfill.cut_epoch,
        "left_out": {"raw_value": dict(shadow.backfill.left_out), "type": "json"},
    }
    if shadow.backfill.global_note:
        metadata["global_tables"] = shadow.backfill.global_note
    if pipes.get_extra("swap"):
        metadata |= _swapped_in(pipes, settings, reference, shadow.id, owner, f"backfill of {days}")
    return metadata


def _swapped_in(
    pipes: PipesContext, settings: Settings, reference: str, backfill: str, owner: str, reason: str
) -> dict[str, Any]:
    """Swap it in; returns what to report of it."""
    metadata: dict[str, Any] = {}

    def counted(differences: Sequence[TableDifference]) -> None:
        for each in differences:
            pipes.log.info(str(each))
        metadata["differences"] = {"raw_value": [asdict(each) for each in differences], "type": "json"}

    with stop_on_signals():  # a signal comes too late now
        metadata["swap"] = swap_in(
            settings,
            reference,
            backfill,
            by=owner,
            reason=reason,
            max_change=pipes.get_extra("max_change"),
            publish=pipes.get_extra("publish"),
            on_count=counted,
            on_progress=progress_logger(pipes.log.info),
            console=logging.StreamHandler(),
        )
    pipes.log.info(metadata["swap"])
    return metadata


def main() -> int:
    """Leaves a closing record: how it ended, or the error that ended it in one sentence. Returns the exit code."""
    with open_dagster_pipes() as pipes:
        if not end_with(pipes.get_extra("parent"), signal.SIGTERM):
            pipes.log.error("the Dagster step that started this backfill has ended; start it again")
            return 1
        sys.path[:0] = pipes.get_extra("import_from")
        try:
            metadata = _backfill(pipes)
        except Exception as error:
            pipes.report_custom_message({"error": str(error) or type(error).__name__})
            return 0
        if metadata is None:
            pipes.report_custom_message({"error": "the backfill was stopped; its files were removed"})
        elif pipes.is_asset_step:
            pipes.report_asset_materialization(metadata=metadata)
            pipes.report_custom_message({"ended": "complete"})
        else:
            pipes.report_custom_message({"ended": "complete", "metadata": metadata})
    return 0


if __name__ == "__main__":
    sys.exit(main())
