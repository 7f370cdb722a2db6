"""The quarantine of an application's local state in numbers, against the limits of the settings.

Moving folders there and deleting them belongs to ``weir.state.engine.quarantine``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from weir.infra.settings import Settings
from weir.pipelines.operations.text import counted, megabytes
from weir.state.engine.quarantine import QuarantineCleaning, QuarantineLimits, clean, quarantined

DAY_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class QuarantineStatus:
    """What an application has in quarantine on this host."""

    folders: int
    size_bytes: int
    """On disk."""
    oldest_at: datetime | None
    """When the oldest was quarantined."""
    oldest_age: timedelta | None
    path: str
    """Where they are; ``*`` stands for several tasks. Empty if there are none."""
    over_limit: str
    """What is beyond its limit, and how to clean it, in one sentence; empty if nothing is."""


def quarantine_status(settings: Settings, application: str) -> QuarantineStatus:
    """What is in quarantine now."""
    found = quarantined(settings.state_dir / application)
    size_bytes, now_s = sum(folder.size_bytes for folder in found), time.time()
    parents = {folder.path.parent for folder in found}
    path = str(settings.state_dir / application / "*" / "quarantine") if parents else ""
    age_s = max(0.0, now_s - found[0].at_s) if found else 0.0
    over = []
    if size_bytes > settings.quarantine_max_bytes:
        over.append(f"takes {megabytes(size_bytes)}, more than {megabytes(settings.quarantine_max_bytes)}")
    if age_s > settings.quarantine_max_days * DAY_S:
        over.append(f"has a folder {days(age_s)} old, more than {settings.quarantine_max_days:g} days")
    return QuarantineStatus(
        folders=len(found),
        size_bytes=size_bytes,
        oldest_at=datetime.fromtimestamp(found[0].at_s, UTC) if found else None,
        oldest_age=timedelta(seconds=age_s) if found else None,
        path=str(parents.pop()) if len(parents) == 1 else path,
        over_limit=f"the quarantine {' and '.join(over)}: {_way_out(settings, application)}" if over else "",
    )


def _way_out(settings: Settings, application: str) -> str:
    """What a compaction would do now about a quarantine that is over its limit."""
    cleaning = clean_quarantine(settings, application, is_dry_run=True)
    if cleaning.removed:
        return f"`weir compact {application}` deletes {counted(len(cleaning.removed), 'folder')}"
    if cleaning.kept:
        return f"{cleaning.kept[0].folder.path} has to stay, {cleaning.kept[0].why}"
    return "what is left is the newest of each task, which stays for an hour"


def clean_quarantine(settings: Settings, application: str, *, is_dry_run: bool) -> QuarantineCleaning:
    """Remove what is beyond the limits, or show what would go."""
    limits = QuarantineLimits(max_age_s=settings.quarantine_max_days * DAY_S, max_bytes=settings.quarantine_max_bytes)
    return clean(settings.state_dir / application, limits, time.time(), is_dry_run=is_dry_run)


def cleaned_sentence(cleaning: QuarantineCleaning, *, is_dry_run: bool) -> str:
    """``2 folders, 1.5 MB, removed from quarantine``."""
    size = megabytes(sum(folder.size_bytes for folder in cleaning.removed))
    done = "would be removed" if is_dry_run else "removed"
    return f"{counted(len(cleaning.removed), 'folder')}, {size}, {done} from quarantine"


def days(seconds: float) -> str:
    """An age for people."""
    return f"{seconds / DAY_S:,.1f} days"
