"""The order in which a task takes rows, and how far it may go while more of them may come (PROTOCOL 30 and 31).

Every topic record has a key: its *merge time*, the greatest event time of its partition so far, and its *origin*, the
topic partition and the offset. Rows that a task forwards keep the key of the record that caused them. A task takes rows
by key; rows of one key, which come from one record on several ways, by source, by the sending task's partition, and
then as their sender forwarded them. Which rows are there belongs to ``weir.pipelines.tasks.epoch``, what may still come
to ``weir.pipelines.spark.frontiers``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
import polars as pl

from weir.state.frames import repeated, running_max, with_series, without

MERGE, ORIGIN = "_merge", "_origin"
"""The columns of a row's key: ms, and a number that ``origin`` gives."""
RANK_BITS, PARTITION_BITS, OFFSET_BITS = 8, 12, 43
OFFSETS = (1 << OFFSET_BITS) - 1
"""Of an origin. Where a program has more topics or partitions, or a topic more records, numbers repeat: the order is
still one order, but no longer that of topics and partitions."""
Key = tuple[int, int]
BEFORE_ALL: Key = (-(1 << 62), 0)


def origin(rank: int, partition: int, offset: int) -> int:
    """The origin of a record of a topic with this rank (``Topology.topic_ranks``)."""
    rank, partition = rank & (1 << RANK_BITS) - 1, partition & (1 << PARTITION_BITS) - 1
    return (rank << PARTITION_BITS | partition) << OFFSET_BITS | offset & OFFSETS


LAST_KEY = ("_last_merge", "_last_origin")
"""The clocks for the key of the last row that a task has taken, where it sends rows on."""


def merge_clock(topic: str) -> str:
    """The clock for the merge time of the task's partition of ``topic``."""
    return f"_merge:{topic}"


def past_clock(topic: str) -> str:
    """The clock for the merge time that it had when all of it had been read."""
    return f"_merged:{topic}"


@dataclass(frozen=True, order=True)
class Mark:
    """A place in the order. That of a source that has more: nothing of it comes before this."""

    merge_ms: int
    origin: int
    rank: int
    """The source's place among those of the task (``SubTopology.ranks``)."""
    partition: int

    @property
    def source(self) -> tuple[int, int]:
        return self.rank, self.partition


def topic_mark(merge_ms: int | None, topic_rank: int, partition: int, position: int, rank: int) -> Mark:
    """The mark of a topic partition, given its merge time (None if not known) and its next offset."""
    if merge_ms is None:
        return Mark(*BEFORE_ALL, rank, partition)
    return Mark(merge_ms, origin(topic_rank, partition, position), rank, partition)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one source that came together, in the order in which they were read or sent."""

    input: str
    """The topic or edge."""
    rank: int
    partition: int
    frame: pl.DataFrame
    """With the columns of the key."""
    batch: str = ""
    """Rows that one task sent in one epoch on several edges have the same; ``_offset`` says what came first."""

    @property
    def source(self) -> tuple[int, int]:
        return self.rank, self.partition


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Rows in the order in which a task takes them."""

    frames: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """By topic or edge, without the columns of the key."""
    places: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of each row of a frame, its turn among the rows of all, from 0."""
    merge_ms: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """By turn, like ``origins``."""
    origins: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.merge_ms)

    def __getitem__(self, turns: slice) -> Turns:
        """The rows with these turns, which must follow one another."""
        start, stop, _ = turns.indices(len(self))
        cuts = {name: np.searchsorted(places, (start, stop)) for name, places in self.places.items()}
        return Turns(
            frames={name: frame[slice(*cuts[name])] for name, frame in self.frames.items()},
            places={name: places[slice(*cuts[name])] - start for name, places in self.places.items()},
            merge_ms=self.merge_ms[start:stop],
            origins=self.origins[start:stop],
        )

    def without(self, turns: np.ndarray) -> Turns:
        """The rows but those with these turns."""
        kept = np.ones(len(self), np.bool_)
        kept[turns] = False
        left = np.cumsum(kept) - 1
        return Turns(
            frames={name: frame.filter(kept[self.places[name]]) for name, frame in self.frames.items()},
            places={name: left[places[kept[places]]] for name, places in self.places.items()},
            merge_ms=self.merge_ms[kept],
            origins=self.origins[kept],
        )

    def only(self, turns: np.ndarray) -> Turns:
        """The rows with these turns."""
        return self.without(np.setdiff1d(np.arange(len(self)), turns))


class Arrivals:
    """The rows that have reached a task, in the order of each source, and how many of each the task takes."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(parts)
        self._names = list(dict.fromkeys(part.input for part in self.parts))
        frames: dict[str, list[pl.DataFrame]] = {name: [] for name in self._names}
        begins, heights = [], dict.fromkeys(self._names, 0)
        for part in self.parts:
            frames[part.input].append(without(part.frame, MERGE, ORIGIN))
            begins.append(heights[part.input])
            heights[part.input] += part.frame.height
        self._frames = {name: pl.concat(found, rechunk=True) for name, found in frames.items()}
        numbered = sorted(enumerate(self.parts), key=lambda numbered: numbered[1].source)
        self._sources = {
            source: _Source.of(
                [(number, part, begins[number], self._names.index(part.input)) for number, part in found]
            )
            for source, found in groupby(numbered, key=lambda numbered: numbered[1].source)
        }
        self._taken = {source: len(rows.merge_ms) for source, rows in self._sources.items()}

    def wait_for(self, marks: Collection[Mark]) -> None:
        """Take only rows that lie before the marks of all other sources."""
        for source, rows in self._sources.items():
            if bound := min((mark for mark in marks if mark.source != source), default=None):
                self._taken[source] = min(self._taken[source], rows.before(bound, source))

    def take(self, turns: int) -> None:
        """Take only the first of the rows that could be taken."""
        owners = np.repeat(np.arange(len(self._sources)), list(self._taken.values()))
        counts = np.bincount(owners[self._order][:turns], minlength=len(self._sources))
        self._taken = {source: int(count) for source, count in zip(self._sources, counts, strict=True)}

    def taken_of(self) -> list[int]:
        """How many rows of each part the task takes; they are its first."""
        counts = np.zeros(len(self.parts), np.int64)
        for source, rows in self._sources.items():
            counts += np.bincount(rows.parts[: self._taken[source]], minlength=len(self.parts))
        return counts.tolist()

    @property
    def turns(self) -> Turns:
        """The rows that the task takes."""
        order = self._order
        inputs, rows, merge_ms, origins = (
            self._column(name)[order] for name in ("inputs", "rows", "merge_ms", "origins")
        )
        frames, places = {}, {}
        for number, name in enumerate(self._names):
            found = np.flatnonzero(inputs == number) if len(self._names) > 1 else np.arange(len(rows))
            if len(found):
                frames[name], places[name] = _gathered(self._frames[name], rows[found]), found
        return Turns(frames=frames, places=places, merge_ms=merge_ms, origins=origins)

    @property
    def _order(self) -> np.ndarray | slice:
        """What puts the rows that could be taken, source by source, in turn; nothing to do for a single source."""
        if len(self._sources) < 2:
            return slice(None)
        return np.lexsort((self._column("origins"), self._column("merge_ms")))

    def _column(self, name: str) -> np.ndarray:
        """One column of the rows that could be taken, source by source."""
        found = [getattr(rows, name)[: self._taken[source]] for source, rows in self._sources.items()]
        return np.concatenate(found) if len(found) > 1 else found[0] if found else np.empty(0, np.int64)


@dataclass(frozen=True)
class _Source:
    """The rows of one source in its order. Their keys never fall: none is taken before one that came earlier."""

    parts: np.ndarray
    inputs: np.ndarray
    rows: np.ndarray
    merge_ms: np.ndarray
    origins: np.ndarray

    @classmethod
    def of(cls, parts: Sequence[tuple[int, Part, int, int]]) -> _Source:
        """From parts in order, each with its number, its first row in the input's frame, and the input's number."""
        batches = []
        for batch, found in groupby(parts, key=lambda one: one[1].batch):
            together = list(found)
            columns = [
                np.concatenate(column) if len(together) > 1 else column[0]
                for column in zip(*(_columns(*one) for one in together), strict=True)
            ]
            if batch and len(together) > 1:
                places = np.concatenate([part.frame.get_column("_offset").to_numpy() for _, part, _, _ in together])
                order = np.argsort(places, kind="stable")
                columns = [column[order] for column in columns]
            batches.append(columns)
        if len(batches) > 1:
            numbers, inputs, rows, merge_ms, origins = (np.concatenate(column) for column in zip(*batches, strict=True))
        else:
            ((numbers, inputs, rows, merge_ms, origins),) = batches
        return cls(numbers, inputs, rows, *running(merge_ms, origins))

    def before(self, mark: Mark, source: tuple[int, int]) -> int:
        """How many of the rows, which are those of ``source``, lie before ``mark``."""
        start, stop = (int(np.searchsorted(self.merge_ms, mark.merge_ms, side=side)) for side in ("left", "right"))
        side = "right" if source < mark.source else "left"
        return start + int(np.searchsorted(self.origins[start:stop], mark.origin, side=side))  # type: ignore[call-overload]


def running(merge_ms: np.ndarray, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The greatest key up to each row."""
    rises, stays = merge_ms[1:] > merge_ms[:-1], merge_ms[1:] == merge_ms[:-1]
    if bool(np.all(rises | (stays & (origins[1:] >= origins[:-1])))):
        return merge_ms, origins
    order = np.lexsort((origins, merge_ms))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    greatest = order[np.maximum.accumulate(ranks)]
    return merge_ms[greatest], origins[greatest]


def with_keys(frame: pl.DataFrame, rank: int, partition: int, merge_ms: int | None = None) -> pl.DataFrame:
    """Records of a topic partition, in order, with keys; ``merge_ms`` is its merge time before them."""
    times = running_max(frame.get_column("_ts").to_numpy(), merge_ms)
    offsets = frame.get_column("_offset").to_numpy() & OFFSETS
    return with_series(frame, pl.Series(MERGE, times), pl.Series(ORIGIN, offsets | origin(rank, partition, 0)))


def last_key(clocks: Mapping[str, int]) -> Key:
    """The key of the last row that a task has taken; before all if it has taken none."""
    merge_ms, origins = (clocks.get(name, part) for name, part in zip(LAST_KEY, BEFORE_ALL, strict=True))
    return merge_ms, origins


def sent(rows: pl.DataFrame, turns: Turns, causes: np.ndarray, partition: int, last: Key) -> pl.DataFrame:
    """``rows`` as a task with the number ``partition`` sends them to others: in the order of the records that caused
    them, with that turn as their place, and with the keys of those records.

    ``causes`` are the ``_offset`` of the rows taken, by turn. What no record caused has the key ``last``, that of the
    last row taken.
    """
    offsets = rows.get_column("_offset").to_numpy()
    if len(turns) == 0:
        return with_series(
            rows,
            repeated("_partition", partition, rows.height, np.int32),
            *(repeated(name, part, rows.height, np.int64) for name, part in zip((MERGE, ORIGIN), last, strict=True)),
        )
    if not np.array_equal(offsets, causes):
        at = np.minimum(np.searchsorted(causes, offsets), len(causes) - 1)
        at[offsets < 0] = len(causes) - 1
        if np.any(at[1:] < at[:-1]):
            order = np.argsort(at, kind="stable")
            rows, at = rows[order], at[order]
        turns = replace(turns, merge_ms=turns.merge_ms[at], origins=turns.origins[at])
        causes = causes[at]
    return with_series(
        rows,
        repeated("_partition", partition, rows.height, np.int32),
        pl.Series("_offset", causes),
        pl.Series(MERGE, turns.merge_ms),
        pl.Series(ORIGIN, turns.origins),
    )


def _columns(number: int, part: Part, begin: int, input_number: int) -> tuple[np.ndarray, ...]:
    height = part.frame.height
    return (
        np.full(height, number, np.int64),
        np.full(height, input_number, np.int64),
        np.arange(begin, begin + height),
        part.frame.get_column(MERGE).to_numpy(),
        part.frame.get_column(ORIGIN).to_numpy(),
    )


def _gathered(frame: pl.DataFrame, rows: np.ndarray) -> pl.DataFrame:
    """The rows at ``rows``; a slice where they follow one another."""
    if len(rows) == rows[-1] - rows[0] + 1 and bool(np.all(rows[1:] > rows[:-1])):
        return frame if len(rows) == frame.height else frame[int(rows[0]) : int(rows[-1]) + 1]
    return frame[pl.Series(rows.astype(np.uint32))]
