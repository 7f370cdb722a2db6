"""After a repartition, rows of several tasks meet in an order that depends on how epochs were cut.

Whatever the cut, results that do not depend on order are the same. Where lateness matters, each record is either in its
window or late for it, never both and never neither.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise, zip_longest

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.pipelines.memory_session import MemorySession
from weir import (
    BufferConfig,
    Count,
    Json,
    KGroupedStream,
    KTable,
    Max,
    Mean,
    Min,
    SessionWindows,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    UnlimitedWindows,
)
from weir.pipelines.tasks.order import Arrivals, Part, with_keys
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology import Topology

PARTITIONS, END_MS = 2, 1_000_000


@dataclass(frozen=True)
class Event:
    amount: int
    word: str


Record = tuple[int, int, str]
"""Time in ms, amount, and the word that becomes the key."""
Epochs = list[tuple[list[Record], ...]]
"""For each epoch, the records that it takes from each partition."""

RECORDS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.sampled_from("xyz")), max_size=15)
CUTS = st.lists(st.integers(0, 15), max_size=4)
BOTH = st.tuples(RECORDS, RECORDS)
SCHEDULE = st.tuples(CUTS, CUTS)
ALL = dict(n=Count(), total=Sum("amount"), low=Min("amount"), high=Max("amount"), mean=Mean("amount"))


def cut(partitions: Sequence[list[Record]], schedule: Sequence[list[int]]) -> Epochs:
    pieces = []
    for records, cuts in zip(partitions, schedule, strict=True):
        bounds = [0, *sorted(min(each, len(records)) for each in cuts), len(records)]
        pieces.append([records[start:end] for start, end in pairwise(bounds)])
    return list(zip_longest(*pieces, fillvalue=[]))


def build(program: Callable[[KGroupedStream], KTable]) -> Topology:
    builder = StreamsBuilder()
    program(builder.stream("events", key=String("user"), value=Json(Event)).group_by("word")).to_delta("out")
    return builder.build()


@dataclass
class Outcome:
    """The output after all epochs and the end of the input."""

    tables: dict[str, list[dict]] = field(default_factory=lambda: defaultdict(list))
    late_records: int = 0

    def newest(self) -> dict[tuple, dict]:
        """The current rows of ``out``, by key and window."""
        found = {(row["word"], row.get("window_start"), row.get("window_end")): row for row in self.tables["out"]}
        return {key: row for key, row in found.items() if not row["_deleted"]}


def run(topology: Topology, epochs: Epochs) -> Outcome:
    """Run the tasks of both sub-topologies in each epoch; rows between them are ordered as blobs are."""
    sources, targets = (TaskProcessor(sub_topology) for sub_topology in topology.sub_topologies)
    sessions, clocks = [MemorySession() for _ in range(PARTITIONS)], [dict[str, int]() for _ in range(PARTITIONS)]
    offsets, outcome = Counter[int](), Outcome()
    for pieces in [*epochs, None]:
        sent: list[Part] = []
        for partition, records in enumerate(pieces or ()):
            if records:
                arrived = with_keys(frame(records, partition, offsets), 0, partition)
                turns = Arrivals([Part(input="events", rank=0, partition=partition, frame=arrived)]).turns
                moved = sources.run(turns, MemorySession(), {}, 0, partition=partition)
                sent += [
                    Part(input=name, rank=0, partition=partition, frame=rows, batch="epoch")
                    for name, rows in moved.edges.items()
                ]
        for target in range(PARTITIONS):
            edges = {edge.name: edge for edge in topology.edges}
            arrived = Arrivals(
                replace(part, frame=part.frame.filter(edges[part.input].partition_of(part.frame, PARTITIONS) == target))
                for part in sent
            )
            output = targets.run(
                arrived.turns, sessions[target], clocks[target], 0, end_time_ms=None if pieces else END_MS
            )
            clocks[target] = dict(output.clocks)
            outcome.late_records += output.counts.get("late_records", 0)
            for table, found in output.sinks.items():
                outcome.tables[table] += found.to_dicts()
    return outcome


def frame(records: Sequence[Record], partition: int, offsets: Counter[int]) -> pl.DataFrame:
    first = offsets[partition]
    offsets[partition] += len(records)
    return pl.DataFrame(
        [
            (f"user-{amount}", amount, word, time_ms, partition, first + index, False)
            for index, (time_ms, amount, word) in enumerate(records)
        ],
        orient="row",
        schema={
            "user": pl.String,
            "amount": pl.Int64,
            "word": pl.String,
            "_ts": pl.Int64,
            "_partition": pl.Int32,
            "_offset": pl.Int64,
            "_deleted": pl.Boolean,
        },
    )


def milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


LONG = timedelta(milliseconds=1_000)
COMMUTATIVE = {
    "keys": lambda grouped: grouped.agg("s", **ALL),
    "cogroup": lambda grouped: (
        grouped.cogroup(n=Count(), total=Sum("amount"))
        .cogroup(grouped, low=Min("amount"), high=Max("amount"), mean=Mean("amount"))
        .agg("s")
    ),
    "unlimited windows": lambda grouped: grouped.windowed_by(UnlimitedWindows.of()).agg("s", **ALL),
    "windows open to all": lambda grouped: grouped.windowed_by(
        TimeWindows.of_size_and_grace(timedelta(milliseconds=10), LONG).advance_by(timedelta(milliseconds=4))
    ).agg("s", **ALL),
    "sessions open to all": lambda grouped: grouped.windowed_by(
        SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=5), LONG)
    ).agg("s", **ALL),
    "final results open to all": lambda grouped: (
        grouped.windowed_by(TimeWindows.of_size_and_grace(timedelta(milliseconds=10), LONG))
        .agg("s", **ALL)
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMUTATIVE)
@settings(max_examples=examples(12))
@given(partitions=BOTH, schedules=st.tuples(SCHEDULE, SCHEDULE))
def test_results_that_do_not_depend_on_order_are_the_same_however_epochs_were_cut(name, partitions, schedules):
    topology = build(COMMUTATIVE[name])
    one, other = (run(topology, cut(partitions, schedule)) for schedule in schedules)
    assert [without_place(row) for row in ordered(one)] == [without_place(row) for row in ordered(other)]
    assert one.late_records == other.late_records == 0
    counted = Counter(word for records in partitions for _, _, word in records)
    if name != "windows open to all":  # which contain each record several times
        assert Counter({word: sum(row["n"] for row in rows) for word, rows in by_word(one).items()}) == counted


def ordered(outcome: Outcome) -> Iterable[dict]:
    return (row for _, row in sorted(outcome.newest().items()))


def without_place(row: dict) -> dict:
    return {name: value for name, value in row.items() if name not in ("_seq", "_partition", "_offset")}


def by_word(outcome: Outcome) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in outcome.newest().values():
        found.setdefault(row["word"], []).append(row)
    return found


SIZE_MS, ADVANCE_MS = 10, 4
TUMBLING = TimeWindows.of_size_and_grace(timedelta(milliseconds=SIZE_MS), timedelta(milliseconds=3))
HOPPING = TUMBLING.advance_by(timedelta(milliseconds=ADVANCE_MS))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def kept(grouped: KGroupedStream, windows: TimeWindows | SessionWindows) -> KTable:
    return grouped.windowed_by(windows, late_to=lambda late: late.to_delta("late")).agg(
        "s", n=Count(), total=Sum("amount")
    )


WINDOWS = {
    "tumbling": (lambda grouped: kept(grouped, TUMBLING), SIZE_MS),
    "final tumbling": (lambda grouped: kept(grouped, TUMBLING).suppress(FINAL), SIZE_MS),
    "hopping": (lambda grouped: kept(grouped, HOPPING), ADVANCE_MS),
    "final hopping": (lambda grouped: kept(grouped, HOPPING).suppress(FINAL), ADVANCE_MS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WINDOWS)
@settings(max_examples=examples(12))
@given(partitions=BOTH, schedule=SCHEDULE)
def test_each_record_is_in_its_window_or_late_for_it(name, partitions, schedule):
    program, advance_ms = WINDOWS[name]
    outcome = run(build(program), cut(partitions, schedule))
    found: Counter[tuple[str, int, str]] = Counter()
    for (word, start, _), row in outcome.newest().items():
        found[word, milliseconds(start), "n"] += row["n"]
        found[word, milliseconds(start), "total"] += row["total"]
    for row in outcome.tables["late"]:
        found[row["word"], milliseconds(row["window_start"]), "n"] += 1
        found[row["word"], milliseconds(row["window_start"]), "total"] += row["amount"]
    wanted: Counter[tuple[str, int, str]] = Counter()
    for records in partitions:
        for time_ms, amount, word in records:
            for start in range(0, time_ms + 1, advance_ms):
                if time_ms < start + SIZE_MS:
                    wanted[word, start, "n"] += 1
                    wanted[word, start, "total"] += amount
    assert +found == +wanted
    assert outcome.late_records == len(outcome.tables["late"])


@pytest.mark.slow
@pytest.mark.parametrize("is_final", [False, True])
@settings(max_examples=examples(15))
@given(partitions=BOTH, schedule=SCHEDULE)
def test_each_record_is_in_a_session_or_late(is_final, partitions, schedule):
    gap = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=5), timedelta(milliseconds=3))
    outcome = run(
        build(lambda grouped: kept(grouped, gap).suppress(FINAL) if is_final else kept(grouped, gap)),
        cut(partitions, schedule),
    )
    found = Counter(row["word"] for row in outcome.tables["late"])
    for word, rows in by_word(outcome).items():
        found[word] += sum(row["n"] for row in rows)
    assert found == Counter(word for records in partitions for _, _, word in records)


def test_whether_a_record_is_late_may_depend_on_how_epochs_were_cut():
    """A partition that is read ahead of the other closes windows for both."""
    topology = build(lambda grouped: kept(grouped, TUMBLING))
    early, ahead = [(1, 7, "x")], [(40, 1, "x")]
    together = run(topology, [(early, ahead)])
    apart = run(topology, [([], ahead), (early, [])])
    assert (together.late_records, apart.late_records) == (0, 1)
    assert [row["amount"] for row in apart.tables["late"]] == [7]
