"""Store specs by kind, with the key and value columns that each kind needs in addition to the user's.

The stores' own methods do not show these columns.
"""

from __future__ import annotations

import polars as pl

from weir.state.types import StoreClock, StoreKind, StoreSpec

TIME = pl.Datetime("ms", "UTC")
WRITTEN = "_written"
"""When a row was written by the wall clock; a value column of stores whose rows expire by it."""
GONE = "_gone"
"""Whether a version marks its key as deleted; a value column of versioned stores."""
VALID_FROM = "valid_from"
"""The time from which a version is valid; the last key column of versioned stores."""
PLACE = "_place"
"""A row's place in its list, from 0; the last key column of list stores."""
SINCE = "_since"
"""A row's position in a suppression's buffer, as a time; a value column of such stores."""
SHOWN = "_shown"
"""What a suppression that is looked up has last forwarded of a key that it holds: a struct of the value columns and
``_ts``, null for nothing; a value column of such stores."""
HELD_HEADERS = "_headers"
"""The headers of a record that waits in a buffer; a value column of buffers behind sources that are read with them."""
BOOKKEEPING = (WRITTEN, GONE, SINCE, SHOWN, HELD_HEADERS)


def key_value_spec(
    name: str,
    key: pl.Schema,
    value: pl.Schema,
    *,
    ttl_ms: int | None = None,
    expires_by: StoreClock = StoreClock.STREAM_TIME,
) -> StoreSpec:
    """One row per key. With ``ttl_ms`` a row lives that long after its last write, by either clock."""
    if ttl_ms is not None and expires_by is StoreClock.WALL_CLOCK:
        value = pl.Schema({**value, WRITTEN: TIME})
    return StoreSpec(
        name=name, key=key, value=value, retention_ms=_positive(name, "ttl_ms", ttl_ms), expires_by=expires_by
    )


def window_spec(name: str, key: pl.Schema, value: pl.Schema, *, size_ms: int, retention_ms: int) -> StoreSpec:
    """One row per key and window of ``size_ms``; a window lives for ``retention_ms`` of stream time from its start.

    Raises:
        ValueError: The retention is shorter than the windows.
    """
    if retention_ms < size_ms:
        raise ValueError(
            f"store {name!r} keeps windows for {retention_ms} ms, but they are {size_ms} ms long; "
            "keep them for at least that long"
        )
    return StoreSpec(
        name=name,
        key=pl.Schema({**key, "window_start": TIME, "window_end": TIME}),
        value=value,
        kind=StoreKind.WINDOW,
        retention_ms=retention_ms,
        window_size_ms=_positive(name, "size_ms", size_ms),
    )


def session_spec(name: str, key: pl.Schema, value: pl.Schema, *, retention_ms: int) -> StoreSpec:
    """One row per key and session; a session lives for ``retention_ms`` of stream time from its end."""
    return StoreSpec(
        name=name,
        key=pl.Schema({**key, "window_start": TIME, "window_end": TIME}),
        value=value,
        kind=StoreKind.SESSION,
        retention_ms=_positive(name, "retention_ms", retention_ms),
    )


def versioned_spec(name: str, key: pl.Schema, value: pl.Schema, *, history_ms: int) -> StoreSpec:
    """One row per key and version; versions that were replaced more than ``history_ms`` of stream time ago are dropped,
    and puts older than that are refused. The newest version of a key stays."""
    return StoreSpec(
        name=name,
        key=pl.Schema({**key, VALID_FROM: TIME}),
        value=pl.Schema({**value, GONE: pl.Boolean()}),
        kind=StoreKind.VERSIONED,
        retention_ms=_positive(name, "history_ms", history_ms),
    )


def list_spec(name: str, key: pl.Schema, value: pl.Schema) -> StoreSpec:
    """One row per key and place in the key's list."""
    return StoreSpec(name=name, key=pl.Schema({**key, PLACE: pl.Int64()}), value=value)


def key_columns(spec: StoreSpec) -> dict[str, pl.DataType]:
    """The columns of the keys that users know: without the times of windows and versions, and the places in lists."""
    added = (PLACE,) if spec.kind is StoreKind.KEY_VALUE else ("window_start", "window_end", VALID_FROM)
    return {name: dtype for name, dtype in spec.key.items() if name not in added}


def buffer_spec(name: str, key: pl.Schema, value: pl.Schema) -> StoreSpec:
    """A suppression's buffer: one row per key, found by key and in the order of position; tombstones are rows, too."""
    return StoreSpec(name=name, key=key, value=pl.Schema({**value, SINCE: TIME, GONE: pl.Boolean()}))


def _positive(name: str, setting: str, duration_ms: int | None) -> int | None:
    if duration_ms is not None and duration_ms < 1:
        raise ValueError(f"store {name!r}: {setting} is {duration_ms}; it must be at least one millisecond")
    return duration_ms
