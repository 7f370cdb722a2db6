"""Makes backfills and swaps them in.

What a backfill is and how it is swapped in belongs to ``weir.pipelines.backfill``, its driver to
``weir.pipelines.spark.backfill``; ``backfills`` lists and discards backfills.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from threading import Event

from weir.infra.control import ControlDatabase, ControlDatabaseError
from weir.infra.control.rows import AT_REST
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.application import Application
from weir.pipelines.backfill.begin import begin_everything, begin_from_files, begin_from_kafka
from weir.pipelines.backfill.differences import MAX_CHANGE, Review, TableDifference, accept, require_small
from weir.pipelines.backfill.everything import commit_of, is_behind, require_all_arrived, swap_everything
from weir.pipelines.backfill.files import TIME_COLUMN
from weir.pipelines.backfill.ranges import committed, whole_ranges
from weir.pipelines.backfill.shadow import EVERYTHING, Completion, Days, Shadow
from weir.pipelines.backfill.swap import prepare, swap_at_rest
from weir.pipelines.operations.at_rest import at_rest
from weir.pipelines.operations.backfills import backfills
from weir.pipelines.operations.control import ask
from weir.pipelines.operations.errors import OperationError, says_what_to_do
from weir.pipelines.operations.log_files import log_file, logging_to
from weir.pipelines.operations.registry import load_reference, registered_reference
from weir.pipelines.operations.signals import stop_on_signals
from weir.pipelines.spark.backfill import run_shadow
from weir.pipelines.spark.errors import PartitionCountError
from weir.pipelines.spark.progress import Progress
from weir.pipelines.spark.runner import has_room, starting_report, waiting_for_disk
from weir.state.commit.log import newest_commit
from weir.state.engine.environment import FREE_DISK_RESERVE_BYTES
from weir.state.errors import SwapRefusedError
from weir.state.full_disk import telling
from weir.state.storage.places import disks, folder_at

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BackfillInput:
    """What a backfill reads."""

    paths: Mapping[str, str] = field(default_factory=dict)
    """Delta tables or Parquet files by topic; empty to read the topics themselves."""
    time_column: str = TIME_COLUMN
    margin_ms: int | None = None
    """How long before the first day to start reading; by default, what the windows need."""


def make_backfill(
    settings: Settings,
    reference: str,
    days: Days,
    source: BackfillInput,
    *,
    passes_wall_clock: bool = False,
    owner: str,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    console: logging.Handler | None = None,
) -> tuple[Shadow, Completion] | None:
    """Backfill ``days``, or ``EVERYTHING``, of the application at ``module:attribute``, in this process; None if a
    signal ended it. ``passes_wall_clock`` says whether what processors do by the wall clock is due.

    It begins once there is room for it. However it ends, an incomplete backfill is removed, except after a kill -9:
    then ``discard`` removes it. Main thread only; raises what ``weir.pipelines.backfill.begin`` and ``run_shadow``
    raise.
    """
    warehouse, state_dir = folder_at(settings.warehouse), settings.state_dir
    application = load_reference(reference)
    application = application.over(newest_commit(warehouse, application.id))
    needs_broker = not source.paths or bool(application.topology.global_tables)
    surroundings = _surroundings(settings, application.id, console, needs_broker=needs_broker)
    folders = [settings.dir, *disks(warehouse)]
    room = telling("the backfill", folders, FREE_DISK_RESERVE_BYTES)

    def say(message: str) -> None:
        on_progress(starting_report(application, message))

    with room, surroundings as (stop, bootstrap_servers, settings):
        if not has_room(folders, "the backfill", waiting_for_disk(say, stop)):
            return None
        cluster = KafkaAdmin(bootstrap_servers, settings.kafka) if needs_broker else None
        if cluster is None or source.paths:
            shadow = begin_from_files(
                application,
                warehouse,
                state_dir,
                cluster,
                source.paths,
                days,
                time_column=source.time_column,
                margin_ms=source.margin_ms,
                passes_wall_clock=passes_wall_clock,
            )
        elif days == EVERYTHING:
            shadow = begin_everything(
                application,
                warehouse,
                state_dir,
                cluster,
                passes_wall_clock=passes_wall_clock,
            )
        else:
            shadow = begin_from_kafka(
                application,
                warehouse,
                state_dir,
                cluster,
                days,
                margin_ms=source.margin_ms,
                passes_wall_clock=passes_wall_clock,
            )
        completion = None
        try:
            completion = run_shadow(
                reference,
                settings,
                shadow,
                bootstrap_servers=bootstrap_servers,
                owner=owner,
                stop=stop,
                on_progress=on_progress,
            )
        except Exception as error:
            stack = None if says_what_to_do(error) else error
            logger.info("backfill %s of %s ended with an error: %s", shadow.id, application.id, error, exc_info=stack)
            raise
        finally:
            if completion is None:
                shadow.remove()
            _forget(settings, shadow)
    return None if completion is None else (shadow, completion)


def swap_in(
    settings: Settings,
    reference: str,
    backfill: str,
    *,
    by: str | None = None,
    reason: str,
    max_change: float | None = MAX_CHANGE,
    publish: bool = False,
    on_count: Review = accept,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    console: logging.Handler | None = None,
) -> str:
    """Swap in a complete backfill of the application at ``module:attribute``; returns what was done, as a sentence.

    Days are swapped in by the application's driver if one runs. A backfill of everything needs the application at rest,
    and first catches up with it: in this process, main thread only, with ``on_progress`` and ``console``. ``on_count``
    gets what the swap will change before it is made, or refused. ``publish`` gives its rows to sinks outside the
    warehouse too.

    Raises:
        LargeChangeError: It would remove or change more than ``max_change`` of a table's rows; with None it may.
        OperationError: The driver did not answer, could not do it, or is running when it must not.
        UnknownBackfillError, SwapRefusedError: It cannot be swapped in.
        LeaseHeldError: A driver has just started; try again.
    """
    program = load_reference(reference)
    program = program.over(newest_commit(folder_at(settings.warehouse), program.id))
    application = program.id
    done = [row for row in backfills(settings, application) if row.id == backfill and row.state == "swapped in"]
    if done:
        return f"swapped in already, by the commit of epoch {done[0].epoch}"
    shadow = Shadow.of(folder_at(settings.warehouse), settings.state_dir, application, backfill)
    database = ControlDatabase(settings.control_database_url)

    def review(differences: Sequence[TableDifference]) -> None:
        on_count(differences)
        if max_change is not None:
            require_small(shadow, differences, max_change, _as_given(settings, application, reference))

    if shadow.backfill.days == EVERYTHING:
        status = database.application_status(application)
        if status is not None and status.is_running:
            if status.owner == AT_REST:
                raise OperationError(
                    f"process {status.pid} is working on {application} while it is at rest, for example swapping; try "
                    "again when it has ended"
                )
            raise OperationError(
                f"{application} is running, but stores are swapped while it is stopped; run `weir stop {application} "
                f"--drain`, swap {backfill} in again, then start the application again"
            )
        _catch_up(
            settings, reference, program, shadow, owner=by or "weir backfill", on_progress=on_progress, console=console
        )
        with at_rest(database, application), telling("the swap", disks(folder_at(settings.warehouse))):
            epoch = swap_everything(folder_at(settings.warehouse), program, shadow, review=review, publish=publish)
        return f"swapped in by the commit of epoch {epoch}; its tasks restore their stores at the next start"
    with telling("the swap", disks(folder_at(settings.warehouse))):
        prepared = prepare(shadow, review=review, publish=publish)
    if database.is_running(application):
        return ask(settings, application, "swap", {"backfill": backfill}, by=by, reason=reason)
    with at_rest(database, application), telling("the swap", disks(folder_at(settings.warehouse))):
        epoch = swap_at_rest(folder_at(settings.warehouse), program, backfill)
    return f"swapped in by the commit of epoch {epoch}: {prepared}"


def _as_given(settings: Settings, application: str, reference: str) -> str:
    """What names this program on the command line: the application's id if it is the program that ran last."""
    with suppress(OperationError):
        if registered_reference(settings, application) == reference:
            return application
    return reference


def _catch_up(
    settings: Settings,
    reference: str,
    program: Application,
    shadow: Shadow,
    *,
    owner: str,
    on_progress: Callable[[Progress], None],
    console: logging.Handler | None,
) -> None:
    """Let a complete backfill of everything catch up with what the application has read since.

    Raises:
        UnknownBackfillError, SwapRefusedError: It is incomplete, or of another program, or rows are under way.
        OperationError: A signal ended it.
    """
    live = committed(program, newest_commit(folder_at(settings.warehouse), program.id))
    require_all_arrived(program, shadow, live)
    if not is_behind(program, live, commit_of(program, shadow)):
        return
    with _surroundings(settings, program.id, console) as (stop, bootstrap_servers, settings):
        ranges = whole_ranges(program, KafkaAdmin(bootstrap_servers, settings.kafka), live)
        try:
            completion = run_shadow(
                reference,
                settings,
                shadow,
                bootstrap_servers=bootstrap_servers,
                owner=owner,
                stop=stop,
                ranges=ranges,
                on_progress=on_progress,
            )
        except PartitionCountError as error:
            raise SwapRefusedError(
                program.id,
                shadow.id,
                "a topic's partition count has changed since the backfill began "
                f"({error.topics}); discard it and run the backfill again",
            ) from None
        finally:
            _forget(settings, shadow)
    if completion is None:
        raise OperationError(
            f"backfill {shadow.id} was stopped while it was catching up, and nothing was swapped in; swap it in "
            "again to continue from there"
        )


@contextmanager
def _surroundings(
    settings: Settings, application: str, console: logging.Handler | None, *, needs_broker: bool = True
) -> Iterator[tuple[Event, str, Settings]]:
    """What a shadow's driver needs: its log, an event that signals set, and what ``broker_for`` yields."""
    with (
        logging_to(log_file(settings.logs, f"{application}-backfills"), console=console),
        stop_on_signals() as stop,
        broker_for(settings) if needs_broker else nullcontext(("", settings)) as (bootstrap_servers, settings),
    ):
        yield stop, bootstrap_servers, settings


def _forget(settings: Settings, shadow: Shadow) -> None:
    """Drop what the control database knows about a shadow's driver that has ended."""
    with suppress(ControlDatabaseError):
        ControlDatabase(settings.control_database_url).forget(shadow.lease_name)
