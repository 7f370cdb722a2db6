"""Slices: the pieces that all hopping windows are made of, each in several windows, cut where windows begin and end.

A record is folded once, into its slice, and a window is merged from its slices when it is needed. If the advance
divides the size, a slice is as long as the advance; else each advance is cut in two. What is kept of slices, and when,
belongs to ``sliced_results``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from weir.pipelines.operators.closing import CLOSED
from weir.pipelines.operators.fold import ColumnFold
from weir.pipelines.operators.numbering import numbers_of
from weir.pipelines.operators.rolling import windows_of_cells
from weir.pipelines.operators.windows import TimeWindows
from weir.pipelines.serdes.shapes import TIME
from weir.state.frames import copies, in_order, picked, where, with_series
from weir.state.types import StoreSpec

SLICE = "_slice"
"""A row's slice, and behind how many of its windows that were open before the batch the first one is that is open to
the row, as one number."""
SLICED = "_slices:"
"""Prefix of a clock, before the name of a store that has slices; its number says nothing."""
CELLS = 1 << 21
"""How many states, of keys and slices, are merged at a time: those of more keys one after another."""
MOST_PER_WINDOW = 10_000
"""Windows of more slices are kept whole."""
_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True)
class Slices:
    """The slices of hopping ``windows``, numbered by time, for states of ``fold`` by the columns ``key``.

    Windows are numbered, too: window ``k`` starts at ``k`` times the advance. Rows of states have the key columns,
    ``window_start`` and ``window_end``, the state columns and ``_ts``; the bounds are those of a slice, or of a whole
    window, which is longer than any slice.
    """

    windows: TimeWindows
    fold: ColumnFold
    key: tuple[str, ...]

    @cached_property
    def _rest_ms(self) -> int:
        return self.windows.size_ms % self.windows.advance_ms

    @cached_property
    def per_advance(self) -> int:
        """How many slices begin with each window: a window begins with every one, or every other."""
        return 2 if self._rest_ms else 1

    @cached_property
    def per_window(self) -> int:
        """How many slices a window has."""
        return self.windows.size_ms // self.windows.advance_ms * self.per_advance + (1 if self._rest_ms else 0)

    def numbers(self, times_ms: np.ndarray) -> np.ndarray:
        """The slice of each time, or that which starts at it."""
        hops: np.ndarray = times_ms // self.windows.advance_ms
        if self.per_advance == 1:
            return hops
        halves: np.ndarray = 2 * hops + (times_ms - hops * self.windows.advance_ms >= self._rest_ms)
        return halves

    def bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of each slice, in ms."""
        advance_ms = self.windows.advance_ms
        if self.per_advance == 1:
            return numbers * advance_ms, (numbers + 1) * advance_ms
        starts = numbers // 2 * advance_ms
        is_second = numbers % 2 == 1
        return starts + is_second * self._rest_ms, starts + np.where(is_second, advance_ms, self._rest_ms)

    def first_windows(self, numbers: np.ndarray) -> np.ndarray:
        """The first window with each slice."""
        firsts: np.ndarray = np.maximum(-((self.per_window - 1 - numbers) // self.per_advance), 0)
        return firsts

    def last_windows(self, numbers: np.ndarray) -> np.ndarray:
        """The last window with each slice."""
        lasts: np.ndarray = numbers // self.per_advance
        return lasts

    def open_from(self, stream_time_ms: int | None) -> int:
        """The first window that is open at a stream time; of all if there is none yet."""
        if stream_time_ms is None:
            return 0
        return max(-(-self.windows.closed_before(stream_time_ms) // self.windows.advance_ms), 0)

    def assign(
        self, rows: pl.DataFrame, stream_time: pl.Series, opened: int
    ) -> tuple[pl.DataFrame, pl.DataFrame | None]:
        """The records that are in time for a window, with ``_slice``; and those that are late for one, with its bounds,
        as ``TimeWindows.assign`` gives them, or None. ``opened`` is the first window that was open before the batch."""
        numbers = self.numbers(rows.get_column("_ts").to_numpy())
        times = stream_time.to_numpy()
        open_to = -(-(times + self.windows.closed_before(0)) // self.windows.advance_ms)
        firsts = self.first_windows(numbers)
        late = None
        if (is_late := open_to > firsts).any():
            mask = pl.Series(is_late)
            late = self.windows.assign(rows.filter(mask), stream_time.filter(mask))[1]
        behind = np.maximum(open_to - np.maximum(firsts, opened), 0)
        rows = with_series(rows, pl.Series(SLICE, numbers * (self.per_window + 1) + behind))
        return where(rows, pl.Series(open_to <= self.last_windows(numbers))), late

    def parts(self, groups: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        """What ``_slice`` of ``groups`` says: slices, and how far behind each group is."""
        return np.divmod(groups.get_column(SLICE).to_numpy(), self.per_window + 1)

    def slices_of(self, groups: pl.DataFrame) -> pl.DataFrame:
        """States of records by ``_slice`` as rows of states, each of a slice."""
        return self._rows(groups, *self.bounds(self.parts(groups)[0]))

    def late_windows(self, groups: pl.DataFrame, opened: int, until: int) -> pl.DataFrame:
        """States of records by ``_slice`` as rows of states, one for each window before ``until`` that they are in."""
        numbers, behind = self.parts(groups)
        firsts = np.maximum(self.first_windows(numbers), opened) + behind
        counts = np.maximum(np.minimum(self.last_windows(numbers), until - 1) - firsts + 1, 0)
        repeats, places = copies(counts)
        starts = (firsts[repeats] + places) * self.windows.advance_ms
        return self._rows(groups[repeats], starts, starts + self.windows.size_ms)

    def _rows(self, groups: pl.DataFrame, starts: np.ndarray, ends: np.ndarray) -> pl.DataFrame:
        bounds = [pl.Series("window_start", starts).cast(TIME), pl.Series("window_end", ends).cast(TIME)]
        return picked(groups, self.key).hstack(bounds).hstack(picked(groups, [*self.fold.state, "_ts"]))

    def united(self, rows: pl.DataFrame) -> pl.DataFrame:
        """One of the ``rows`` of states, each of a slice, for each key and slice."""
        keys, ids = self._numbered(rows)
        numbers = self.numbers(rows.get_column("window_start").dt.timestamp("ms").to_numpy())
        base = int(numbers.min())
        codes, states = self._merged((numbers - base) * keys.height + ids, picked(rows, [*self.fold.state, "_ts"]))
        numbers, ids = np.divmod(codes, keys.height)
        return self._rows(keys[ids].hstack(states), *self.bounds(numbers + base))

    def open_windows(self, store: str, rows: pl.DataFrame, clocks: Mapping[str, int]) -> pl.DataFrame:
        """The windows of the rows of a ``store``, without those that are closed by the ``clocks`` of its task."""
        closed_ms = clocks.get(f"{CLOSED}{store}")
        return self.windows_of(rows, self.open_from(None if closed_ms is None else closed_ms + self.windows.grace_ms))

    def windows_of(self, rows: pl.DataFrame, first: int, until: int = _NEVER) -> pl.DataFrame:
        """The windows from ``first`` to before ``until`` that ``rows`` of states are of, by start, then key."""
        if rows.is_empty():
            return rows
        starts = rows.get_column("window_start").dt.timestamp("ms").to_numpy()
        is_whole = rows.get_column("window_end").dt.timestamp("ms").to_numpy() - starts == self.windows.size_ms
        keys, ids = self._numbered(rows)
        states = picked(rows, [*self.fold.state, "_ts"])
        found: list[tuple[np.ndarray, np.ndarray, pl.DataFrame]] = []
        if not is_whole.all():
            of_slices = ~is_whole
            numbers = self.numbers(starts[of_slices])
            base = int(numbers.min())
            codes, merged = self._merged(
                (numbers - base) * keys.height + ids[of_slices], where(states, pl.Series(of_slices))
            )
            numbers, of_keys = np.divmod(codes, keys.height)
            found += self._rolled(numbers + base, of_keys, merged, first, until)
        if is_whole.any():
            numbers = starts // self.windows.advance_ms
            is_meant = is_whole & (numbers >= first) & (numbers < until)
            found.append((numbers[is_meant], ids[is_meant], states.filter(pl.Series(is_meant))))
        found = [each for each in found if len(each[0])]
        if not found:
            return rows[:0]
        numbers, ids = (np.concatenate([each[part] for each in found]) for part in (0, 1))
        base = int(numbers.min())
        codes, states = self._merged((numbers - base) * keys.height + ids, pl.concat([each[2] for each in found]))
        numbers, ids = np.divmod(codes, keys.height)
        starts = (numbers + base) * self.windows.advance_ms
        return self._rows(keys[ids].hstack(states), starts, starts + self.windows.size_ms)

    def _numbered(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, np.ndarray]:
        """The distinct keys in order, and the number that the key of each row has among them."""
        by = picked(rows, self.key)
        keys = by.unique().sort(self.key, nulls_last=False)
        return keys, numbers_of(by, keys.with_row_index("_id")).cast(pl.Int64).to_numpy()

    def _rolled(
        self, numbers: np.ndarray, ids: np.ndarray, states: pl.DataFrame, first: int, until: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray, pl.DataFrame]]:
        """Windows, the keys that they are of and their states, from one state per slice and key, by slice.

        Slices of all keys are merged at once, position by position; a stretch of time without any divides them.
        """
        apart = (np.flatnonzero(np.diff(numbers) >= self.per_window) + 1).tolist()
        for begin, end in zip([0, *apart], [*apart, len(numbers)], strict=True):
            window = max(first, int(self.first_windows(numbers[begin])))
            hops = min(until - 1, int(self.last_windows(numbers[end - 1]))) - window
            if hops < 0:
                continue
            length = hops * self.per_advance + self.per_window
            places = numbers[begin:end] - window * self.per_advance
            is_present = np.bincount(ids[begin:end]) > 0
            present, local = np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[ids[begin:end]]
            step = max(CELLS // length, 1)
            for low in range(0, len(present), step):
                of_keys = present[low : low + step]
                inside = np.flatnonzero((places >= 0) & (places < length) & (local >= low) & (local < low + step))
                at, of, merged = windows_of_cells(
                    self.fold,
                    in_order(states, begin + inside),
                    places[inside] * len(of_keys) + local[inside] - low,
                    (length, len(of_keys)),
                    self.per_window,
                    self.per_advance,
                )
                yield window + at, of_keys[of], merged

    def _merged(self, codes: np.ndarray, states: pl.DataFrame) -> tuple[np.ndarray, pl.DataFrame]:
        """One state per code, by code."""
        if not (codes[1:] > codes[:-1]).all():
            order = np.argsort(codes, kind="stable")
            codes, states = codes[order], states[order]
        while (is_again := codes[1:] == codes[:-1]).any():
            begins = np.flatnonzero(np.concatenate([[True], ~is_again]))
            places = np.arange(len(codes)) - np.repeat(begins, np.diff(begins, append=len(codes)))
            ones = np.flatnonzero(places % 2 == 0)
            has_other = np.append(is_again, False)[ones]
            others = pl.concat([states, states.clear(1)])[np.where(has_other, ones + 1, len(codes))]
            codes, states = codes[ones], self.fold.combine(states[ones], others)
        return codes, states


def slices_of(windows: TimeWindows, fold: ColumnFold, store: StoreSpec) -> Slices | None:
    """The slices of ``windows``; None if these do not overlap, or have too many."""
    slices = Slices(windows=windows, fold=fold, key=tuple(store.key)[:-2])
    return slices if 1 < slices.per_window <= MOST_PER_WINDOW else None
