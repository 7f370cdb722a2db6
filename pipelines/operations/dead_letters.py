"""Lists an application's dead letters, has them processed again, and deletes those that are dealt with."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import polars as pl

from weir.infra.control import ControlDatabase
from weir.infra.settings import Settings
from weir.pipelines.operations.control import ANSWER_LIMIT_S, ask
from weir.pipelines.operations.deliveries import discard_undelivered, of_ids, undelivered
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.registry import require
from weir.pipelines.operations.text import counted
from weir.pipelines.tasks.dead_letter_files import DeadLetterFiles
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, REPLAYED
from weir.pipelines.tasks.replay import Replayed
from weir.state.commit.delta_log import replace_files
from weir.state.commit.files import read_files, write_file
from weir.state.commit.tables import file_actions
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, is_table, table_at
from weir.state.types import TableSpec

LOOK_EVERY_S = 0.2
_REPLAYED = msgspec.json.Decoder(Replayed)


@dataclass(frozen=True)
class Outcome:
    """What became of a replay."""

    text: str
    """As a sentence."""
    failed: int
    """How many records failed again; what a sink sends again is not known yet."""

    def __str__(self) -> str:
        return self.text


def dead_letters_of(settings: Settings, application: str) -> DeadLetterFiles:
    """What can be read of them.

    Raises:
        OperationError: The folder does not know the application.
    """
    return DeadLetterFiles(_folder(settings, application))


def dead_letter(settings: Settings, application: str, *ids: str) -> pl.DataFrame:
    """The one with this id, or those with these.

    Raises:
        OperationError: There is none with one of ``ids``, or the folder does not know the application.
    """
    found = dead_letters_of(settings, application).with_ids(ids)
    known = set(found["id"])
    for id in ids:
        if id not in known:
            raise OperationError(
                f"{application} has no dead letter {id!r}; `weir dead-letters list {application}` shows their ids"
            )
    return found


def replay(settings: Settings, application: str, ids: Collection[str] = (), *, by: str | None = None) -> Outcome:
    """Let the running application process the letters with these ids again, or all that wait; returns what became of
    them.

    Each is processed once: one that was processed again already is refused. Sinks send what they have put aside, each
    all of it, in order, if one of its letters is among them. ``by`` is as for ``ask``.

    Raises:
        OperationError: There is none with one of ``ids``, or it was processed again; the application is not running,
            or it does not commit them within a minute.
    """
    aside = undelivered(settings, application)
    others: Collection[str] = ()
    if ids:
        aside = of_ids(aside, ids)
        others = [id for id in ids if id not in set(aside["id"])]
    parts, failed = _replay_records(settings, application, others, by) if others or not ids else ([], 0)
    for sink in aside["operator"].unique(maintain_order=True):
        answer = ask(settings, application, "sink", {"sink": sink, "action": "retry"}, by=by, reason="dead letters")
        parts.append(f"sink {sink}: {answer}")
    return Outcome("; ".join(parts) or "no dead letter waits", failed)


def _replay_records(
    settings: Settings, application: str, ids: Collection[str], by: str | None
) -> tuple[list[str], int]:
    """What became of letters that are records, nothing if none waits; and how many failed again."""
    for id, outcome in dead_letter(settings, application, *ids).select("id", "replayed").iter_rows() if ids else ():
        if outcome is not None:
            raise OperationError(f"the dead letter {id} was replayed: {outcome}")
    arguments = {"ids": msgspec.json.encode(list(ids)).decode()}
    answer = _REPLAYED.decode(ask(settings, application, "replay", arguments, by=by, reason="dead letters"))
    if not (answer.ids or answer.misfits):
        return [], 0
    outcomes = _outcomes(settings, application, answer.ids)
    failed = [outcome for outcome in outcomes if outcome != "processed"]
    parts = [f"{counted(len(outcomes) - len(failed), 'dead letter')} processed"]
    if failed:
        parts.append(f"{len(failed):,} failed again; `weir dead-letters list {application}` shows why")
    parts += [
        f"{count:,} left: the program does not read {topic}, or not with these columns"
        for topic, count in answer.misfits.items()
    ]
    if answer.waiting:
        parts.append(f"{answer.waiting:,} more wait; `weir dead-letters replay {application}` takes the next ones")
    return parts, len(failed)


def _outcomes(settings: Settings, application: str, ids: Sequence[str]) -> list[str]:
    """What became of the letters, once that of each is committed."""
    until = time.monotonic() + ANSWER_LIMIT_S
    database = ControlDatabase(settings.control_database_url)
    while True:
        is_running = database.is_running(application)
        outcomes = list(dead_letters_of(settings, application).outcomes(ids).values())
        if len(outcomes) == len(ids):
            return outcomes
        if not is_running:
            raise OperationError(
                f"{application} ended when {len(outcomes):,} of {len(ids):,} dead letters were replayed; the others "
                "are as before: start it, and ask again"
            )
        if time.monotonic() > until:
            raise OperationError(
                f"{application} has replayed {len(outcomes):,} of {len(ids):,} dead letters so far; "
                f"`weir status {application}` shows how it is doing, and the others follow unless it ends"
            )
        time.sleep(LOOK_EVERY_S)


def discard(settings: Settings, application: str, ids: Collection[str] | None = None) -> int:
    """Delete the dead letters with these ids, or all that are there, those of sinks too; returns how many were deleted.

    Files are replaced in one Delta commit, as a compaction does it, so the driver goes on meanwhile.

    Raises:
        OperationError: There is none with one of ``ids``, or the folder does not know the application.
    """
    aside = undelivered(settings, application)
    if ids is None:
        return discard_undelivered(settings, application, aside) + _discard_records(settings, application, None)
    aside = of_ids(aside, ids)
    others = [id for id in ids if id not in set(aside["id"])]
    if others:
        dead_letter(settings, application, *others)  # all are known before one is deleted
    deleted = discard_undelivered(settings, application, aside)
    return deleted + (_discard_records(settings, application, others) if others else 0)


def _discard_records(settings: Settings, application: str, ids: Collection[str] | None) -> int:
    folder = _folder(settings, application) / DEAD_LETTERS.name
    if not is_table(folder):
        return 0
    while True:
        table = table_at(folder)
        files, schema = file_actions(table), pl.Schema(pl.scan_delta(table).collect_schema())
        if files.is_empty():
            return 0
        rows = read_files(folder, files["path"], schema)
        is_one = pl.lit(True) if ids is None else pl.col("id").is_in(list(ids)).fill_null(False)
        gone, kept = rows.filter(is_one), rows.filter(~is_one)
        if gone.is_empty():
            return 0
        spec = TableSpec(name=DEAD_LETTERS.name, schema=schema)
        added = [write_file(folder.parent, spec, kept, is_merged=True)] if kept.height else []
        if replace_files(folder, files, added, is_data_changed=True):
            return gone.height - gone.filter(stage=REPLAYED).height


def _folder(settings: Settings, application: str) -> Folder:
    return folder_at(settings.warehouse) / require(settings, application)
