"""What all kinds of store share: keys and rows as Python values, scans, and the time by which rows expire.

A key or row of one column is that column's value; one of several columns is a dictionary by column. Each kind has its
own file next to this one; access by whole batches of columns, as operators use it, is in ``weir.state.stores.typed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.engine.task_store import MAX_KEY_BYTES
from weir.state.frames import picked, running_max
from weir.state.stores.codec import codec
from weir.state.stores.long_keys import HASH_BYTES
from weir.state.stores.single import SingleKeyCodec, SingleRowCodec
from weir.state.stores.specs import BOOKKEEPING, HELD_HEADERS
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreClock, StoreSpec

Key = Any
Row = Any
HeldRow = tuple[bytes, bytes]
"""A key as the store holds it, and its value."""
E = TypeVar("E")
_PLAIN = frozenset((str, int, bytes, float, bool))
"""Types of values that cannot change and are not mappings; ``isinstance`` takes long to find that out."""

AFTER_TIMES = b"\xff"
"""Sorts after every time in a key, and before the escape of a zero byte."""
_BOUND_BYTES = MAX_KEY_BYTES - HASH_BYTES
"""Longer bounds would be compared with hashes."""


@dataclass
class StoreTime:
    """The clocks that the stores of a task use."""

    clocks: MutableMapping[str, int] = field(default_factory=dict)
    """Stream time in ms by store, kept with the task's state; puts advance it."""
    now_ms: int = 0
    """The wall clock of the epoch or query."""


class ValueAndTimestamp(NamedTuple):
    """A row and its event time; the time is None if none was given."""

    value: Row
    timestamp_ms: int | None


class Scan(Generic[E]):
    """The rows of a range, in the store's order: iterate over it for Python values, or take it as a frame, once."""

    def __init__(self, store: Store, rows: Iterator[HeldRow], entry: Callable[[bytes, bytes], E]) -> None:
        self._store, self._rows, self._entry = store, rows, entry

    def __iter__(self) -> Iterator[E]:
        return (self._entry(key, value) for key, value in self._rows)

    def frame(self) -> pl.DataFrame:
        """Key columns, value columns and ``_ts`` (Int64, ms)."""
        return self._store.frame_of(list(self._rows))

    def frames(self, rows: int) -> Iterator[pl.DataFrame]:
        """``frame`` in parts of up to ``rows`` rows."""
        while found := list(islice(self._rows, rows)):
            yield self._store.frame_of(found)


class Store:
    """One store over a view, or over a session, which writes need; valid for one epoch or query."""

    def __init__(self, spec: StoreSpec, view: StateView, time: StoreTime | None = None) -> None:
        self.spec, self.time = spec, time or StoreTime()
        self.columns = TypedStore(spec, view)
        self.expired_puts = 0
        """Puts that were dropped because their rows had expired."""
        self._view = view
        self._keys = codec(SingleKeyCodec, spec.key, spec.kind)
        self._key_names = self._keys.columns.names()
        self._rows = codec(SingleRowCodec, spec.value)
        self._last_key, self._last_body = object(), b""
        """Processors often put the key that they have just got."""
        self._shown = [name for name in spec.value if name not in BOOKKEEPING]

    @property
    def stream_time_ms(self) -> int | None:
        """The greatest time of any put; None before the first."""
        return self.time.clocks.get(self.spec.name)

    def approximate_num_entries(self) -> int:
        """How many rows there are, including expired ones that are not deleted yet."""
        return self.columns.count()

    def frame_of(self, rows: Sequence[HeldRow]) -> pl.DataFrame:
        """Key and value columns, headers that are held, and ``_ts`` (Int64, ms), of rows as the store holds them."""
        values = self.columns.rows.decode([value for _, value in rows])
        held = [HELD_HEADERS] if HELD_HEADERS in self.spec.value else []
        return self.columns.decode([key for key, _ in rows]).hstack(picked(values, (*self._shown, *held, "_ts")))

    # time

    def _oldest_live_ms(self) -> int | None:
        """Rows with earlier times have expired; None while none can have."""
        if self.spec.retention_ms is None:
            return None
        by_wall_clock = self.spec.expires_by is StoreClock.WALL_CLOCK
        now_ms = self.time.now_ms if by_wall_clock else self.stream_time_ms
        return None if now_ms is None else now_ms - self.spec.retention_ms + 1

    def _from(self, bound_ms: int | None) -> int:
        """The lower bound ``bound_ms`` for times, raised so that expired rows are left out."""
        bounds = (bound for bound in (bound_ms, self._oldest_live_ms()) if bound is not None)
        return max(bounds, default=-(1 << 62))

    def _advance(self, time_ms: int) -> None:
        self.time.clocks[self.spec.name] = max(time_ms, self.time.clocks.get(self.spec.name, time_ms))

    def _admit(self, times_ms: pl.Series) -> pl.Series:
        """Which rows are in time, each judged when its turn comes; advances stream time and counts the rest."""
        stream_time = self._move(times_ms)
        if self.spec.retention_ms is None:
            return times_ms.is_not_null()
        in_time = times_ms > stream_time - self.spec.retention_ms
        self.expired_puts += len(in_time) - int(in_time.sum())
        return in_time

    def _move(self, times_ms: pl.Series) -> pl.Series:
        """Stream time as each row finds it, once that row has advanced it."""
        stream_time = running_max(times_ms.to_numpy(), self.stream_time_ms)
        if len(stream_time):
            self._advance(int(stream_time[-1]))
        return pl.Series(times_ms.name, stream_time)

    # bytes

    def _body(self, key: Key) -> bytes:
        """The key's bytes, without times; raises ``ValueError`` for a null key."""
        if key is self._last_key:
            return self._last_body
        values = self._values_of(key)
        if None in values and all(value is None for value in values):
            raise ValueError(
                f"store {self.spec.name!r} has no row for a null key; give a value for "
                + " or ".join(self._keys.columns)
            )
        body = self._keys.body(values)
        if type(key) in _PLAIN:  # which cannot change
            self._last_key, self._last_body = key, body
        return body

    def _values_of(self, key: Key) -> Sequence[Any]:
        """The key as values in column order."""
        names = self._key_names
        if len(names) == 1 and type(key) in _PLAIN:
            return [key]
        if isinstance(key, Mapping):
            if key.keys() != set(names):
                raise TypeError(
                    f"a key of store {self.spec.name!r} has the columns {', '.join(names)}, but got "
                    + (", ".join(map(str, key)) or "none")
                )
            return [key[name] for name in names]
        if len(names) == 1:
            return [key]
        if not isinstance(key, tuple) or len(key) != len(names):
            raise TypeError(
                f"a key of store {self.spec.name!r} is a dictionary or tuple of {', '.join(names)}, but got {key!r}"
            )
        return key

    def _key_of(self, key: bytes) -> tuple[Key, tuple[int, ...]]:
        """The Python value of a whole key, and its times in the order of the bytes."""
        values, times = self._keys.decode(key)
        return (values[0] if len(values) == 1 else dict(zip(self._keys.columns, values, strict=True))), times

    def _pack(self, row: Row, timestamp_ms: int | None, **bookkeeping: Any) -> bytes:
        if not isinstance(row, (dict, Mapping)):
            if len(self._shown) != 1:
                raise TypeError(
                    f"a row of store {self.spec.name!r} is a dictionary of {', '.join(self._shown)}, but got {row!r}"
                )
            row = {self._shown[0]: row}
        return self._rows.encode({**row, **bookkeeping}, timestamp_ms)

    def _unpack(self, value: bytes) -> ValueAndTimestamp:
        columns, ts = self._rows.decode(value)
        if len(self._shown) == 1:
            return ValueAndTimestamp(columns[self._shown[0]], ts)
        return ValueAndTimestamp({name: columns[name] for name in self._shown}, ts)

    def _get(self, key: bytes) -> tuple[bytes, bytes | None]:
        """A whole key as the store holds it, and its value."""
        held = self._short(key)
        return held, self._view.get_many(self.spec.name, [held])[0]

    def _short(self, key: bytes) -> bytes:
        """A whole key as the store holds it."""
        return key if len(key) < MAX_KEY_BYTES else self.columns.hold([key])[0]

    def _held_rows(self, held: Sequence[bytes]) -> list[HeldRow]:
        """The rows of keys (as the store holds them); absent ones are left out."""
        return [
            (key, value)
            for key, value in zip(held, self._view.get_many(self.spec.name, held), strict=True)
            if value is not None
        ]

    def _whole(self, held: bytes) -> bytes:
        return self.columns.whole([held])[0]

    def _range(self, lower: bytes, upper: bytes | None, reverse: bool = False) -> Iterator[HeldRow]:
        """Rows with whole keys in ``[lower, upper)``.

        Exact for keys of any length. Shortened keys that agree in the bytes that are kept are sorted by their whole
        keys only if the bounds are that long.
        """
        if len(lower) <= _BOUND_BYTES and (upper is None or len(upper) <= _BOUND_BYTES):
            return self._view.scan(self.spec.name, lower, upper, reverse=reverse)
        end = None if upper is None else successor(upper[:_BOUND_BYTES])
        rows = list(self._view.scan(self.spec.name, lower[:_BOUND_BYTES], end))
        whole = self.columns.whole([held for held, _ in rows])
        inside = sorted(
            (
                (key, row)
                for key, row in zip(whole, rows, strict=True)
                if lower <= key and (upper is None or key < upper)
            ),
            reverse=reverse,
        )
        return iter([row for _, row in inside])

    def _first(self, lower: bytes, upper: bytes, reverse: bool = False) -> HeldRow | None:
        """The first row of a ``_range``."""
        if len(lower) <= _BOUND_BYTES and len(upper) <= _BOUND_BYTES:
            return self._view.first(self.spec.name, lower, upper, reverse=reverse)
        return next(self._range(lower, upper, reverse), None)


def successor(prefix: bytes) -> bytes | None:
    """The smallest key after all that begin with ``prefix``; None if there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
