"""Times as processors give and get them, datetimes in UTC, and as Weir keeps them, in ms since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def as_time(time_ms: int) -> datetime:
    """A time that Python can hold: ``datetime.max`` in UTC after the year 9999."""
    try:
        return EPOCH + time_ms * _MILLISECOND
    except OverflowError:
        return (datetime.max if time_ms > 0 else datetime.min).replace(tzinfo=UTC)


def as_ms(time: datetime) -> int:
    """Milliseconds since 1970; raises ``TypeError`` for anything but a time with a time zone."""
    if not isinstance(time, datetime):
        raise TypeError(f"{time!r} is not a time; pass one, for example datetime(2026, 1, 1, tzinfo=UTC)")
    if time.tzinfo is None:
        raise TypeError(f"{time!r} has no time zone; use UTC, for example datetime(2026, 1, 1, tzinfo=UTC)")
    return (time - EPOCH) // _MILLISECOND


def bound_ms(time: datetime | None) -> int | None:
    """``as_ms``, or None for no bound."""
    return None if time is None else as_ms(time)
