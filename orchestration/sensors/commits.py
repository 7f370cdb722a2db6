"""Shows an application's commits in Dagster while its driver runs, whoever started that driver, and what the checks say
that are light enough to be made with each commit shown.

One materialization per commit would flood Dagster's database, so commits are folded. The events themselves record up to
which commit. A run that Dagster started reports again at its end (``weir.orchestration.drivers.ingest``).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import dagster as dg

from weir.orchestration.assets.materializations import (
    commit_materializations,
    recorded_metadata,
)
from weir.orchestration.assets.partitions import day_partition_changes, has_days, known_days, task_partition_changes
from weir.orchestration.checks.light import light_evaluations
from weir.orchestration.drivers.metadata import health_metadata
from weir.orchestration.partitions import PartitionsChange
from weir.orchestration.sensors.watching import Event, Found, Look, watch
from weir.orchestration.supervised import Supervised
from weir.pipelines.expectations import expectation_counts
from weir.pipelines.operations.positions import committed_totals
from weir.state.commit.protocol import newest_commit
from weir.state.commit.record import CommitRecord
from weir.state.storage.places import folder_at

LOOK_EVERY_S = 10
FOLD_S = 600.0
"""A driver that keeps committing is shown this often; its first commit, and the last of one that ended, at once."""
ASK_AGAIN_S = 300.0
"""Days are asked for with each commit that is shown, and this long after the last time if none is known yet or if they
wait for a run to end."""
CHECK_AGAIN_S = 30.0
"""While more records come too late, cannot be read or violate an expectation, the checks are made this often, and
reported when others fail than before."""


def commits_sensor(applications: Sequence[Supervised]) -> dg.SensorDefinition:
    """Shows the newest commit in every asset of an application, and keeps the partitions in step with it: tasks, and
    the days that a backfill can be asked for."""
    return watch(
        "commits",
        commits,
        applications,
        every_s=LOOK_EVERY_S,
        description="Shows what applications have committed, whoever runs them: Dagster or the command line.",
    )


@dataclass(frozen=True)
class Remembered:
    """The cursor: so that Dagster, where a question takes longer than all else here, is asked only when something may
    be due, and each ``FOLD_S`` for what others have changed there."""

    shown: tuple[int, int, float] | None = None
    """Generation, epoch and time, in seconds since 1970, of the commit that Dagster knew when it was last asked."""
    asked_s: float = 0.0
    """When that was, in seconds since 1970."""
    days_s: float | None = 0.0
    """When days were last asked for; None once they are offered."""
    checked_s: float = 0.0
    """When the light checks were last made."""
    doubtful: int = 0
    """``doubtful_records`` of that commit."""
    failing: tuple[str, ...] = ()
    """The checks that failed when they were last reported, with their assets, sorted."""

    @classmethod
    def of(cls, cursor: str | None) -> Remembered:
        """What an earlier version has left is forgotten."""
        if not cursor or not cursor.startswith("{"):
            return cls()
        values = json.loads(cursor)
        return cls(
            values["shown"] and tuple(values["shown"]),
            values["asked_s"],
            values["days_s"],
            values.get("checked_s", 0.0),
            values.get("doubtful", 0),
            tuple(values.get("failing", ())),
        )

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def commits(look: Look) -> Found:
    """Read the newest commit and whether its driver runs; report the assets when there is news."""
    newest = newest_commit(folder_at(look.settings.warehouse), look.id)
    if newest is None:
        return Found(said=f"nothing was committed in {look.settings.dir} yet")
    remembered = before = Remembered.of(look.cursor)
    events: list[Event] = []
    partitions: list[PartitionsChange] = []
    is_running, now_s = look.status is not None and look.status.is_running, time.time()
    if now_s - remembered.asked_s >= FOLD_S or is_due(remembered.shown, newest, is_running=is_running, now_s=now_s):
        shown = shown_commit(look.instance, look.supervised)
        partitions += task_partition_changes(look.supervised, newest, look.instance)
        if is_due(shown, newest, is_running=is_running, now_s=now_s):
            health = health_metadata(look.settings, look.id)
            events += commit_materializations(look.supervised, newest, look.instance, look.settings, health=health)
            shown = known_as(newest)
        remembered = replace(remembered, shown=shown, asked_s=now_s)
    is_news, doubtful, errors = bool(events), doubtful_records(newest), ""
    if is_news or (doubtful > remembered.doubtful and now_s - remembered.checked_s >= CHECK_AGAIN_S):
        evaluations, errors = light_evaluations(look.supervised, look.settings)
        failing = tuple(sorted(f"{each.asset_check_key}" for each in evaluations if not each.passed))
        events += evaluations if is_news or failing != remembered.failing else ()
        remembered = replace(remembered, checked_s=now_s, doubtful=doubtful, failing=failing)
    if is_news or (remembered.days_s is not None and now_s - remembered.days_s >= ASK_AGAIN_S):
        days = day_partition_changes(look.supervised, newest, look.instance, look.settings)
        partitions += days or ()
        are_offered = days is not None and (days or known_days(look.supervised, look.instance))
        remembered = replace(remembered, days_s=None if are_offered or not has_days(look.supervised) else now_s)
    return Found(
        said=f"commit {newest.state_id} "
        + ("is news" if is_news else f"is shown already, or will be within {FOLD_S:.0f} s of the previous one")
        + errors,
        cursor=None if remembered == before else str(remembered),
        events=events,
        partitions=partitions,
    )


def doubtful_records(newest: CommitRecord) -> int:
    """How many records came too late, could not be read or violated an expectation, up to that commit."""
    totals = committed_totals(newest)
    violations = sum(counts.failed for counts in expectation_counts(totals).values())
    return totals.get("late_records", 0) + totals.get("dead_letters", 0) + violations


def shown_commit(instance: dg.DagsterInstance, supervised: Supervised) -> tuple[int, int, float] | None:
    """``Remembered.shown`` as of now; None if Dagster knows of no commit."""
    known = recorded_metadata(instance, supervised.ingest)
    return (known["generation"], known["epoch"], known["committed_at"]) if "generation" in known else None


def known_as(newest: CommitRecord) -> tuple[int, int, float]:
    """``Remembered.shown`` once this commit is."""
    return (newest.generation, newest.epoch, newest.at_ms / 1000)


def is_due(shown: tuple[int, int, float] | None, newest: CommitRecord, *, is_running: bool, now_s: float) -> bool:
    """Whether to show ``newest``: not if it is what is ``shown``; and while the driver keeps running, not if that is
    less than ``FOLD_S`` old either, unless it was an earlier driver's."""
    if shown is None:
        return True
    generation, _, committed_at_s = shown
    if shown == known_as(newest):
        return False
    return not is_running or generation != newest.generation or now_s - committed_at_s >= FOLD_S
