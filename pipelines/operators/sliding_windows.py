"""Sliding windows: every distinct set of records of a key that lie within the time difference.

Each record opens the window that ends with it, and the window that starts a millisecond after it if any record lies in
that one. The rules are those of Kafka Streams' ``KStreamSlidingWindowAggregate``; the states and the store belong to
``data_windows``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from datetime import timedelta

import polars as pl

from weir.pipelines.arguments import not_negative_ms
from weir.pipelines.operators.data_windows import Batch, Trace
from weir.pipelines.operators.fold import ColumnFold, Fold
from weir.pipelines.operators.sliding_columns import keys_to_walk, windows_of_rows
from weir.pipelines.operators.states import States
from weir.pipelines.operators.windows import window_ms


@dataclass
class _KeyWindows:
    """The windows of one key by start: state, and the greatest timestamp in the window."""

    starts: list[int] = field(default_factory=list)
    held: dict[int, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    """Those that a record reached while they were open."""

    def put(self, start: int, state: int, newest: int, is_seen: bool) -> None:
        if start not in self.held:
            insort(self.starts, start)
        self.held[start] = state, newest
        if is_seen:
            self.seen.add(start)

    def remove(self, start: int) -> None:
        if self.held.pop(start, None) is not None:
            self.starts.remove(start)
            self.seen.discard(start)


@dataclass(frozen=True, kw_only=True)
class SlidingWindows:
    """Windows ``[start, start + difference]``, both ends included, defined by the records; none starts before 1970.

    A window is closed to a record if it ends before stream time minus grace. A record outside every open window is late
    and leaves no trace; a record in an open window also counts in windows that open later and overlap it. Null keys and
    null values are dropped. There is no default grace.

    >>> builder = StreamsBuilder()
    >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
    >>> minute = SlidingWindows.of_time_difference_and_grace(timedelta(minutes=1), timedelta(seconds=5))
    >>> bursts = clicks.group_by_key().windowed_by(minute).count("per_minute").filter(col("count") >= 3)
    >>> bursts.to_stream().to_delta("bursts")
    >>> with TopologyTestDriver(Application("shop", builder)) as driver:
    ...     clicks = driver.create_input_topic("clicks")
    ...     for second in (70, 90, 110, 300):
    ...         clicks.pipe_input("ann", "home", timestamp_ms=1_000 * second)
    ...     [row["count"] for row in driver.create_output_table("bursts").read_rows() if row["count"]]
    [3]
    """

    difference_ms: int
    grace_ms: int

    @classmethod
    def of_time_difference_with_no_grace(cls, difference: timedelta) -> SlidingWindows:
        """Windows of records at most ``difference`` apart that close once stream time is after their end.

        >>> SlidingWindows.of_time_difference_with_no_grace(timedelta(minutes=1))
        SlidingWindows(difference_ms=60000, grace_ms=0)
        """
        return cls.of_time_difference_and_grace(difference, timedelta(0))

    @classmethod
    def of_time_difference_and_grace(cls, difference: timedelta, grace: timedelta) -> SlidingWindows:
        """Windows of records at most ``difference`` apart that admit records until ``grace`` after their end.

        >>> SlidingWindows.of_time_difference_and_grace(timedelta(minutes=1), timedelta(seconds=5))
        SlidingWindows(difference_ms=60000, grace_ms=5000)
        """
        return cls(difference_ms=window_ms(difference, "time difference"), grace_ms=not_negative_ms(grace, "grace"))

    @property
    def closes_after_ms(self) -> int:
        """A window is closed once stream time reaches its end plus this.

        Kafka Streams' suppression forwards it a millisecond earlier, when a record can still change it.
        """
        return self.grace_ms + 1

    @property
    def kept_ms(self) -> int:
        """How long a window's state is needed after its end: until the window after its last record is closed."""
        return self.difference_ms + self.grace_ms + 2

    @property
    def least_retention_ms(self) -> int:
        """The shortest retention that a program may set, as in Kafka Streams."""
        return 2 * self.difference_ms + self.grace_ms

    @property
    def takes_null_values(self) -> bool:
        return False

    @property
    def ends_are_times(self) -> bool:
        return False

    @property
    def keep_bounds(self) -> bool:
        return True

    def reach_ms(self) -> tuple[int, int]:
        return self.difference_ms, 1

    def by_columns(self, batch: Batch, fold: Fold) -> tuple[pl.DataFrame, pl.DataFrame, Batch]:
        """All windows of keys whose records come in the order of their times and are not late."""
        nothing = batch.rows.clear()
        if not isinstance(fold, ColumnFold):
            return nothing, nothing, batch
        in_time = batch.rows.get_column("_ts") >= batch.stream_time - self.grace_ms
        batch, left = batch.parted(keys_to_walk(batch.rows, in_time, batch.found, self.difference_ms))
        if batch.rows.is_empty():
            return nothing, nothing, left
        return windows_of_rows(batch.rows, batch.found, fold, self.difference_ms), nothing, left

    def trace(self, batch: Batch, states: States) -> Trace:
        walk = _Walk(self.difference_ms, states)
        windows: dict[int, _KeyWindows] = {}
        for row, (key, start, newest, is_seen) in enumerate(
            zip(
                batch.found.get_column("_key").to_list(),
                batch.found.get_column("window_start").dt.timestamp("ms").to_list(),
                batch.found.get_column("_ts").to_list(),
                batch.found.get_column("_seen").to_list(),
                strict=True,
            )
        ):
            windows.setdefault(key, _KeyWindows()).put(start, states.stored(row), newest, is_seen)
        for record, (key, time, stream_time) in enumerate(
            zip(
                batch.rows.get_column("_key").to_list(),
                batch.rows.get_column("_ts").to_list(),
                batch.stream_time.to_list(),
                strict=True,
            )
        ):
            walk.open_from = stream_time - self.grace_ms - self.difference_ms
            if time < walk.open_from:
                start = max(0, time - self.difference_ms)
                walk.trace.late.append((record, start, start + self.difference_ms))
                continue
            kept_from = walk.open_from - self.difference_ms - 1
            walk.step(record, key, time, kept_from, windows.setdefault(key, _KeyWindows()))
        return walk.trace


class _Walk:
    """Takes record by record; ``open_from`` is the earliest start of a window that is open to the current record.

    Closed windows live on, unseen, including records that came too late for them but are in another window: windows
    that open later derive from these.
    """

    def __init__(self, difference_ms: int, states: States) -> None:
        self.difference_ms, self.states, self.trace, self.open_from = difference_ms, states, Trace(), 0

    def step(self, record: int, key: int, time: int, kept_from: int, windows: _KeyWindows) -> None:
        """Put one record into its windows if one of them is open; windows that start before ``kept_from`` are ignored.

        It is late for the window that ends with it if that is closed, and for each closed one that was open once.
        """
        difference, is_early = self.difference_ms, time < self.difference_ms
        own_start = max(0, time - difference)
        lower = bisect_left(windows.starts, max(0, time - 2 * difference, kept_from))
        near = windows.starts[lower : bisect_right(windows.starts, time + 1)]
        left: int | None = None  # the newest state of the records before this one
        right: tuple[int, int] | None = None  # a state with the records after this one, and its newest time
        previous: int | None = None  # the time of the record before this one
        for start in near:
            state, newest = windows.held[start]
            if start <= own_start and newest < time:
                left, previous = state, newest
            elif start <= time:
                right = state, newest
        over = near[bisect_left(near, own_start) : bisect_right(near, time)]
        has_own = bool(over) and over[0] == own_start
        meets = previous is not None and own_start <= previous
        after = previous + 1 if previous is not None and meets and previous + 1 not in windows.held else own_start
        if own_start < self.open_from:
            self.trace.late += [
                (record, start, start + difference)
                for start in (over if has_own else [own_start, *over])
                if start < self.open_from and (start == own_start or start in windows.seen)
            ]
            if max([after, *over[-1:]]) < self.open_from:
                return
        for start in over[1:] if is_early and has_own else over:
            self._fold(record, key, windows, start, *windows.held[start], time)
        if is_early:
            self._open_right(record, key, windows, time, right)
        if after != own_start:
            self._fold(record, key, windows, after, None, time, time)
        if not has_own:
            self._fold(record, key, windows, own_start, left if meets else None, time, time)
        elif is_early:
            self._fold(record, key, windows, own_start, *windows.held[own_start], time)
        if not is_early:
            self._open_right(record, key, windows, time, right)

    def _open_right(
        self, record: int, key: int, windows: _KeyWindows, time: int, right: tuple[int, int] | None
    ) -> None:
        """Open the window of the records after this one, if there are any and it does not exist yet."""
        if right is not None and right[1] > time and time + 1 not in windows.held:
            windows.put(time + 1, *right, True)
            self.trace.put(record, (key, time + 1, time + 1 + self.difference_ms), right[0])

    def _fold(
        self, record: int, key: int, windows: _KeyWindows, start: int, state: int | None, newest: int, time: int
    ) -> None:
        window = (key, start, start + self.difference_ms)
        folded = self.states.fold(state, record)
        if start >= self.open_from:
            self.trace.put(record, window, folded)
        elif not self.states.is_gone(folded):
            self.trace.unseen[window] = record, folded
        if not self.states.is_gone(folded):
            windows.put(start, folded, max(newest, time), start >= self.open_from)
        elif start >= self.open_from:
            windows.remove(start)
