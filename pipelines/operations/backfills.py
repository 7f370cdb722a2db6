"""Lists and discards an application's backfills; ``backfill`` makes them and swaps them in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.backfill.errors import UnknownBackfillError
from weir.pipelines.backfill.shadow import Days, Shadow, shadows
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.state.commit.log import newest_commit
from weir.state.storage.places import folder_at


@dataclass(frozen=True, kw_only=True)
class BackfillRow:
    """One backfill, as a list shows it."""

    id: str
    days: str
    source: str
    """``Kafka``, or the files; empty once swapped in."""
    state: Literal["running", "interrupted", "complete", "swapped in"]
    records_in: int | None
    """Records read; for a running backfill, so far."""
    at_ms: int | None
    """When it began; None once swapped in."""
    epoch: int
    """The epoch of the cut, or of the commit that swapped it in."""


def backfills(settings: Settings, application: str) -> Iterator[BackfillRow]:
    """The backfills that exist, then the most recent that were swapped in.

    Raises:
        OperationError: The folder does not know the application.
    """
    database = ControlDatabase(settings.control_database_url)
    newest = newest_commit(folder_at(settings.warehouse), require(settings, application))
    notes = newest.swapped if newest else ()
    for shadow in shadows(folder_at(settings.warehouse), settings.state_dir, application):
        if shadow.id in {note.backfill for note in notes}:
            continue
        try:
            backfill, completion = shadow.backfill, shadow.completion
        except UnknownBackfillError:  # just removed
            continue
        state: Literal["running", "interrupted", "complete"] = "complete"
        records_in = completion.records_in if completion else None
        if completion is None:
            life = database.application_status(shadow.lease_name)
            state = "running" if life is not None and life.is_running else "interrupted"
            records_in = life.metric.records_in if life is not None and life.metric else None
        yield BackfillRow(
            id=shadow.id,
            days=str(backfill.days),
            source=backfill.source,
            state=state,
            records_in=records_in,
            at_ms=backfill.at_ms,
            epoch=backfill.cut_epoch,
        )
    for note in reversed(notes):
        yield BackfillRow(
            id=note.backfill,
            days=str(Days.of_ms(note.start_ms, note.end_ms)),
            source="",
            state="swapped in",
            records_in=None,
            at_ms=None,
            epoch=note.epoch,
        )


def discard(settings: Settings, application: str, backfill: str) -> None:
    """Remove a backfill that is not running.

    Raises:
        UnknownBackfillError: No backfill has that id.
        OperationError: It is running, or swapped in.
    """
    warehouse = folder_at(settings.warehouse)
    shadow = Shadow.of(warehouse, settings.state_dir, require(settings, application), backfill)
    try:
        found = shadow.backfill
    except UnknownBackfillError:
        newest = newest_commit(warehouse, application)
        for note in newest.swapped if newest else ():
            if note.backfill == backfill:
                raise OperationError(
                    f"backfill {backfill} of {application} was swapped in by the commit of epoch {note.epoch}; "
                    "nothing of it is left to discard"
                ) from None
        raise
    if found.id != backfill:  # a path that leads elsewhere
        raise UnknownBackfillError(application, backfill, "does not exist, or was discarded")
    database = ControlDatabase(settings.control_database_url)
    if database.is_running(shadow.lease_name):
        raise OperationError(
            f"backfill {backfill} of {application} is running; stop it with Ctrl-C, or terminate its "
            "Dagster run, and its files are removed"
        )
    shadow.remove()
    database.forget(shadow.lease_name)


def discard_abandoned(settings: Settings, application: str) -> list[str]:
    """Remove the backfills that were interrupted and have been idle for a day; returns their ids."""
    database = ControlDatabase(settings.control_database_url)
    found = [
        shadow
        for shadow in shadows(folder_at(settings.warehouse), settings.state_dir, application)
        if shadow.is_abandoned and not database.is_running(shadow.lease_name)
    ]
    for shadow in found:
        shadow.remove()
        database.forget(shadow.lease_name)
    return [shadow.id for shadow in found]
