"""What each node and store does, beside plain loops over the records: lateness, overtime, buffers, calls, late records.

Whatever batches the records come in, the numbers are the same.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import combined
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import CUTS, FINAL, RECORDS, Event, batches, build, frame
from weir import (
    BufferConfig,
    FixedKeyProcessor,
    KeyValueStore,
    Materialized,
    SessionWindows,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.operators.epoch import MOST_LATE
from weir.pipelines.tasks.metered import MeteredSession
from weir.pipelines.tasks.metrics import EpochMetrics
from weir.pipelines.tasks.processor import TaskProcessor
from weir.pipelines.topology.nodes import SuppressNode
from weir.state.engine.figures import Values
from weir.state.stores.codec import KeyCodec, RowCodec


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def measured(sub_topology, parts):
    """The metrics of all batches together, those of the last batch, and the session."""
    processor, session, clocks, merge_ms = TaskProcessor(sub_topology, is_debug=True), MemorySession(), {}, {}
    total = EpochMetrics()
    for part in parts:
        output = processor.run(in_turn({"events": part}, merge_ms=merge_ms), session, clocks, 0)
        clocks, total = output.clocks, total + output.metrics
    return total, output.metrics, session


def values_of(found: list[int]) -> Values:
    """By a loop."""
    return sum((Values.of(each) for each in found), Values())


def behind(records, *, kept=lambda amount: True) -> list[int]:
    """How far each record that is kept is behind the greatest timestamp so far, of kept and other ones."""
    newest, found = None, []
    for _, time_ms, value in records:
        newest = time_ms if newest is None else max(newest, time_ms)
        if kept(value and value[0]):
            found.append(newest - time_ms)
    return found


def is_even(amount: int | None) -> bool:
    return amount is not None and amount % 2 == 0


@given(RECORDS, CUTS)
def test_lateness_of_a_node_is_that_of_the_rows_that_it_takes(records, cuts):
    def program(events):
        kept = events.filter(lambda key, value: value is not None and is_even(value.amount))
        kept.group_by_key().count("even_count").to_delta("out")

    sub_topology = build(program)
    total, _, _ = measured(sub_topology, batches(records, cuts))
    source, even, count, *_ = (node.name for node in sub_topology.nodes)
    assert total.lateness_ms_of[source] == total.lateness_ms_of[even] == values_of(behind(records))
    assert total.lateness_ms_of.get(count, Values()) == values_of(behind(records, kept=is_even))


def overtimes(records, limit_ms: int) -> list[int]:
    """For each key in the order of its first update, the buffer of a time limit, by a loop over the records."""
    held: dict[str, tuple[int, int]] = {}
    counted_at: dict[str, int] = {}
    newest, found = None, []
    for key, time_ms, value in records:
        if key is None or value is None:
            continue
        newest = time_ms if newest is None else max(newest, time_ms)
        counted_at[key] = max(counted_at.get(key, time_ms), time_ms)
        since, _ = held.get(key, (counted_at[key], None))
        held[key] = since, counted_at[key]
        for due in [each for each, (since, _) in held.items() if since + limit_ms <= newest]:
            found.append(newest - held.pop(due)[1])
    return found


@given(RECORDS, CUTS, st.integers(1, 30))
def test_overtime_is_how_long_the_newest_update_has_waited_when_its_limit_is_over(records, cuts, limit_ms):
    """A count has the greatest timestamp counted, so updates never go back in time."""

    def program(events):
        totals = events.group_by_key().count("totals")
        totals.suppress(Suppressed.until_time_limit(ms(limit_ms), BufferConfig.unbounded())).to_delta("out")

    sub_topology = build(program)
    (suppression,) = (node.name for node in sub_topology.nodes if isinstance(node, SuppressNode))
    total, _, _ = measured(sub_topology, batches(records, cuts))
    assert total.overtime_ms_of.get(suppression, Values()) == values_of(overtimes(records, limit_ms))


def test_what_leaves_early_because_the_buffer_is_full_has_no_overtime():
    def program(events):
        small = BufferConfig.max_records(1).emit_early_when_full()
        events.group_by_key().count("totals").suppress(Suppressed.until_time_limit(ms(50), small)).to_delta("out")

    records = [("a", 1, (1, "x")), ("b", 2, (1, "x")), ("c", 3, (1, "x")), ("a", 60, (1, "x"))]
    total, last, _ = measured(build(program), [frame(records)])
    (overtime,) = total.overtime_ms_of.values()
    assert overtime == Values.of(60 - 3), "c waited for its time; a and b gave way"
    assert [count for count, _ in last.buffers.values()] == [1]


WINDOWINGS = {
    "tumbling": TimeWindows.of_size_and_grace(ms(10), ms(4)),
    "hopping": TimeWindows.of_size_and_grace(ms(12), ms(3)).advance_by(ms(4)),
    "session": SessionWindows.of_inactivity_gap_and_grace(ms(5), ms(2)),
}


@pytest.mark.parametrize("windows", WINDOWINGS.values(), ids=WINDOWINGS)
@given(RECORDS, CUTS)
def test_a_suppression_within_its_aggregation_holds_the_rows_of_its_store(windows, records, cuts):
    sub_topology = build(
        lambda events: events.group_by_key().windowed_by(windows).count("counts").suppress(FINAL).to_delta("out")
    )
    (spec,) = (store for store in sub_topology.stores if store.name == "counts")
    _, last, session = measured(sub_topology, batches(records, cuts))
    rows = session.rows.get("counts", {})
    assert last.buffers == {"counts": (len(rows), sum(len(key) + len(value) for key, value in rows.items()))}
    keys = KeyCodec(spec.key, spec.kind).decode(sorted(rows))
    assert RowCodec(spec.value).decode(list(rows.values())).height == keys.height == len(rows)


@given(RECORDS, CUTS)
def test_tumbling_windows_that_are_held_are_those_that_are_open(records, cuts):
    windows = WINDOWINGS["tumbling"]
    sub_topology = build(
        lambda events: events.group_by_key().windowed_by(windows).count("counts").suppress(FINAL).to_delta("out")
    )
    _, last, _ = measured(sub_topology, batches(records, cuts))
    newest, opened = -1, set()
    for key, time_ms, _ in records:
        if key is None:
            continue
        newest, start = max(newest, time_ms), time_ms // 10 * 10
        if start + 14 > newest:
            opened.add((key, start))
    assert last.buffers["counts"][0] == len({each for each in opened if each[1] + 14 > newest})


def test_a_size_that_was_not_counted_before_is_counted_once():
    """A run at INFO counts no sizes; one at DEBUG after it begins with what is there."""
    sub_topology = build(
        lambda events: (
            events.group_by_key().windowed_by(WINDOWINGS["tumbling"]).count("counts").suppress(FINAL).to_delta("out")
        )
    )
    first, second = batches([("a", 1, (1, "x")), ("b", 2, (1, "x")), ("b", 3, (1, "x")), ("c", 11, (1, "x"))], {2})
    session, found = MemorySession(), []
    clocks: dict[str, int] = {}
    for part, is_debug in ((first, True), (second[:1], False), (second[1:], True)):
        processor = TaskProcessor(sub_topology, is_debug=is_debug)
        output = processor.run(in_turn({"events": part}), session, clocks, 0)
        clocks = output.clocks
        found.append((output.metrics.buffers.get("counts"), any(name.startswith("_held_bytes:") for name in clocks)))
    held = session.rows["counts"]
    assert found[1] == (None, False)
    assert found[2] == ((3, sum(len(key) + len(value) for key, value in held.items())), True)


@given(RECORDS, CUTS)
def test_records_older_than_a_store_keeps_are_counted_for_that_store(records, cuts):
    keeps_ms = {"short": 5, "long": 20}

    def program(events):
        for name, ttl_ms in keeps_ms.items():
            events.to_table(name, ttl=ms(ttl_ms)).to_delta(f"{name}_out")

    total, _, _ = measured(build(program), batches(records, cuts))
    expired, newest = Counter(), 0
    for key, time_ms, _ in records:
        if key is not None:
            newest = max(newest, time_ms)
            expired.update(name for name, ttl_ms in keeps_ms.items() if time_ms <= newest - ttl_ms)
    assert total.expired_of == expired


class Keeps(FixedKeyProcessor[str, Event, Event]):
    stores = (KeyValueStore("kept", key=str, value=int, ttl=ms(5)),)

    def init(self, context):
        self.kept = context.state_store("kept")

    def process(self, record):
        self.kept.put(record.key, 1)


def test_so_are_those_that_a_processor_puts_too_late():
    sub_topology = build(lambda events: events.process_values(Keeps, name="keeps").to_delta("out"))
    times = [10, 5, 6, 40, 35, 34]
    total, _, _ = measured(sub_topology, batches([("a", time_ms, (1, "x")) for time_ms in times], {2, 4}))
    assert total.expired_of == {"kept": sum(time_ms <= max(times[: at + 1]) - 5 for at, time_ms in enumerate(times))}


@combined("rows_in_a_batch,keys", [1, 3, 20, 100], [1, 2, 7])
def test_calls_are_those_of_each_batch_to_each_store(rows_in_a_batch, keys):
    """A count reads each key of a batch once and writes it once; a table with a tombstone deletes it."""
    records = [(f"k{number % keys}", number, (number, "x") if number % 5 else None) for number in range(100)]

    def program(events):
        events.group_by_key().count("counts").to_delta("out")
        events.to_table(Materialized("newest")).to_delta("newest_events")

    whole = frame(records)
    parts = [whole[start : start + rows_in_a_batch] for start in range(0, 100, rows_in_a_batch)]
    total, _, _ = measured(build(program), parts)
    counted = Counter()
    for start in range(0, 100, rows_in_a_batch):
        batch = records[start : start + rows_in_a_batch]
        counted["keys"] += len({key for key, _, value in batch if value})
        newest = {key: value for key, _, value in batch}
        counted["put"] += sum(value is not None for value in newest.values())
        counted["delete"] += sum(value is None for value in newest.values())
    assert total.calls["counts"] == {"get": counted["keys"], "put": counted["keys"]}
    assert total.calls["newest"]["put"] == counted["put"]
    assert total.calls["newest"].get("delete", 0) == counted["delete"]


class SlowSession(MemorySession):
    """Each call takes a while, and so does each row that is read in order; by call, how long it has to take."""

    CALL_MS, ROW_MS = 4, 3

    def get_many(self, store, keys):
        time.sleep(self.CALL_MS / 1000)
        return super().get_many(store, keys)

    def scan(self, store, lower=b"", upper=None, *, reverse=False):
        def rows():
            for row in found:
                time.sleep(self.ROW_MS / 1000)
                yield row

        found = list(super().scan(store, lower, upper, reverse=reverse))
        return rows()


def test_calls_are_timed_and_reading_in_order_until_the_reader_has_enough():
    session = SlowSession()
    metered = MeteredSession(session, ["timed"], [])
    metered.put_many("timed", [b"a", b"b", b"c"], [b"1", b"2", b"3"])
    for keys in ([b"a"], [b"a", b"b"]):
        assert metered.get_many("timed", keys) == [b"1", b"2"][: len(keys)]
    rows = metered.scan("timed")
    metered.delete_many("timed", [b"a"])
    assert list(rows) == [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")], "as of the call"
    first = metered.scan("timed", b"b")
    next(first)
    first.close()
    assert {call: values.count for call, values in metered.took_ms["timed"].items()} == {
        "put": 1,
        "get": 2,
        "delete": 1,
        "all": 1,
        "range": 1,
    }
    least = {"get": 2 * session.CALL_MS, "all": 3 * session.ROW_MS, "range": session.ROW_MS}
    assert all(metered.took_ms["timed"][call].total >= took_ms for call, took_ms in least.items())
    assert metered.calls["timed"]["get"] == 3


@given(RECORDS, CUTS)
def test_the_first_late_records_are_named(records, cuts):
    windows = TimeWindows.of_size_and_grace(ms(10), ms(4))
    sub_topology = build(lambda events: events.group_by_key().windowed_by(windows).count("counts").to_delta("out"))
    total, _, _ = measured(sub_topology, batches(records, cuts))
    newest, late = None, []
    for offset, (key, time_ms, _) in enumerate(records, 100):
        if key is None:
            continue
        newest = time_ms if newest is None else max(newest, time_ms)
        start = time_ms // 10 * 10
        if start + 14 <= newest:
            late.append(("events", 3, offset, time_ms, newest, (start, start + 10)))
    found = [
        (each.topic, each.partition, each.offset, each.time_ms, each.stream_time_ms, each.window_ms)
        for each in total.late
    ]
    assert found == late[:MOST_LATE]


def test_nothing_of_this_is_measured_at_info():
    sub_topology = build(
        lambda events: (
            events.group_by_key().windowed_by(WINDOWINGS["tumbling"]).count("counts").suppress(FINAL).to_delta("out")
        )
    )
    rows = frame([("a", 50, (1, "x")), ("a", 1, (1, "x"))])
    output = TaskProcessor(sub_topology).run(in_turn({"events": rows}), MemorySession(), {}, 0)
    metrics = output.metrics
    assert (metrics.lateness_ms_of, metrics.buffers, metrics.calls, metrics.late) == ({}, {}, {}, ())
    assert (output.counts["late_records"], metrics.lateness_ms.greatest) == (1, 49)
