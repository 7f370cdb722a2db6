"""From where on sensors act and checks fail, for one application. What they do then is theirs."""

from __future__ import annotations

from dataclasses import dataclass

LOOK_BACK_MAX_S = 3_000.0
"""The longest span that a sensor can look back over: readings are kept for an hour."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """One application's limits; the name of each ends with its unit."""

    uncommitted_max_bytes: int = 32 << 20
    """Of state, over all tasks: more of it requests a commit. The driver commits by itself at the application's
    ``uncommitted_max_bytes`` a task."""
    lag_max_records: int = 10_000
    """Over all partitions of all topics."""
    lag_max_s: float = 300.0
    """How long it would take to work the lag off, at the pace of the last hour's best minute."""
    lag_grows_max_s: float = 300.0
    """Lag that grows for so long, in each fifth of that time, is a warning. Readings come every half second."""
    stalled_max_s: float = 180.0
    """A driver that has lag and has begun no epoch for so long, or that has been silent for so long, is warned of with
    the stacks of its threads; after as long again it is ended, and the next run goes on. Longer than the longest epoch.
    The application's ``max_task_idle`` comes to it where no epoch begins."""
    restart_pause_s: float = 10.0
    """Before the second start in a row of a driver that is killed again and again; the first comes at once, each
    further one after twice the pause."""
    restart_pause_max_s: float = 300.0
    """The longest of those pauses."""
    restart_steady_s: float = 60.0
    """A driver that still commits so long after its start, or has nothing to commit then, begins a new row."""
    retention_min_share: float = 0.1
    """Of the records that a partition keeps, how many should lie between its oldest and the next one to read."""
    late_max_share: float = 0.01
    """Of the records read over ``audited_epochs``."""
    dead_letter_max_share: float = 0.001
    """Of the records read over ``audited_epochs``."""
    audited_epochs: int = 10_000
    """How many of the newest epochs the checks of the commit log go through."""
    sampled_tasks: int = 1
    """How many tasks the sampled comparison of state and changelog picks."""
    closed_segments_max: int = 10
    """So many closed segments of changelogs (a thousand epochs each) since the last compaction request the next."""
    spare_files_max: int = 10_000
    """So many files of tables that the next compaction would merge away request it, as closed segments do."""
    stale_warn_s: float = 3_600.0
    """Age of the newest commit that Dagster knows of."""
    stale_fail_s: float = 86_400.0
    """As ``stale_warn_s``."""
    cooldown_s: float = 600.0
    """Least time between two requests of a sensor, and between two warnings of the same thing."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for a span longer than ``LOOK_BACK_MAX_S``, which no reading would ever show."""
        for name in ("lag_grows_max_s", "stalled_max_s"):
            if getattr(self, name) > LOOK_BACK_MAX_S:
                raise ValueError(
                    f"{name} is {getattr(self, name):,.0f} s; readings are kept for an hour, so it must "
                    f"be {LOOK_BACK_MAX_S:,.0f} s at most"
                )
