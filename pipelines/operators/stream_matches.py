"""Which records of two streams match: equal keys, times close enough, and the earlier one still held when the later one
arrives. What becomes of the pairs belongs to ``stream_join``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from weir.pipelines.operators.join_windows import JoinWindows
from weir.state.frames import picked

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Keeps the hashes of a key in neighbouring buckets apart; products wrap."""


@dataclass(frozen=True)
class Side:
    """A side's records of one batch that have key and value, after the earlier records that it holds."""

    rows: pl.DataFrame
    """Key columns, pair values, ``_ts``, ``_seq``, ``_pos`` (the position in the batch, -1 for earlier records)."""
    kept: int
    """How many of ``rows`` are earlier ones; they come first."""
    clock: np.ndarray
    """Stream time of the side's store after each of its records, by position."""
    positions: np.ndarray
    """The positions of its records, ascending."""
    first_clock: int

    def clock_at(self, positions: np.ndarray) -> np.ndarray:
        """The store's stream time when the record at each position arrives."""
        found = np.searchsorted(self.positions, positions) - 1
        return np.where(found >= 0, self.clock[found] if len(self.clock) else 0, self.first_clock)

    def numbers(self, name: str) -> np.ndarray:
        """A column of ``rows``."""
        return self.rows.get_column(name).to_numpy()


@dataclass(frozen=True)
class Matches:
    """Pairs of records, in any order; all arrays are as long as there are pairs."""

    left: np.ndarray
    """Their rows on the left side."""
    right: np.ndarray
    position: np.ndarray
    """The position of the later one."""
    is_left_later: np.ndarray


def matches(left: Side, right: Side, key: list[str], windows: JoinWindows, retention_ms: int) -> Matches:
    """The pairs of which at least one record is of this batch; each side is held for ``retention_ms``."""
    found, other = _candidates(left, right, key, windows)
    times, other_times = left.numbers("_ts")[found], right.numbers("_ts")[other]
    positions, other_positions = left.numbers("_pos")[found], right.numbers("_pos")[other]
    is_left_later, later = positions > other_positions, np.maximum(positions, other_positions)
    clock = np.where(is_left_later, right.clock_at(later), left.clock_at(later))
    distance = other_times - times
    is_close = (distance >= -windows.before_ms) & (distance <= windows.after_ms)
    is_met = is_close & (np.where(is_left_later, other_times, times) > clock - retention_ms)
    for name in key:  # hashes may be equal by chance
        mine, its = left.rows.get_column(name).gather(found), right.rows.get_column(name).gather(other)
        is_met &= (mine.eq_missing(its) if mine.null_count() or its.null_count() else mine == its).to_numpy()
    if not is_met.all():
        found, other, later, is_left_later = (each[is_met] for each in (found, other, later, is_left_later))
    return Matches(found, other, later, is_left_later)


def _candidates(left: Side, right: Side, key: list[str], windows: JoinWindows) -> tuple[np.ndarray, np.ndarray]:
    """Rows of both sides with the same hash, of which one is of this batch, close enough or nearly so.

    Time is cut into buckets as long as a window, so that a record's window is in one or two of them.
    """
    width = windows.before_ms + windows.after_ms + 1
    times, other_times = left.numbers("_ts"), right.numbers("_ts")
    first, last = (times - windows.before_ms) // width, (times + windows.after_ms) // width
    hashes, its_hashes = (picked(side.rows, key).hash_rows().to_numpy() for side in (left, right))
    bucketed = its_hashes + (other_times // width).view(np.uint64) * _SPREAD

    def meet(mine: np.ndarray, its: np.ndarray) -> pl.DataFrame:
        in_two = mine[first[mine] != last[mine]]
        rows = np.concatenate([mine, in_two])
        buckets = np.concatenate([first[mine], last[in_two]])
        one = pl.DataFrame({"_bucket": hashes[rows] + buckets.view(np.uint64) * _SPREAD, "_l": rows})
        return one.join(pl.DataFrame({"_bucket": bucketed[its], "_r": its}), on="_bucket")

    mine, its = np.arange(len(times)), np.arange(len(other_times))
    parts = [meet(mine[left.kept :], its), meet(mine[: left.kept], its[right.kept :])]
    found, other = (np.concatenate([part.get_column(name).to_numpy() for part in parts]) for name in ("_l", "_r"))
    return found, other
