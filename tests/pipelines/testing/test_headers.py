"""Headers on their way through programs, in the test driver: which operators keep them, and whose a result has."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import polars as pl
import pytest
from polars import col

from weir import (
    Application,
    BatchProcessor,
    BufferConfig,
    EmitStrategy,
    FixedKeyProcessor,
    Int64,
    JoinWindows,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.errors import TopologyError, UserFunctionError
from weir.pipelines.serdes.headers import headers_column
from weir.testing import TopologyTestDriver

SENT = (("trace", b"\x00\xff"), ("trace", None), ("tenant", b""), ("ąę", b"4"))
WIDE = timedelta(hours=1)


@pytest.fixture
def builder():
    return StreamsBuilder()


def orders(builder, topic="orders", **options):
    return builder.stream(topic, key=String("user"), value=Int64("cents"), **{"headers": True, **options})


def sent(builder, *records, topic="out"):
    """What the program writes to ``topic`` for records of (topic, key, value, headers): (value, headers)."""
    with TopologyTestDriver(Application("headers", builder)) as driver:
        for at, (name, key, value, headers) in enumerate(records):
            driver.create_input_topic(name).pipe_input(key, value, headers=headers, timestamp_ms=at * 1_000)
        return [(scalar(each.value), each.headers) for each in driver.create_output_topic(topic).read_records()]


def scalar(value):
    """The only field of a row."""
    return next(iter(dataclasses.asdict(value).values())) if dataclasses.is_dataclass(value) else value


def numbered(*names):
    return tuple((name, b"1") for name in names)


STATELESS = {
    "filter": lambda stream: stream.filter(col("cents") > 1),
    "filter by a function": lambda stream: stream.filter(lambda key, value: value > 1),
    "filter_not": lambda stream: stream.filter_not(col("cents") < 2),
    "map_values": lambda stream: stream.map_values(cents=col("cents") + 0),
    "select_key": lambda stream: stream.select_key(user=col("user") + "!"),
    "peek": lambda stream: stream.peek(lambda key, value: None),
    "with_timestamp": lambda stream: stream.with_timestamp(col("cents")),
    "repartition": lambda stream: stream.repartition("moved"),
    "two repartitions": lambda stream: stream.repartition("moved").select_key(user=col("user")).repartition("again"),
    "to_table": lambda stream: stream.to_table("newest").to_stream(),
    "a table filtered": lambda stream: stream.to_table("newest").filter(col("cents") > 1).to_stream(),
}


@pytest.mark.parametrize("name", STATELESS)
def test_a_record_keeps_its_headers_in_order_with_duplicates_and_nulls(builder, name):
    STATELESS[name](orders(builder)).to("out")
    assert sent(builder, ("orders", "ann", 5, SENT), ("orders", "bob", 7, ())) == [(5, SENT), (7, ())]


def test_each_record_that_one_becomes_has_its_headers(builder):
    def twice(value: int) -> list[int]:
        return [value, value + 1]

    orders(builder).flat_map_values(twice).to("out")
    assert sent(builder, ("orders", "ann", 5, SENT), ("orders", "ann", 8, ())) == [
        (5, SENT),
        (6, SENT),
        (8, ()),
        (9, ()),
    ]


def test_branches_and_merges_keep_headers_of_either_side(builder):
    branches = orders(builder).split(name="by-").branch(col("cents") > 5, name="large").default_branch(name="small")
    plain = orders(builder, "plain", headers=False)
    branches["by-large"].merge(branches["by-small"]).merge(plain).to("out")
    assert sent(
        builder, ("orders", "a", 9, SENT), ("plain", "a", 3, numbered("lost")), ("orders", "a", 1, numbered("x"))
    ) == [(9, SENT), (3, ()), (1, numbered("x"))]


class Stamp(FixedKeyProcessor[str, int, int]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)
        self.context.forward(record.with_headers((*record.headers, ("seen", b"%d" % record.value))).with_value(0))


class Move(Processor[str, int, str, int]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_key(record.key + "!"))
        self.context.forward(Record(record.key, -1, record.timestamp))


class Batched(BatchProcessor[str, int, str, int]):
    def process_batch(self, rows):
        made = rows.drop("_headers").with_columns(cents=pl.lit(0, pl.Int64))
        return pl.concat([rows, made], how="diagonal").rename({"cents": "value"})


def test_processors_read_and_set_headers(builder):
    orders(builder).process_values(Stamp).process(Move).to("out")
    seen = (*SENT, ("seen", b"5"))
    assert sent(builder, ("orders", "ann", 5, SENT)) == [(5, SENT), (-1, ()), (0, seen), (-1, ())]


def test_what_a_processor_set_moves_on_through_a_repartition_and_a_filter(builder):
    orders(builder).process_values(Stamp).select_key(user=col("user") + "x").repartition("moved").filter(
        col("value") >= 0
    ).to("out")
    assert sent(builder, ("orders", "ann", 5, SENT)) == [(5, SENT), (0, (*SENT, ("seen", b"5")))]


def test_rows_of_a_batch_keep_their_headers_and_new_ones_have_none(builder):
    orders(builder).process(Batched).to("out")
    assert sent(builder, ("orders", "ann", 5, SENT)) == [(5, SENT), (0, ())]


def test_a_result_has_the_headers_of_the_record_that_caused_it(builder):
    orders(builder).group_by_key().count("counts").to_stream().to("out")
    records = [("orders", "ann", 5, numbered("a")), ("orders", "bob", 5, numbered("b")), ("orders", "ann", 5, ())]
    assert sent(builder, *records) == [(1, numbered("a")), (1, numbered("b")), (2, ())]


def test_a_result_behind_a_repartition_has_them_too(builder):
    orders(builder).group_by(user=col("user").str.slice(0, 1)).count("counts").to_stream().to("out")
    records = [("orders", "ann", 5, numbered("a")), ("orders", "abe", 5, numbered("b"))]
    assert sent(builder, *records) == [(1, numbered("a")), (2, numbered("b"))]


AGGREGATIONS = {
    "hopping windows": (
        lambda stream: (
            stream.group_by_key()
            .windowed_by(TimeWindows.of_size_and_grace(timedelta(seconds=4), WIDE).advance_by(timedelta(seconds=2)))
            .count("counts")
        ),
        [("a", 2), ("b", 2), ("c", 2)],
    ),
    "sessions": (
        lambda stream: (
            stream.group_by_key()
            .windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=9), WIDE))
            .count("counts")
        ),
        [("a", 1), ("b", 2), ("c", 2)],  # an update of a session retracts the one before
    ),
    "sliding windows": (
        lambda stream: (
            stream.group_by_key()
            .windowed_by(SlidingWindows.of_time_difference_and_grace(timedelta(microseconds=1000), WIDE))
            .count("counts")
        ),
        [("a", 1), ("b", 1), ("c", 1)],
    ),
    "a function": (
        lambda stream: stream.group_by_key().aggregate("sums", lambda: 0, add),
        [("a", 1), ("b", 1), ("c", 1)],
    ),
    "cogroup": (
        lambda stream: stream.group_by_key().cogroup(add).aggregate("sums", lambda: 0),
        [("a", 1), ("b", 1), ("c", 1)],
    ),
    "windows as they close": (
        lambda stream: (
            stream.group_by_key()
            .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=1)))
            .emit_strategy(EmitStrategy.on_window_close())
            .count("counts")
        ),
        [("b", 1), ("c", 1)],  # each record closes the window of the one before
    ),
    "windows held back until they close": (
        lambda stream: (
            stream.group_by_key()
            .windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=1)))
            .count("counts")
            .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        ),
        [("a", 1), ("b", 1)],
    ),
}


def add(key: str, value: int, total: int) -> int:
    return total + value


def sum_of(one: int, other: int) -> int:
    return one + other


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_results_of_each_kind_of_aggregation_have_those_of_the_record_that_caused_them(builder, name):
    """Three records of one key, a second apart, with the headers a, b and c."""
    aggregate, expected = AGGREGATIONS[name]
    aggregate(orders(builder)).to_stream().to_delta("out", headers=True)
    with TopologyTestDriver(Application("headers", builder)) as driver:
        topic = driver.create_input_topic("orders")
        for at, header in enumerate("abc"):
            topic.pipe_input("ann", 1, headers=numbered(header), timestamp_ms=10_000 + at * 1_000)
        records = driver.create_output_table("out").read_records()
    found = ["".join(header for header, _ in each.headers) for each in records]
    assert found == [header for header, times in expected for _ in range(times)]


@pytest.mark.parametrize("meeting", ["cogroup", "stream join", "table join"])
def test_a_record_of_a_side_that_is_read_without_headers_gives_results_without_any(builder, meeting):
    """Also while the other side, which has headers, brings nothing."""
    one, other = orders(builder), orders(builder, "others", headers=False)
    match meeting:
        case "cogroup":
            met = one.group_by_key().cogroup(add).cogroup(other.group_by_key(), add).aggregate("sums", lambda: 0)
            results = met.to_stream()
        case "stream join":
            windows = JoinWindows.of_time_difference_with_no_grace(WIDE)
            results = one.join(other, sum_of, windows=windows, store="pairs")
        case _:
            tables = one.to_table("one"), other.to_table("other")
            results = tables[0].join(tables[1], sum_of).to_stream()
    results.to("out")
    records = [("others", "a", 1, ()), ("orders", "a", 2, SENT), ("others", "a", 3, ())]
    expected = [(1, ()), (3, SENT), (6, ())] if meeting == "cogroup" else [(3, SENT), (5, ())]
    assert sent(builder, *records) == expected


def test_late_records_have_their_own(builder):
    windowed = orders(builder).group_by_key()
    second = TimeWindows.of_size_with_no_grace(timedelta(seconds=1))
    late_to = lambda late: late.to_delta("late", headers=True)
    windowed.windowed_by(second, late_to=late_to).count("counts").to_delta("counts")
    with TopologyTestDriver(Application("headers", builder)) as driver:
        topic, table = driver.create_input_topic("orders"), driver.create_output_table("late")
        for time_ms, name in ((5_000, "new"), (100, "late")):
            topic.pipe_input("ann", 1, headers=numbered(name), timestamp_ms=time_ms)
        assert [each.headers for each in table.read_records()] == [numbered("late")]


def test_a_joined_record_has_the_headers_of_the_stream_s_side(builder):
    prices = builder.table("prices", key=String("user"), value=Int64("price"), store="prices", headers=True)
    orders(builder).join(prices).map_values(cents=col("cents") + col("price")).to("out")
    records = [("prices", "a", 1, numbered("price")), ("orders", "a", 5, SENT), ("orders", "a", 6, ())]
    assert sent(builder, *records) == [(6, SENT), (7, ())]


def test_a_global_join_keeps_them(builder):
    prices = builder.global_table("prices", key=String("id"), value=Int64("price"), store="prices")
    orders(builder).join(prices, key="user").map_values(cents=col("cents") + col("price")).to("out")
    assert sent(builder, ("prices", "a", 1, ()), ("orders", "a", 5, SENT)) == [(6, SENT)]


def test_a_pair_of_streams_has_the_headers_of_the_one_processed_later(builder):
    others = orders(builder, "others")
    windows = JoinWindows.of_time_difference_with_no_grace(WIDE)
    joined = orders(builder).join(others, windows=windows, store="pairs")
    joined.map_values(sum=col("cents") * 10 + col("cents_right")).to("out")
    records = [
        ("orders", "a", 1, numbered("left")),
        ("others", "a", 2, numbered("right")),
        ("orders", "a", 3, numbered("last")),
    ]
    assert sent(builder, *records) == [(12, numbered("right")), (32, numbered("last"))]


def test_joined_tables_have_the_headers_of_the_update_that_changed_them(builder):
    one, other = (
        builder.table(name, key=String("user"), value=Int64(f"{name}_n"), store=name, headers=True)
        for name in ("one", "other")
    )
    one.join(other).to_stream().map_values(sum=col("one_n") * 10 + col("other_n")).to("out")
    records = [("one", "a", 1, numbered("x")), ("other", "a", 2, numbered("y")), ("one", "a", 3, SENT)]
    assert sent(builder, *records) == [(12, numbered("y")), (32, SENT)]


def test_a_join_by_foreign_key_has_those_of_the_side_that_changed(builder):
    left = builder.table("left", key=String("user"), value=String("item"), store="left", headers=True)
    right = builder.table("right", key=String("id"), value=Int64("price"), store="right", headers=True)
    left.join(right, foreign_key="item").to_stream().map_values(price=col("price")).to("out")
    records = [("right", "tea", 1, numbered("x")), ("left", "a", "tea", numbered("y")), ("right", "tea", 2, SENT)]
    assert sent(builder, *records) == [(1, numbered("y")), (2, SENT)]


def test_a_grouped_table_has_those_of_the_update(builder):
    table = builder.table("orders", key=String("user"), value=Int64("cents"), store="orders", headers=True)
    table.group_by(cents=col("cents")).count("counts").to_stream().to("out")
    found = sent(builder, ("orders", "a", 5, numbered("x")), ("orders", "b", 5, SENT))
    assert found == [(1, numbered("x")), (2, SENT)]


UNBOUNDED = BufferConfig.unbounded()
LIMITED = BufferConfig.max_records(1).emit_early_when_full()


@pytest.mark.parametrize("buffer", [UNBOUNDED, LIMITED])
def test_what_was_held_back_has_those_of_its_newest_update(builder, buffer):
    table = orders(builder).to_table("newest")
    table.suppress(Suppressed.until_time_limit(timedelta(seconds=2), buffer)).to_stream().to_delta("out", headers=True)
    records = [("a", 5, numbered("x")), ("a", 6, SENT), ("b", 7, numbered("y")), ("c", 8, ()), ("d", 9, ())]
    with TopologyTestDriver(Application("headers", builder)) as driver:
        for at, (key, value, headers) in enumerate(records):
            driver.create_input_topic("orders").pipe_input(key, value, headers=headers, timestamp_ms=at * 1_000)
        rows = driver.create_output_table("out").read_records()
    found = [(each.row["user"], each.row["cents"], each.headers) for each in rows]
    held_last = 2 if buffer is UNBOUNDED else 3
    assert found == [("a", 6, SENT), ("b", 7, numbered("y")), ("c", 8, ())][:held_last]


WINDOWS = {
    "tumbling": TimeWindows.of_size_with_no_grace(timedelta(seconds=10)),
    "hopping": TimeWindows.of_size_with_no_grace(timedelta(seconds=10)).advance_by(timedelta(seconds=5)),
    "sessions": SessionWindows.of_inactivity_gap_with_no_grace(timedelta(seconds=3)),
    "sliding": SlidingWindows.of_time_difference_with_no_grace(timedelta(seconds=4)),
}
FOLDS = {
    "count": lambda windowed: windowed.count("sums"),
    "aggregate": lambda windowed: windowed.aggregate("sums", lambda: 0, add),
    "reduce": lambda windowed: windowed.reduce("sums", lambda one, other: one + other),
    "session aggregate": lambda windowed: windowed.aggregate(
        "sums", lambda: 0, add, lambda key, one, other: one + other
    ),
}
FUNCTIONS = ("count", "aggregate", "reduce")
PUNCTUAL = [(user, second) for second in (0, 1, 2, 7, 8, 13, 14, 15, 22, 23, 60, 61) for user in ("ann", "bob")]


@pytest.mark.slow
@pytest.mark.parametrize("is_apart", [False, True])
@pytest.mark.parametrize(
    ("windows", "fold"),
    [
        *(
            (windows, fold)
            for windows in ("tumbling", "hopping", "sliding")
            for fold in ("count", "aggregate", "reduce")
        ),
        *(("sessions", fold) for fold in ("count", "session aggregate", "reduce")),
    ],
)
def test_a_closed_window_has_those_of_its_last_record(builder, windows, fold, is_apart):
    """Each record's header says its user and second; windows are held back by their aggregation or in a buffer."""
    counted = FOLDS[fold](orders(builder).group_by_key().windowed_by(WINDOWS[windows]))
    if is_apart:
        counted = counted.filter(lambda key, value: True)
    final = counted.suppress(Suppressed.until_window_closes(UNBOUNDED))
    final.to_stream().to_delta("out", headers=True)
    with TopologyTestDriver(Application("headers", builder)) as driver:
        topic = driver.create_input_topic("orders")
        for user, second in PUNCTUAL:
            topic.pipe_input(user, 1, headers=((f"{user}@{second}", b""),), timestamp_ms=second * 1_000)
        records = driver.create_output_table("out").read_records()
    assert records
    ends_inside = windows in ("sessions", "sliding")
    for each in records:
        start, end = (each.row[name].timestamp() for name in ("window_start", "window_end"))
        inside = [
            second for user, second in PUNCTUAL if user == each.row["user"] and start <= second < end + ends_inside / 2
        ]
        assert each.headers == ((f"{each.row['user']}@{max(inside)}", b""),), each


def test_what_waited_for_a_join_has_its_own(builder):
    prices = builder.table("prices", key=String("user"), value=Int64("price"), store="p", history_retention=WIDE)
    joined = orders(builder).join(prices, grace=timedelta(seconds=3), store="waiting")
    joined.map_values(cents="cents").to("out", value=Int64("cents"))
    prices_first = [("prices", user, 1, ()) for user in "abcd"]
    waiting = [("orders", user, number, numbered(user)) for number, user in enumerate("abc")]
    records = [*prices_first, *waiting, ("orders", "d", 3, ()), ("orders", "d", 4, SENT), ("orders", "z", 9, ())]
    assert sent(builder, *records) == [(0, numbered("a")), (1, numbered("b")), (2, numbered("c"))]


def test_a_table_cannot_have_headers_that_nothing_reads(builder):
    with pytest.raises(TopologyError, match=r"builder.stream\(..., headers=True\), or leave headers= out"):
        orders(builder, headers=False).to_delta("orders", headers=True)


def test_what_found_nothing_in_a_join_of_streams_has_those_of_the_record_that_released_it(builder):
    others = orders(builder, "others")
    windows = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=1))
    joined = orders(builder).left_join(others, windows=windows, store="pairs")
    joined.map_values(cents="cents").to("out")
    records = [("orders", "a", 5, SENT), *(("others", name, 1, numbered(name)) for name in "bcd")]
    assert sent(builder, *records) == [(5, numbered("c"))]


def test_a_table_has_the_column_if_asked_for(builder):
    stream = orders(builder)
    stream.to_delta("with", headers=True)
    stream.to_delta("without")
    with TopologyTestDriver(Application("headers", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", 5, headers=SENT)
        record = driver.create_output_table("with").read_record()
        assert record.row == {"user": "ann", "cents": 5}
        assert record.headers == SENT
        assert driver.create_output_table("without").read_record().headers == ()


def test_a_table_cannot_have_headers_that_were_not_read(builder):
    with pytest.raises(TopologyError, match=r"builder\.stream\(\.\.\., headers=True\)"):
        orders(builder, headers=False).to_delta("orders", headers=True)
    orders(builder, "read").to_delta("read", headers=True)


def test_a_processor_cannot_set_headers_that_go_nowhere(builder):
    orders(builder, headers=False).process_values(Stamp).to("out")
    with pytest.raises(UserFunctionError, match=r"builder\.stream\(\.\.\., headers=True\)"):
        sent(builder, ("orders", "ann", 5, SENT))
    other = StreamsBuilder()
    orders(other, headers=True).process_values(Stamp).to("out")
    assert sent(other, ("orders", "ann", 5, SENT))[1] == (0, (*SENT, ("seen", b"5")))


def test_a_batch_cannot_have_headers_that_go_nowhere(builder):
    class Adds(BatchProcessor[str, int, str, int]):
        def process_batch(self, rows):
            return rows.rename({"cents": "value"}).with_columns(headers_column([SENT] * rows.height))

    orders(builder, headers=False).process(Adds).to("out")
    with pytest.raises(UserFunctionError, match=r"builder\.stream\(\.\.\., headers=True\)"):
        sent(builder, ("orders", "ann", 5, ()))
    other = StreamsBuilder()
    orders(other, headers=True).process(Adds).to("out")
    assert sent(other, ("orders", "ann", 5, ())) == [(5, SENT)]


class Trace(FixedKeyProcessor[str, int, bytes]):
    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record.with_value(dict(record.headers)["tenant"]))


def test_an_expression_that_names_headers_is_refused_and_a_processor_reads_them(builder):
    stream = orders(builder)
    for use in (
        lambda: stream.filter(col("_headers").list.len() > 0),
        lambda: stream.map_values(headers="_headers"),
        lambda: stream.select_key(headers="_headers"),
    ):
        with pytest.raises(TopologyError, match=r"process_values\(\.\.\.\) gets record\.headers"):
            use()
    stream.process_values(Trace).to("out")
    assert sent(builder, ("orders", "ann", 5, SENT)) == [(b"", SENT)]


def test_headers_that_are_no_pairs_are_refused(builder):
    class Wrong(FixedKeyProcessor[str, int, int]):
        def init(self, context):
            self.context = context

        def process(self, record):
            self.context.forward(record.with_headers((("trace", 17),)))

    orders(builder).process_values(Wrong).to("out")
    with pytest.raises(UserFunctionError, match="headers are pairs of a name and bytes or None"):
        sent(builder, ("orders", "ann", 5, ()))
    with pytest.raises(TypeError, match="headers are pairs"):
        sent(builder, ("orders", "ann", 5, {"trace": b"1"}))
    other = StreamsBuilder()
    orders(other).to("out")
    assert sent(other, ("orders", "ann", 5, [("trace", b"17")])) == [(5, (("trace", b"17"),))]


def test_topics_without_headers_give_programs_no_column(builder):
    orders(builder, headers=False).to_delta("orders")
    assert sent_columns(builder) == ["user", "cents", "_ts", "_seq", "_deleted"]


def sent_columns(builder):
    with TopologyTestDriver(Application("headers", builder)) as driver:
        driver.create_input_topic("orders").pipe_input("ann", 5, headers=SENT)
        return driver.create_output_table("orders")._next().columns


def test_dead_letters_have_headers(builder):
    orders(builder).map_values(cents=col("cents") + 0).filter(lambda key, value: 1 // value > 0).to("out")
    application = Application("headers", builder, on_error="dead_letter", on_processing_error="dead_letter")
    with TopologyTestDriver(application) as driver:
        topic = driver.create_input_topic("orders")
        topic.pipe_input("ann", b"no number", headers=SENT)
        topic.pipe_input("ann", 0, headers=SENT)
        assert [(each.stage, each.headers) for each in driver.dead_letters] == [
            ("deserialization", SENT),
            ("processing", SENT),
        ]


def test_dead_letters_behind_a_repartition_have_headers(builder):
    orders(builder).repartition("moved").filter(lambda key, value: 1 // value > 0).to("out")
    application = Application("headers", builder, on_processing_error="dead_letter")
    with TopologyTestDriver(application) as driver:
        driver.create_input_topic("orders").pipe_input("ann", 0, headers=SENT)
        assert [(each.topic, each.headers) for each in driver.dead_letters] == [("moved-repartition", SENT)]
