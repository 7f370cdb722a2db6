"""The limits at which sensors act and checks fail, for one application; what they then do is up to them."""

from dataclasses import dataclass

import dagster as dg

LOOK_BACK_MAX_S = 3_000.0
"""The longest span that a sensor can look back over: readings are kept for an hour."""
STALLED_LEAST_S = 10.0
"""The shortest span after which a driver may count as stalled: one that has nothing to do gives a reading each 5 s."""
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Thresholds(dg.Resolvable):
    """One application's limits; each name ends with its unit."""

    uncommitted_max_bytes: int = 32 << 20
    """Uncommitted state of all tasks together; more of it requests a commit. The driver commits by itself at the
    application's ``uncommitted_max_bytes``, which is per task."""
    lag_max_records: int = 10_000
    """Over all partitions of all topics."""
    lag_max_s: float = 300.0
    """How long it would take to work off the lag, at the pace of the last hour's best minute."""
    sink_lag_max_s: float = 300.0
    """How long a committed row may wait for a sink outside the warehouse."""
    lag_grows_max_s: float = 300.0
    """Lag that grows for this long, in each fifth of that time, gets a warning. Readings come every half second while
    records wait."""
    stalled_max_s: float = 180.0
    """A driver that has lag but has begun no epoch for this long, or has given no heartbeat or no reading, gets a
    warning with the stacks of its threads; if it is still stalled after the same time again, it is killed and the next
    run resumes. Choose more than the longest step of a commit takes. Where no epoch begins, the application's
    ``max_task_idle`` is added."""
    restart_pause_s: float = 10.0
    """Before the second restart of a driver that is killed again and again; the first is immediate, and each further
    pause is twice as long."""
    restart_pause_max_s: float = 300.0
    """The longest of those pauses."""
    restart_steady_s: float = 60.0
    """A driver that still commits this long after its start, or has nothing to commit then, resets the pauses."""
    retention_min_share: float = 0.1
    """Of the records that a partition keeps, the share that should lie between the oldest and the next one to read."""
    late_max_share: float = 0.01
    """Of the records read over ``audited_epochs``."""
    dead_letter_max_share: float = 0.001
    """Of the records read over ``audited_epochs``."""
    expectation_max_share: float = 0.0
    """Of the records that an expectation judged over ``audited_epochs``, the share that may have violated it."""
    audited_epochs: int = 10_000
    """How many of the newest epochs the checks of the commit log cover."""
    sampled_tasks: int = 1
    """How many tasks the sampled comparison of state and changelog picks."""
    closed_segments_max: int = 10
    """Closed segments of changelogs (a thousand epochs each) that trigger a compaction."""
    spare_files_max: int = 10_000
    """Files of tables that a compaction would merge away; this many trigger one too."""
    stale_warn_s: float = 3_600.0
    """Age of the newest commit that Dagster knows of, for a freshness warning."""
    stale_fail_s: float = 86_400.0
    """The same, for a freshness failure."""
    cooldown_s: float = 600.0
    """Minimum time between two requests of a sensor, and between two warnings about the same thing; those of
    ``weir_lag`` are in ``OnLag``."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a span longer than ``LOOK_BACK_MAX_S``, which no reading could ever show, or for a
        ``stalled_max_s`` in which a driver that does well may give none."""
        for name in ("lag_grows_max_s", "stalled_max_s"):
            if getattr(self, name) > LOOK_BACK_MAX_S:
                raise ValueError(
                    f"{name} is {getattr(self, name):,.0f} s; readings are kept for an hour, so it must "
                    f"be {LOOK_BACK_MAX_S:,.0f} s at most"
                )
        if self.stalled_max_s < STALLED_LEAST_S:
            raise ValueError(
                f"stalled_max_s is {self.stalled_max_s:g} s; a driver that waits for records gives a sign of life "
                f"each 5 s, so it must be {STALLED_LEAST_S:g} s at least"
            )


def size_text(size_bytes: int) -> str:
    """A size for people, such as ``640 bytes`` or ``32.0 MiB``; metadata that Dagster plots stays in bytes."""
    return f"{size_bytes / MIB:,.1f} MiB" if size_bytes >= MIB else f"{size_bytes:,} bytes"
