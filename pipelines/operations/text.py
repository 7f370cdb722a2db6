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
