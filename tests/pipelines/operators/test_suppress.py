"""Suppression, row by row: every table of KIP-328, buffers, time limits and windows of every kind."""

import shutil
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.in_turn import in_turn
from tests.pipelines.memory_session import MemorySession
from tests.pipelines.operators.one_topic import batches, build, run
from tests.pipelines.operators.programs import driven, in_ms, pipe, read_windows
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    BufferFullError,
    EmitStrategy,
    SessionWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
    read_table,
)
from weir.pipelines.tasks.processor import TaskProcessor
from weir.testing import TopologyTestDriver

NONE, TWO_MS = timedelta(days=1), timedelta(milliseconds=2)
KILO = 1_000
"""Bytes here for each character in the KIP's tables, so that the overhead of rows does not matter."""
TWO_KEYS, THREE_BYTES = BufferConfig.max_records(2), BufferConfig.max_bytes(3 * KILO + 200)
UNBOUNDED = BufferConfig.unbounded()


def table(suppressed, *rows):
    return suppressed, rows


KIP_TABLES = {
    "offset order is maintained, whatever the time: later": table(
        Suppressed.until_time_limit(NONE, UNBOUNDED), ("A", "x", 0, [], ["Ax0"]), ("A", "y", 1, [], ["Ay1"])
    ),
    "offset order is maintained, whatever the time: earlier": table(
        Suppressed.until_time_limit(NONE, UNBOUNDED), ("A", "x", 1, [], ["Ax1"]), ("A", "w", 0, [], ["Aw0"])
    ),
    "key limit of 2": table(
        Suppressed.until_time_limit(NONE, TWO_KEYS),
        ("A", "w", 0, [], ["Aw0"]),
        ("A", "x", 1, [], ["Ax1"]),
        ("B", "y", 2, [], ["Ax1", "By2"]),
        ("C", "z", 3, ["Ax1"], ["By2", "Cz3"]),
    ),
    "byte limit of 3": table(
        Suppressed.until_time_limit(NONE, THREE_BYTES),
        ("A", "xx", 0, [], ["Axx0"]),
        ("A", "yy", 1, [], ["Ayy1"]),
        ("B", "zz", 2, ["Ayy1"], ["Bzz2"]),
    ),
    # The KIP's table shows A leave with the next row. By its own rule that an update does not restart the time, and in
    # Kafka Streams, A leaves here: it has been held since 0, and stream time is 2.
    "emit after 2 ms": table(
        Suppressed.until_time_limit(TWO_MS, UNBOUNDED),
        ("A", "w", 0, [], ["Aw0"]),
        ("A", "x", 1, [], ["Ax1"]),
        ("B", "y", 2, ["Ax1"], ["By2"]),
        ("C", "z", 3, [], ["By2", "Cz3"]),
    ),
    "late events leave at once: emit after 2 ms": table(
        Suppressed.until_time_limit(TWO_MS, UNBOUNDED),
        ("A", "w", 3, [], ["Aw3"]),
        ("A", "x", 1, ["Ax1"], []),
        ("B", "y", 1, ["By1"], []),
    ),
    "late events leave at once: key limit of 2": table(
        Suppressed.until_time_limit(NONE, TWO_KEYS),
        ("A", "w", 0, [], ["Aw0"]),
        ("A", "x", 1, [], ["Ax1"]),
        ("B", "y", 2, [], ["Ax1", "By2"]),
        ("C", "z", 0, ["Cz0"], ["Ax1", "By2"]),
    ),
    "late events leave at once: byte limit of 3": table(
        Suppressed.until_time_limit(NONE, THREE_BYTES),
        ("A", "xx", 0, [], ["Axx0"]),
        ("A", "yy", 1, [], ["Ayy1"]),
        ("B", "zz", 0, ["Bzz0"], ["Ayy1"]),
    ),
    "a big record pushes several out": table(
        Suppressed.until_time_limit(NONE, THREE_BYTES),
        ("A", "x", 0, [], ["Ax0"]),
        ("B", "y", 1, [], ["Ax0", "By1"]),
        ("C", "zzz", 2, ["Ax0", "By1"], ["Czzz2"]),
    ),
    "a record that does not fit at all goes at once, after those before it": table(
        Suppressed.until_time_limit(NONE, THREE_BYTES),
        ("A", "x", 0, [], ["Ax0"]),
        ("B", "y", 1, [], ["Ax0", "By1"]),
        ("C", "zzzz", 2, ["Ax0", "By1", "Czzzz2"], []),
    ),
}


def suppressed_table(suppressed: Suppressed, store: str = "values") -> Application:
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("key"), value=String("value"))
        .to_table(store)
        .suppress(suppressed.with_name("held"))
        .to_stream()
        .to_delta("out")
    )
    return Application("test", builder)


@pytest.mark.parametrize("name", KIP_TABLES)
def test_each_table_of_the_kip_row_for_row(name):
    suppressed, rows = KIP_TABLES[name]
    with TopologyTestDriver(suppressed_table(suppressed)) as driver:
        topic, out = driver.create_input_topic("in"), driver.create_output_table("out")

        for key, value, time, emitted, held in rows:
            topic.pipe_input(key, "".join(letter * KILO for letter in value), timestamp_ms=time)
            assert [
                f"{row['key']}{row['value'][::KILO]}{in_ms(time)}"
                for row, time in ((record.row, record.timestamp) for record in out.read_records())
            ] == emitted
            store = driver.get_key_value_store("held-store")
            assert [f"{key}{value[::KILO]}" for key, value in store.all()] == [each[:-1] for each in held]


@pytest.fixture
def clicks():
    def make(suppressed):
        driver = TopologyTestDriver(suppressed_table(suppressed))
        return driver, driver.create_input_topic("in"), driver.create_output_table("out")

    return make


def rows_of(out):
    return [(r.row["key"], r.row["value"], in_ms(r.timestamp), r.is_deleted) for r in out.read_records()]


def test_the_time_runs_from_the_first_update_and_the_row_keeps_its_own_timestamp(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(timedelta(milliseconds=30), UNBOUNDED))
    topic.pipe_records([("a", "1", 100), ("a", "2", 120), ("b", "1", 129)])
    assert out.is_empty()
    topic.pipe_input("b", "2", timestamp_ms=130)
    assert rows_of(out) == [("a", "2", 120, False)]
    topic.pipe_records([("a", "3", 140), ("c", "1", 169)])
    assert rows_of(out) == [("b", "2", 130, False)]
    topic.pipe_input("c", "2", timestamp_ms=170)
    assert rows_of(out) == [("a", "3", 140, False)]


def test_the_time_of_a_window_runs_from_its_first_record_and_not_from_its_start():
    builder = StreamsBuilder()
    minutes = builder.stream("clicks", key=String("user"), value=String("page")).group_by_key()
    counts = minutes.windowed_by(TimeWindows.of_size_with_no_grace(timedelta(minutes=1))).count("counts")
    counts.suppress(Suppressed.until_time_limit(timedelta(seconds=30), UNBOUNDED)).to_delta("out")
    driver = TopologyTestDriver(Application("app", builder))
    topic, out = driver.create_input_topic("clicks"), driver.create_output_table("out")
    left = []
    for second, user in ((20, "ann"), (30, "bob"), (49, "bob"), (50, "bob")):
        topic.pipe_input(user, "/", timestamp_ms=1000 * second)
        left.append([(row["user"], row["count"]) for row in out.read_rows()])
    assert left == [[], [], [], [("ann", 1)]]


def test_each_update_restarts_the_time_if_it_is_asked_for(clicks):
    suppressed = Suppressed.until_time_limit(timedelta(milliseconds=30), UNBOUNDED, restart_on_update=True)
    _, topic, out = clicks(suppressed)
    topic.pipe_records([("a", "1", 100), ("a", "2", 120), ("b", "1", 140), ("b", "2", 149)])
    assert out.is_empty()
    topic.pipe_input("b", "3", timestamp_ms=150)
    assert rows_of(out) == [("a", "2", 120, False)]
    topic.pipe_input("c", "1", timestamp_ms=179)
    assert out.is_empty()
    topic.pipe_input("c", None, timestamp_ms=180)
    assert rows_of(out) == [("b", "3", 150, False)]
    topic.pipe_input("d", "1", timestamp_ms=210)
    assert rows_of(out) == [("c", None, 180, True)]


def test_an_out_of_order_update_gives_its_value_and_does_not_shorten_a_wait_that_restarts(clicks):
    suppressed = Suppressed.until_time_limit(timedelta(milliseconds=30), UNBOUNDED, restart_on_update=True)
    _, topic, out = clicks(suppressed)
    topic.pipe_records([("a", "1", 100), ("a", "2", 95), ("b", "1", 129)])
    assert out.is_empty()
    topic.pipe_input("b", "2", timestamp_ms=130)
    assert rows_of(out) == [("a", "2", 95, False)]


def test_a_full_buffer_whose_waits_restart_forwards_what_was_not_updated_for_longest(clicks):
    suppressed = Suppressed.until_time_limit(NONE, TWO_KEYS, restart_on_update=True)
    _, topic, out = clicks(suppressed)
    topic.pipe_records([("a", "1", 1), ("b", "1", 2), ("a", "2", 3), ("c", "1", 4)])
    assert [row[0] for row in rows_of(out)] == ["b"]


def test_tombstones_are_forwarded_under_a_time_limit(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(TWO_MS, UNBOUNDED))
    topic.pipe_records([("a", "1", 0), ("a", None, 1), ("b", "1", 9)])
    assert rows_of(out) == [("a", None, 1, True)]


def test_a_time_limit_of_zero_suppresses_nothing(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(timedelta(0), UNBOUNDED))
    topic.pipe_records([("a", "1", 5), ("a", "2", 3), ("b", "1", 5)])
    assert rows_of(out) == [("a", "1", 5, False), ("a", "2", 3, False), ("b", "1", 5, False)]


def test_rows_at_one_place_leave_by_key_and_full_means_above_the_limit(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(NONE, TWO_KEYS.emit_early_when_full()))
    topic.pipe_records([("c", "1", 7), ("b", "1", 7)])
    assert out.is_empty()
    topic.pipe_records([("a", "1", 7), ("d", "1", 9)])
    assert [row[0] for row in rows_of(out)] == ["a", "b"]


def test_a_limit_on_records_and_one_on_bytes_apply_together(clicks):
    both = BufferConfig.max_records(3).with_max_bytes(2 * KILO + 200)
    _, topic, out = clicks(Suppressed.until_time_limit(NONE, both))
    topic.pipe_records([("a", "x" * KILO, 1), ("b", "x" * KILO, 2), ("c", "x" * KILO, 3)])
    assert [row[0] for row in rows_of(out)] == ["a"]
    topic.pipe_records([("b", "-", 4), ("c", "-", 5), ("d", "-", 6), ("e", "-", 7)])
    assert [row[0] for row in rows_of(out)] == ["b"]


def test_a_buffer_that_shuts_down_when_full_stops_the_run(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(NONE, TWO_KEYS.shut_down_when_full()))
    topic.pipe_records([("a", "1", 1), ("b", "1", 2), ("a", "2", 3)])
    with pytest.raises(BufferFullError, match=r"held-store: .* limit of 2 records.*spill_to_disk_when_full"):
        topic.pipe_input("c", "1", timestamp_ms=4)
    assert out.is_empty()


def test_expiry_is_checked_before_the_limits(clicks):
    _, topic, out = clicks(Suppressed.until_time_limit(TWO_MS, TWO_KEYS.shut_down_when_full()))
    topic.pipe_records([("a", "1", 1), ("b", "1", 2), ("c", "1", 3)])
    assert [row[0] for row in rows_of(out)] == ["a"]


@pytest.mark.parametrize("buffer", [TWO_KEYS.spill_to_disk_when_full(), TWO_KEYS.with_no_bound()])
def test_a_buffer_that_spills_or_has_no_bound_forwards_nothing_early(clicks, buffer):
    driver, topic, out = clicks(Suppressed.until_time_limit(NONE, buffer))
    topic.pipe_records([(key, "1", 1) for key in "abcdef"])
    assert out.is_empty()
    assert driver.get_key_value_store("held-store").approximate_num_entries() == 6


TEN = TimeWindows.of_size_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=5))
SESSIONS = SessionWindows.of_inactivity_gap_and_grace(timedelta(milliseconds=10), timedelta(milliseconds=5))
FINAL = Suppressed.until_window_closes(UNBOUNDED)


@pytest.mark.parametrize(
    "buffer",
    [
        UNBOUNDED,
        BufferConfig.max_records(2).shut_down_when_full(),
        BufferConfig.max_bytes(10).spill_to_disk_when_full(),
    ],
)
@pytest.mark.parametrize("is_direct", [True, False])
def test_final_results_of_windows_are_the_same_with_every_strict_buffer(buffer, is_direct):
    def program(clicks):
        counts = clicks.group_by_key().windowed_by(TEN).count("c")
        (counts if is_direct else counts.filter(col("count") > 0)).suppress(
            Suppressed.until_window_closes(buffer)
        ).to_delta("out")

    with driven(program) as (topic, out, _):
        pipe(topic, 1, 11, 9, 14)
        assert out.is_empty()
        pipe(topic, 15)
        assert read_windows(out) == [(0, 10, 2, 9)]


@pytest.mark.parametrize("buffer", [UNBOUNDED, BufferConfig.max_records(9).shut_down_when_full()])
@pytest.mark.parametrize("is_direct", [True, False])
def test_final_results_of_one_window_come_by_key_whatever_their_times(buffer, is_direct):
    def program(clicks):
        counts = clicks.group_by_key().windowed_by(TEN).count("c")
        (counts if is_direct else counts.filter(col("count") > 0)).suppress(
            Suppressed.until_window_closes(buffer)
        ).to_delta("out")

    with driven(program) as (topic, out, _):
        pipe(topic, 1, user="b")
        pipe(topic, 5, user="a")
        pipe(topic, 15, user="c")
        assert [row["user"] for row in out.read_rows()] == ["a", "b"]


def test_a_full_strict_buffer_of_windows_stops_the_run():
    program = lambda s: (
        s.group_by_key()
        .windowed_by(TEN)
        .count("c")
        .suppress(Suppressed.until_window_closes(BufferConfig.max_records(1).shut_down_when_full()))
        .to_delta("out")
    )
    with driven(program) as (topic, _, _), pytest.raises(BufferFullError):
        pipe(topic, 1, 11)


def test_final_sessions_after_a_filter_come_once_and_replaced_ones_never():
    program = lambda s: (
        s.group_by_key().windowed_by(SESSIONS).count("c").filter(col("count") > 1).suppress(FINAL).to_delta("out")
    )
    with driven(program) as (topic, out, driver):
        pipe(topic, 1, 3, 15, 10, 30)
        assert read_windows(out) == []
        pipe(topic, 31)  # a row that the filter removes is a tombstone, which moves stream time too
        assert read_windows(out) == [(1, 15, 4, 15)]
        pipe(topic, 90, user="b")
        assert read_windows(out) == [(30, 31, 2, 31)]
        assert driver.get_key_value_store("KTABLE-SUPPRESS-STATE-STORE-0000000004").approximate_num_entries() == 0


@pytest.mark.parametrize("buffer", [UNBOUNDED, BufferConfig.max_records(4)])
def test_rows_at_one_place_leave_a_batch_by_their_own_times_then_by_key(buffer):
    """All have been held since 5; a was updated at 9, b and d at 7, c never."""
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("key"), value=String("value"))
        .to_table("values")
        .suppress(Suppressed.until_time_limit(10 * TWO_MS, buffer))
        .to_delta("out")
    )
    records = [*((key, 5) for key in "dcba"), ("a", 9), ("d", 7), ("b", 7), ("z", 25)]
    rows = pl.DataFrame(
        [(key, "x", ms, 0, offset, False) for offset, (key, ms) in enumerate(records)],
        orient="row",
        schema={
            "key": pl.String,
            "value": pl.String,
            "_ts": pl.Int64,
            "_partition": pl.Int32,
            "_offset": pl.Int64,
            "_deleted": pl.Boolean,
        },
    )
    output = TaskProcessor(builder.build().sub_topologies[0], is_debug=True).run(
        in_turn({"in": rows}), MemorySession(), {}, 0
    )
    assert output.sinks["out"].sort("_seq").get_column("key").to_list() == ["c", "b", "d", "a"]


def limited(records, limit_ms, most, place_of=min):
    """What each record of a table releases under a time limit and a limit on records: key, number and time.

    ``place_of`` the times of a key's updates is when its wait began.
    """
    stream_time, held, out = -1, {}, []
    for number, (key, time, value) in enumerate(records):
        if key is None:
            continue
        stream_time = max(stream_time, time)
        place = place_of(time, held[key][0]) if key in held else time
        held[key] = place, time, key, number if value is not None else None
        while held and (min(held.values())[0] <= stream_time - limit_ms or len(held) > most):
            _, at, name, newest = held.pop(min(held.values())[2])
            out.append((name, newest, at))
    return out


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c", None]),
            st.integers(0, 20),
            st.sampled_from([(0, "x"), (0, "x"), (0, "x"), None]),
        ),
        min_size=1,
        max_size=30,
    ),
    cuts=st.sets(st.integers(1, 29), max_size=15),
    limit_ms=st.sampled_from([0, 1, 4, 9]),
    most=st.sampled_from([1, 2, 99]),
    restarts=st.booleans(),
)
def test_under_limits_each_record_releases_what_a_model_says_whatever_the_batches(
    records, cuts, limit_ms, most, restarts
):
    suppressed = Suppressed.until_time_limit(
        timedelta(milliseconds=limit_ms), BufferConfig.max_records(most), restart_on_update=restarts
    )
    numbered = [(key, time, value and (number, "x")) for number, (key, time, value) in enumerate(records)]
    sub_topology = build(lambda s: s.to_table("t").suppress(suppressed).to_stream().to_delta("out"))
    rows = run(sub_topology, batches(numbered, cuts))["facts"].get("out", [])
    released = limited(numbered, limit_ms, most, max if restarts else min)
    assert [(row["user"], row["amount"], in_ms(row["_ts"])) for row in rows] == released


def test_a_suppression_counts_the_rows_that_it_forwards_and_holds():
    builder = StreamsBuilder()
    (
        builder.stream("in", key=String("key"), value=String("value"))
        .to_table("values")
        .suppress(Suppressed.until_time_limit(TWO_MS, UNBOUNDED))
        .to_delta("out")
    )
    rows = pl.DataFrame(
        {
            "key": ["a", "b", "c"],
            "value": ["1", "22", "333"],
            "_ts": [0, 1, 2],
            "_partition": [0] * 3,
            "_offset": [0, 1, 2],
            "_deleted": [False] * 3,
        },
        schema_overrides={"_partition": pl.Int32},
    )
    output = TaskProcessor(builder.build().sub_topologies[0], is_debug=True).run(
        in_turn({"in": rows}), MemorySession(), {}, 0
    )
    assert output.counts["suppression_emits"] == 1
    ((count, size),) = output.metrics.buffers.values()
    assert count == 2
    assert size > len("b22c333")


@pytest.mark.slow
@pytest.mark.parametrize(("restarts", "left"), [(False, ["b", "c"]), (True, ["b", "c"]), (True, ["c", "b"])])
def test_held_rows_are_restored_with_their_places_and_size(tmp_path, restarts, left):
    """The order of the buffer is rebuilt from its rows: the late key leaves first, or what was not updated for longest,
    which is c if b is updated after it."""
    outs = {}
    for name in ("whole", "lost"):
        suppressed = Suppressed.until_time_limit(NONE, BufferConfig.max_records(3), restart_on_update=restarts)
        application = suppressed_table(suppressed)
        topics = Topics({("in", 0): [(b"a", b"1", 5), (b"b", b"1", 3), (b"a", b"2", 9), (b"c", b"1", 4)]})
        if left[0] == "c":
            topics.rows["in", 0].append((b"b", b"1", 6))
        place = Place(application, topics, tmp_path / name)
        place.run()
        if name == "lost":
            shutil.rmtree(place.state_of("0_0"))
        topics.rows["in", 0] += [(b"d", b"1", 10), (b"e", b"1", 10)]
        place.run()
        assert bool(place.restores.done) == (name == "lost")
        outs[name] = read_table(place.warehouse / "test" / "out").select("key", "value").rows()
    assert outs["lost"] == outs["whole"] == [(key, "1") for key in left]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Suppressed.until_window_closes(TWO_KEYS), "strict buffer"),
        (lambda: Suppressed.until_window_closes(UNBOUNDED.emit_early_when_full()), "strict buffer"),
        (lambda: Suppressed.until_time_limit(TWO_MS, 5), "pass BufferConfig"),
        (lambda: Suppressed.until_time_limit(-TWO_MS, UNBOUNDED), "negative"),
        (lambda: BufferConfig.max_records(-1), "max_records is -1; it must be a whole number from 0"),
        (lambda: FINAL.with_name("a/b"), "suppression name 'a/b'.*use letters, digits"),
    ],
)
def test_a_suppression_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(TopologyError, match=words):
        make()


def test_final_results_cannot_be_suppressed_again():
    with (
        pytest.raises(TopologyError, match="final already"),
        driven(
            lambda s: (
                s.group_by_key()
                .windowed_by(TEN)
                .emit_strategy(EmitStrategy.on_window_close())
                .count("c")
                .suppress(FINAL)
                .to_delta("out")
            )
        ),
    ):
        pass


def test_a_name_does_not_change_the_numbers_of_other_nodes():
    def described(suppressed):
        builder = StreamsBuilder()
        table = builder.stream("in", key=String("key"), value=String("value")).to_table("values")
        (table.suppress(suppressed) if suppressed else table).to_stream().to_delta("out")
        return builder.build().describe()

    held = Suppressed.until_time_limit(TWO_MS, UNBOUNDED)
    assert "KTABLE-TOSTREAM-0000000002" in described(None)
    assert "KTABLE-TOSTREAM-0000000002" in described(held.with_name("held"))
    assert "Processor: held (stores: [held-store])" in described(held.with_name("held"))
    assert "Processor: KTABLE-SUPPRESS-0000000002 (stores: [KTABLE-SUPPRESS-STATE-STORE-0000000003])" in described(held)
