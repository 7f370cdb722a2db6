"""Runs one application in this process, for the command line, the demo or a Dagster worker.

Provides what the runner needs: the broker, the log file, and signals that end the run after the current epoch. The
loop itself is ``weir.pipelines.spark.runner``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.operations.advice import addressed
from weir.pipelines.operations.errors import OperationError, says_what_to_do
from weir.pipelines.operations.log_files import log_file, logging_to, stacks_file, stacks_on_signal
from weir.pipelines.operations.plan import require_results
from weir.pipelines.operations.registry import applications, load_reference, register
from weir.pipelines.operations.signals import stop_on_signals
from weir.pipelines.spark.late_log import LATE_LOG
from weir.pipelines.spark.progress import Progress, RunSummary
from weir.pipelines.spark.runner import run

logger = logging.getLogger(__name__)


def drive(
    reference: str,
    settings: Settings,
    *,
    until_caught_up: bool,
    take_over: bool = False,
    is_standby: bool = False,
    accept_state_loss: bool = False,
    accept_lost_records: bool = False,
    committed_partitions: bool = False,
    owner: str,
    profile: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    console: logging.Handler | None = None,
) -> RunSummary:
    """Run the application at ``module:attribute`` until it has caught up, or until a signal or a stop request.

    It logs to the folder's log file and is recorded in the folder's registry, so that ``weir query`` finds its
    topology: at once if the folder does not know it, otherwise once the start was not refused. ``owner`` is the name
    that the lease shows, ``profile`` the folder for a profile of the run; ``console`` gets the warnings as well. Raises
    what the runner raises, and ``OperationError`` for a program that would leave nothing behind, or
    ``committed_partitions`` without an end.
    """
    if committed_partitions and not until_caught_up:
        raise OperationError("--committed-partitions leaves partitions unread; add --until-caught-up")
    application = load_reference(reference)
    require_results(application)
    is_registered = application.id not in applications(settings)
    if is_registered:
        register(settings, application.id, reference)

    def report(progress: Progress) -> None:
        nonlocal is_registered
        if progress.generation and not is_registered:
            is_registered = True
            register(settings, application.id, reference)
        if on_progress is not None:
            on_progress(progress)

    with (
        logging_to(
            log_file(settings.logs, application.id),
            console=console,
            debug=[LATE_LOG] if settings.metrics_level == "debug" else (),
        ),
        stacks_on_signal(stacks_file(settings.logs, application.id)),
        stop_on_signals() as stop,
        broker_for(settings) as (bootstrap_servers, settings),
    ):
        try:
            return run(
                reference,
                settings,
                bootstrap_servers=bootstrap_servers,
                until_caught_up=until_caught_up,
                take_over=take_over,
                is_standby=is_standby,
                accept_state_loss=accept_state_loss,
                accept_lost_records=accept_lost_records,
                committed_partitions=committed_partitions,
                owner=owner,
                profile=profile,
                stop=stop,
                on_progress=report,
            )
        except Exception as error:  # the caller shows it
            stack = None if says_what_to_do(error) else error
            told = addressed(str(error), settings, reference)
            logger.info("the run of %s ended with an error: %s", application.id, told, exc_info=stack)
            raise
