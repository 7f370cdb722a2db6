"""Makes, swaps in and lists backfills, whoever asks: the command line or a Dagster run.

What a backfill is and how it is swapped in is ``pipelines.backfill``, its driver ``pipelines.spark.backfill``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from infra.control import ControlDatabase, ControlDatabaseError, this_host
from infra.control.rows import AT_REST
from infra.settings import Settings
from pipelines.application import Application
from pipelines.backfill.begin import begin_from_files, begin_from_kafka
from pipelines.backfill.errors import UnknownBackfillError
from pipelines.backfill.files import TIME_COLUMN
from pipelines.backfill.shadow import Completion, Days, Shadow, shadows
from pipelines.backfill.swap import prepare, swap_at_rest
from pipelines.cli.control import ask
from pipelines.cli.log_files import log_file, logging_to
from pipelines.cli.options import CommandError
from pipelines.cli.registry import load_reference, require

if TYPE_CHECKING:
    from pipelines.spark.runner import Progress

LEASE_TTL_S = 600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackfillRow:
    """One backfill, for people."""

    id: str
    days: str
    source: str
    """``Kafka``, or the files; empty for one that is swapped in."""
    state: Literal["running", "broken off", "complete", "swapped in"]
    records_in: int | None
    """So far, for one that runs."""
    at_ms: int | None
    """When it began; None for one that is swapped in."""
    epoch: int
    """The cut's, or that of the commit that swapped it in."""


@dataclass(frozen=True, kw_only=True)
class BackfillInput:
    """What a backfill reads."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """Delta tables or Parquet files by topic; none to read the topics themselves."""
    time_column: str = TIME_COLUMN
    margin_ms: int | None = None
    """How long before the first day to begin; what the windows need when left out."""


def make_backfill(settings: Settings, reference: str, days: Days, source: BackfillInput, *, owner: str,
                  on_progress: Callable[[Progress], None] = lambda progress: None,
                  console: logging.Handler | None = None) -> tuple[Shadow, Completion] | None:
    """Backfill ``days`` of the application at ``module:attribute``, in this process; None when a signal ended it.

    Whatever ends it, a backfill that is not complete leaves nothing, except after a kill -9: then ``discard`` does it.
    Main thread only; raises what ``begin_from_kafka``, ``begin_from_files`` and ``run_shadow`` raise.
    """
    from infra.kafka.admin import KafkaAdmin
    from infra.kafka.broker import broker_for
    from pipelines.cli.drive import stop_on_signals

    application = load_reference(reference)
    with (logging_to(log_file(settings.logs, f"{application.id}-backfills"), console=console),
          stop_on_signals() as stop, nullcontext("") if source.paths else broker_for(settings) as bootstrap_servers):
        from pipelines.spark.backfill import run_shadow

        if source.paths:
            shadow = begin_from_files(application, settings.warehouse, settings.state_dir, source.paths, days,
                                      time_column=source.time_column, margin_ms=source.margin_ms)
        else:
            shadow = begin_from_kafka(application, settings.warehouse, settings.state_dir,
                                      KafkaAdmin(bootstrap_servers, settings.kafka), days, margin_ms=source.margin_ms)
        completion = None
        try:
            completion = run_shadow(reference, settings, shadow, bootstrap_servers=bootstrap_servers, owner=owner,
                                    stop=stop, on_progress=on_progress)
        except Exception:
            logger.info("backfill %s of %s ended with an error", shadow.id, application.id, exc_info=True)
            raise
        finally:
            if completion is None:
                shadow.remove()
            with suppress(ControlDatabaseError):  # what it has of the shadow's driver is of no use any more
                ControlDatabase(settings.control_database_url).forget(shadow.lease_name)
    return None if completion is None else (shadow, completion)


def swap_in(settings: Settings, program: Application, backfill: str, *, by: str | None = None,
            reason: str = "command line") -> str:
    """Swap a complete backfill in, by the application's driver if one runs; returns what was done, for people.

    Raises:
        CommandError: The driver did not answer, or could not do it.
        UnknownBackfillError, SwapRefusedError: It cannot be swapped in.
        LeaseHeldError: A driver was started at this moment; try again.
    """
    application = program.id
    done = [row for row in backfills(settings, application) if row.id == backfill and row.state == "swapped in"]
    if done:
        return f"swapped in already, by the commit of epoch {done[0].epoch}"
    prepared = prepare(Shadow.of(settings.warehouse, settings.state_dir, application, backfill))
    database = ControlDatabase(settings.control_database_url)
    if database.is_running(application):
        return ask(settings, application, "swap", {"backfill": backfill}, by=by, reason=reason)
    lease = database.acquire_lease(application, owner=AT_REST, pid=os.getpid(), host=this_host(),
                                   ttl_s=LEASE_TTL_S)
    try:
        epoch = swap_at_rest(settings.warehouse, program, backfill)
    finally:
        database.release(lease)
    return f"swapped in by the commit of epoch {epoch}: {prepared}"


def backfills(settings: Settings, application: str) -> Iterator[BackfillRow]:
    """Those that are there, then the newest that were swapped in.

    Raises:
        CommandError: The folder does not know the application.
    """
    from state.commit.protocol import newest_commit

    database = ControlDatabase(settings.control_database_url)
    newest = newest_commit(settings.warehouse, require(settings, application))
    notes = newest.swapped if newest else ()
    for shadow in shadows(settings.warehouse, settings.state_dir, application):
        if shadow.id in {note.backfill for note in notes}:
            continue
        try:
            backfill, completion = shadow.backfill, shadow.completion
        except UnknownBackfillError:  # removed meanwhile
            continue
        state: Literal["running", "broken off", "complete"] = "complete"
        records_in = completion.records_in if completion else None
        if completion is None:
            life = database.application_status(shadow.lease_name)
            state = "running" if life is not None and life.is_running else "broken off"
            records_in = life.metric.records_in if life is not None and life.metric else None
        yield BackfillRow(id=shadow.id, days=str(backfill.days), source=backfill.source, state=state,
                          records_in=records_in, at_ms=backfill.at_ms, epoch=backfill.cut_epoch)
    for note in reversed(notes):
        yield BackfillRow(id=note.backfill, days=str(Days.of_ms(note.start_ms, note.end_ms)), source="",
                          state="swapped in", records_in=None, at_ms=None, epoch=note.epoch)


def discard(settings: Settings, application: str, backfill: str) -> None:
    """Remove a backfill that is not running.

    Raises:
        UnknownBackfillError: There is none of that id.
        CommandError: It is running.
    """
    shadow = Shadow.of(settings.warehouse, settings.state_dir, require(settings, application), backfill)
    if shadow.backfill.id != backfill:  # a path that leads elsewhere
        raise UnknownBackfillError(application, backfill, "there is none (any more)")
    database = ControlDatabase(settings.control_database_url)
    if database.is_running(shadow.lease_name):
        raise CommandError(f"backfill {backfill} of {application} is running; end it with Ctrl-C, or terminate its "
                           "Dagster run, and nothing of it is left")
    shadow.remove()
    database.forget(shadow.lease_name)


def discard_abandoned(settings: Settings, application: str) -> list[str]:
    """Remove the backfills that broke off and have been still for a day; returns their ids."""
    database = ControlDatabase(settings.control_database_url)
    found = [shadow for shadow in shadows(settings.warehouse, settings.state_dir, application)
             if shadow.is_abandoned and not database.is_running(shadow.lease_name)]
    for shadow in found:
        shadow.remove()
        database.forget(shadow.lease_name)
    return [shadow.id for shadow in found]
