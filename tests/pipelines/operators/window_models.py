"""Models of windowed aggregations that take record by record, after Kafka Streams' processors, with sets of records.

A record is given as a bit, a key (never null) and its time. Windows are kept with all their records, nothing expires,
and nothing is known of batches. An update is ``(key, start, end, bits, time)``, with None for a tombstone; a record is
late for ``(key, start, end)``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

Update = tuple[str, int, int, int | None, int]
Bounds = tuple[str, int, int]


@dataclass
class Model:
    """What all windows share: stream time, and final results by end, then key.

    ``grace`` and ``closes_after_grace`` may be set anew between two records: what was closed stays closed.
    """

    grace: int
    closes_after_grace: int
    """How long after its grace a window is closed."""
    stream_time: int = -1
    closed_upto: int = -(1 << 62)
    """Windows that end by this are closed."""
    newest: dict[Bounds, tuple[int, int]] = field(default_factory=dict)

    def take(self, bit: int, key: str, time: int) -> tuple[list[Update], list[Bounds], list[Update]]:
        """The updates of one record, the windows that it is late for, and the final results that it releases."""
        self.stream_time = max(self.stream_time, time)
        self.closed_upto = max(self.closed_upto, self.stream_time - self.grace - self.closes_after_grace)
        updates, late = self.process(bit, key, time)
        for name, start, end, bits, at in updates:
            self.newest.pop((name, start, end), None)
            if bits is not None:
                self.newest[name, start, end] = bits, at
        over = [bounds for bounds in self.newest if bounds[2] <= self.closed_upto]
        final = [(*bounds, *self.newest.pop(bounds)) for bounds in sorted(over, key=lambda each: (each[2], each[0]))]
        return updates, late, final

    def process(self, bit: int, key: str, time: int) -> tuple[list[Update], list[Bounds]]:
        raise NotImplementedError


def bits_of(records: dict[int, int]) -> int:
    return sum(records)


class Times(Model):
    """Tumbling and hopping windows, after ``KStreamWindowAggregate``."""

    def __init__(self, size: int, advance: int, grace: int) -> None:
        super().__init__(grace, closes_after_grace=0)
        self.size, self.advance = size, advance
        self.windows: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)

    def process(self, bit: int, key: str, time: int) -> tuple[list[Update], list[Bounds]]:
        updates: list[Update] = []
        late: list[Bounds] = []
        for start in range(0, time + 1, self.advance):
            end = start + self.size
            if time >= end:
                continue
            if end <= self.closed_upto:
                late.append((key, start, end))
                continue
            records = self.windows[key, start]
            records[bit] = time
            updates.append((key, start, end, bits_of(records), max(records.values())))
        return updates, late


class Sessions(Model):
    """Sessions, after ``KStreamSessionWindowAggregate``, except that a closed session is never merged again."""

    def __init__(self, gap: int, grace: int) -> None:
        super().__init__(grace, closes_after_grace=gap + 1)
        self.gap = gap
        self.sessions: dict[str, list[dict[int, int]]] = defaultdict(list)

    def process(self, bit: int, key: str, time: int) -> tuple[list[Update], list[Bounds]]:
        open_from = self.closed_upto + 1
        met = [
            records
            for records in self.sessions[key]
            if max(records.values()) >= open_from
            and min(records.values()) - self.gap <= time <= max(records.values()) + self.gap
        ]
        met.sort(key=lambda records: max(records.values()))
        merged = {number: at for records in (*met, {bit: time}) for number, at in records.items()}
        start, end = min(merged.values()), max(merged.values())
        if end < open_from:
            return [], [(key, start, end)]
        self.sessions[key] = [records for records in self.sessions[key] if records not in met] + [merged]
        replaced = [(key, min(records.values()), max(records.values())) for records in met] if start < end else []
        return [
            *((*bounds, None, bounds[2]) for bounds in replaced),
            (key, start, end, bits_of(merged), end),
        ], []


@dataclass
class SlidingWindow:
    records: dict[int, int] = field(default_factory=dict)
    was_open: bool = False
    """Whether a record came while the window was open."""

    @property
    def newest(self) -> int:
        return max(self.records.values())


class Sliding(Model):
    """Sliding windows, after ``KStreamSlidingWindowAggregate``, whose rules hold as they are while nothing is late.

    Where it would pass over a closed window, a record goes into it all the same, unseen, so that windows made of it
    later hold the record. One that no open window takes leaves nothing, not even the window after it. It is late for
    its own window and for those that were open once; Kafka Streams also counts the one after the record before it.
    Updates have its order, too, except for windows that begin at zero.
    """

    def __init__(self, difference: int, grace: int) -> None:
        super().__init__(grace, closes_after_grace=1)
        self.difference = difference
        self.windows: dict[str, dict[int, SlidingWindow]] = defaultdict(dict)

    def process(self, bit: int, key: str, time: int) -> tuple[list[Update], list[Bounds]]:
        difference, windows = self.difference, self.windows[key]
        close_time, own = self.closed_upto + 1, max(0, time - difference)
        if time + 1 + difference <= close_time:
            return [], [(key, own, own + difference)]
        left = right = previous = None
        for start in sorted(windows):
            if not max(0, time - 2 * difference) <= start <= time:
                continue
            found = windows[start]
            if start == own:
                previous = found.newest if found.newest < time else previous
                right = found if time < difference and found.newest > time else right
            elif start + difference < time:
                left, previous = found, found.newest
            else:
                right = found
        takers = {start: windows[start].records for start in sorted(windows) if start <= time <= start + difference}
        if previous is not None and previous + 1 + difference >= time and previous + 1 not in windows:
            takers[previous + 1] = {}
        if own not in windows:
            takers[own] = left.records if left is not None and previous is not None and previous >= own else {}
        late = [
            (key, start, start + difference)
            for start in takers
            if start + difference < close_time and (start == own or (start in windows and windows[start].was_open))
        ]
        if all(start + difference < close_time for start in takers):
            return [], late
        updates: list[Update] = []
        after = None
        if right is not None and right.newest > time and time + 1 not in windows:
            after = windows[time + 1] = SlidingWindow(dict(right.records), True)
        for start, records in takers.items():
            window = windows.setdefault(start, SlidingWindow())
            window.records = {**records, bit: time}
            if start + difference >= close_time:
                window.was_open = True
                updates.append((key, start, start + difference, bits_of(window.records), window.newest))
        if after is not None:
            updates.append((key, time + 1, time + 1 + difference, bits_of(after.records), after.newest))
        return updates, late
