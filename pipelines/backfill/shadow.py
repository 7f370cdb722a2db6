"""Shadows: the folders that backfills are made in, their manifests, and their removal (docs/backfill.md 1, 4, 9).

A shadow is an application folder with a commit log of its own, ``_backfills/<id>`` below that of the live application.
"""

from __future__ import annotations

import copy
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import msgspec

from weir.pipelines.application import Application
from weir.pipelines.backfill.errors import UnknownBackfillError
from weir.pipelines.backfill.files import SLICES, SourceFiles
from weir.pipelines.backfill.outputs import DayOutput
from weir.pipelines.backfill.ranges import Ranges
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.engine.in_memory import free
from weir.state.storage.contract import Folder
from weir.state.storage.places import Place, folder_at

BACKFILLS = "_backfills"
KEPT = "_global_tables"
"""What a shadow keeps of the topics of global tables (``weir.pipelines.backfill.kept_topics``)."""
ABANDONED_AFTER_S = 24 * 3600.0
"""A shadow that is not complete and has not changed for this long is abandoned."""
_MANIFEST, _COMPLETE, _REMOVED = "backfill.json", "complete.json", ".removed-"


@dataclass(frozen=True, kw_only=True)
class Days:
    """Whole days of event time, UTC: ``[first, end)``."""

    first: date
    end: date

    @classmethod
    def of_ms(cls, start_ms: int, end_ms: int) -> Days:
        """The days between these two midnights."""
        first, end = (datetime.fromtimestamp(at_ms / 1000, UTC).date() for at_ms in (start_ms, end_ms))
        return cls(first=first, end=end)

    @property
    def start_ms(self) -> int:
        return _midnight_ms(self.first)

    @property
    def end_ms(self) -> int:
        return _midnight_ms(self.end)

    def __str__(self) -> str:
        if self == EVERYTHING:
            return "everything"
        last = self.end - timedelta(days=1)
        return f"{self.first}" if last == self.first else f"{self.first} to {last}"


EVERYTHING = Days(first=date.min, end=date.max)
"""The whole history: rows of any time, and the stores."""


def _midnight_ms(day: date) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """What a backfill computes, fixed before it begins."""

    id: str
    application: str
    days: Days
    source: str
    """Where its records come from, for people."""
    ranges: Ranges
    """What is read of the topics' partitions; for files this is known once their slices are written."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """By topic, the id that the ranges belong to, if the live application's newest commit knew it."""
    global_ranges: Ranges = field(default_factory=dict)
    """What is read of the topics of global tables, to where they ended when it began."""
    files: SourceFiles | None = None
    """What is read instead of topics."""
    end_time_ms: int | None = None
    """Where stream time advances to after the last record, which closes windows; None leaves open windows open."""
    cut_epoch: int
    outputs: tuple[DayOutput, ...] = ()
    """What is swapped, of days; a backfill of everything swaps all outputs of the program."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    published: tuple[str, ...] = ()
    """The sinks to which its rows of days can be published; of everything, to all."""
    passes_wall_clock: bool = False
    """Whether what processors do by the wall clock is due while it runs."""
    at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    """When it began, by the wall clock."""

    @property
    def global_note(self) -> str:
        """For people: as of when it reads global tables; empty if it reads none."""
        if not self.global_ranges:
            return ""
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC)
        return (
            f"the rows of global tables (topics {', '.join(sorted(self.global_ranges))}) are those of "
            f"{at:%Y-%m-%d %H:%M} UTC, when the backfill began, not those of the records' times"
        )


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What a backfill has done."""

    records_in: int
    seconds: float
    at_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)


_BACKFILLS, _COMPLETIONS = msgspec.json.Decoder(Backfill), msgspec.json.Decoder(Completion)


def new_id(days: Days) -> str:
    """A name that no backfill has had before."""
    name = str(days) if days == EVERYTHING else f"{days.first:%Y%m%d}-{days.end:%Y%m%d}"
    return f"{name}-{uuid.uuid4().hex[:6]}"


def shadow_application(application: Application, backfill: str) -> Application:
    """The same program under the backfill's id, which names its folders and transactions; its outboxes keep times."""
    shadow = copy.copy(application)
    shadow.id, shadow.topology = backfill, application.topology.keeping_times()
    return shadow


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """The folders of one backfill."""

    warehouse: Place
    """The shadow's own warehouse: where the live application keeps its backfills."""
    state_dir: Path
    application: str
    """The live application's id."""
    id: str

    @classmethod
    def of(cls, warehouse: Place, state_dir: Path, application: str, backfill: str) -> Shadow:
        return cls(
            warehouse=warehouse / application / BACKFILLS,
            state_dir=state_dir / application / BACKFILLS,
            application=application,
            id=backfill,
        )

    @property
    def folder(self) -> Folder:
        return folder_at(self.warehouse) / self.id

    @property
    def state_folder(self) -> Path:
        return self.state_dir / self.id

    @property
    def slices(self) -> Path:
        """What is read instead of topics, if the source is files."""
        return self.state_folder / SLICES

    @property
    def lease_name(self) -> str:
        """Its driver's name in the control database; no application can have such an id."""
        return f"{self.application}/{self.id}"

    def commit_before(self) -> CommitRecord | None:
        """The commit from which its stores take names if their own are made up: its newest, or the application's."""
        return newest_commit(self.warehouse, self.id) or newest_commit(self.warehouse.parent.parent, self.application)

    def begin(self, backfill: Backfill) -> None:
        """Create the folder; from now on the backfill can be found."""
        self.folder.put(_MANIFEST, msgspec.json.encode(backfill))

    def complete(self, completion: Completion) -> None:
        """Mark the backfill as complete.

        Its local stores and its input are no longer needed and are removed first, since a swap does not look for
        them. The stores of a backfill of everything stay, because it may continue reading.
        """
        if self.backfill.days != EVERYTHING:
            self.remove_stores()
            self.folder.delete_folder(KEPT)
        _remove(self.slices)
        self.folder.put(_COMPLETE, msgspec.json.encode(completion))

    @property
    def backfill(self) -> Backfill:
        """What it computes.

        Raises:
            UnknownBackfillError: There is no such backfill.
        """
        try:
            return _BACKFILLS.decode(self.folder.get(_MANIFEST))
        except FileNotFoundError:
            raise UnknownBackfillError(self.application, self.id, "it does not exist, or was discarded") from None

    @property
    def completion(self) -> Completion | None:
        """What it has done; None while it runs, and when it was interrupted."""
        try:
            return _COMPLETIONS.decode(self.folder.get(_COMPLETE))
        except FileNotFoundError:
            return None

    @property
    def is_abandoned(self) -> bool:
        """Whether it is incomplete and nothing has happened in it for a day."""
        places = (self.folder, self.folder / "_commits" / "_delta_log")
        newest_s = max((file.modified_s for place in places for file in place.list()), default=0.0)
        return self.completion is None and time.time() - newest_s > ABANDONED_AFTER_S

    def remove_stores(self) -> None:
        """Delete its local stores; if it runs again, they are restored."""
        _remove(self.state_folder)

    def remove(self) -> None:
        """Delete it; if this is killed halfway, it counts as gone all the same; the next removal deletes the rest."""
        self.remove_stores()
        self.folder.parent.delete_folder(self.id)


def shadows(warehouse: Place, state_dir: Path, application: str) -> Iterator[Shadow]:
    """An application's shadows, oldest days first."""
    folder = folder_at(warehouse / application / BACKFILLS)
    for backfill in sorted(folder.folders()):
        if folder.find(f"{backfill}/{_MANIFEST}") is not None:
            yield Shadow.of(warehouse, state_dir, application, backfill)


def remove_swapped(app_folder: Place, newest: CommitRecord | None) -> None:
    """Remove the shadow that the newest commit has swapped in or published, if it still exists."""
    for note in newest.swapped if newest else ():
        if newest is not None and note.epoch == newest.epoch:
            remove_shadow(app_folder, note.backfill)


def remove_shadow(app_folder: Place, backfill: str) -> None:
    """Remove a complete backfill's only folder, if it still exists."""
    (folder_at(app_folder) / BACKFILLS).delete_folder(backfill)


def _remove(folder: Path) -> None:
    """Move it out of the way in one step, then delete it together with what earlier removals left."""
    if folder.exists():
        free(folder)
        folder.rename(folder.with_name(f"{_REMOVED}{folder.name}-{uuid.uuid4().hex[:6]}"))
    for left in folder.parent.glob(f"{_REMOVED}*"):
        shutil.rmtree(left, ignore_errors=True)
