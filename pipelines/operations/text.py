"""Words that messages share."""

from datetime import UTC, datetime


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def utc_text(moment: datetime) -> str:
    """``2026-01-31 12:00:00 UTC``, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def megabytes(size_bytes: int) -> str:
    """``1.5 MB``, of a million bytes each."""
    return f"{size_bytes / 1e6:,.1f} MB"


def duration(ms: float) -> str:
    """``1,161 ms``, ``12.5 s``, ``3.0 minutes``, ``5.2 hours``, ``329.0 days``: from 10 seconds on in the largest unit
    that gives 2 or more."""
    if ms < 10_000:
        return f"{ms:,.0f} ms"
    for unit, unit_ms in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:,.1f} {unit}"
    return f"{ms / 1_000:,.1f} s"
