"""How a driver is tied to the Dagster run that started it: by the owner of its lease, and by lines in the run's log."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weir.pipelines.spark.progress import Progress

OWNER = "dagster run "
LOG_EVERY_S = 300.0
"""While nothing changes; Dagster keeps every line of a run in its database."""


def owner_of(run_id: str) -> str:
    """The owner of the lease, as a driver that the run started writes it."""
    return f"{OWNER}{run_id}"


def run_of(owner: str) -> str | None:
    """The id of the run; None for a driver that no run started."""
    return owner.removeprefix(OWNER) if owner.startswith(OWNER) else None


def progress_logger(
    log: Callable[[str], None], now_s: Callable[[], float] = time.monotonic
) -> Callable[[Progress], None]:
    """An ``on_progress`` that logs a line when the driver's state or message changes, and otherwise every five minutes.

    It never raises because nobody listens any more: a driver whose run worker was killed still has to commit.
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
