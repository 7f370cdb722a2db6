"""Versioned tables, record by record (KIP-889, KIP-914), and joins as of a time that wait for it (KIP-923)."""

from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from tests.pipelines.operators.one_topic import Event
from tests.pipelines.operators.two_topics import CUTS, assert_cuts_do_not_show, batches, build, left, picked, run
from weir import (
    Application,
    BufferConfig,
    Count,
    Int64,
    Json,
    KTable,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TopologyError,
)
from weir.testing import TopologyTestDriver

HISTORY = timedelta(milliseconds=100)


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def rates_of(builder: StreamsBuilder, history: timedelta | None = HISTORY) -> KTable:
    return builder.table("rates", key=String("currency"), value=Int64("rate"), store="rates", history_retention=history)


@contextmanager
def driven(program, history: timedelta | None = HISTORY):
    """The topics ``rates`` (a versioned table) and ``sales`` (a stream), the table ``out`` and the driver."""
    builder = StreamsBuilder()
    rates = rates_of(builder, history)
    sales = builder.stream("sales", key=String("currency"), value=Int64("amount"))
    program(sales, rates).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        yield (
            driver.create_input_topic("rates"),
            driver.create_input_topic("sales"),
            driver.create_output_table("out"),
            driver,
        )


def pipe(topic, *records):
    """Pipe values of the key ``a`` with their times."""
    for value, time_ms in records:
        topic.pipe_input("a", value, timestamp_ms=time_ms)


def joined(out):
    return [(row["amount"], row["rate"]) for row in out.read_rows()]


def test_a_record_joins_the_row_that_was_valid_at_its_own_time():
    with driven(lambda sales, rates: sales.left_join(rates)) as (rates, sales, out, _):
        pipe(rates, (1, 10), (3, 30))
        pipe(sales, (100, 9), (101, 10), (102, 29), (103, 30), (104, 99))
        pipe(rates, (2, 20), (None, 40))
        pipe(sales, (105, 19), (106, 20), (107, 29), (108, 39), (109, 40))
        assert joined(out) == [
            (100, None),
            (101, 1),
            (102, 1),
            (103, 3),
            (104, 3),
            (105, 1),
            (106, 2),
            (107, 2),
            (108, 3),
            (109, None),
        ]


def test_an_inner_join_drops_records_without_a_row_at_their_time_and_updates_produce_nothing():
    with driven(lambda sales, rates: sales.join(rates)) as (rates, sales, out, _):
        pipe(sales, (100, 9))
        pipe(rates, (1, 10), (2, 5))
        assert out.is_empty()
        pipe(sales, (101, 4), (102, 7))
        assert [(r.row["amount"], r.row["rate"], r.timestamp) for r in out.read_records()] == [
            (102, 2, datetime(1970, 1, 1, microsecond=7_000, tzinfo=UTC))
        ]


def test_beyond_the_history_only_a_row_that_is_still_the_newest_is_found():
    with driven(lambda sales, rates: sales.left_join(rates)) as (rates, sales, out, _):
        pipe(rates, (1, 10), (2, 20))
        rates.pipe_input("b", 7, timestamp_ms=115)
        pipe(sales, (100, 14), (101, 15))
        rates.pipe_input("b", 7, timestamp_ms=120)
        pipe(sales, (102, 19), (103, 20), (104, 21))
        assert joined(out) == [(100, None), (101, 1), (102, None), (103, 2), (104, 2)]


def test_a_row_older_than_the_history_is_neither_kept_nor_forwarded_but_counted():
    with driven(lambda sales, rates: rates.to_stream()) as (rates, _, out, driver):
        pipe(rates, (1, 200), (2, 99), (3, 100))
        assert [row["rate"] for row in out.read_rows()] == [1, 3]
        assert driver.counts["expired_records"] == 1
        drops = {reading.name: reading.value for reading in driver.metrics() if "processor-node-id" not in reading.tags}
        assert drops["expired-window-record-drop-total"] == drops["dropped-records-total"] == 1
        assert drops["late-record-drop-total"] == 0


def test_to_stream_has_every_record_and_the_output_table_only_newest_rows():
    with driven(lambda sales, rates: rates.to_stream()) as (rates, _, out, driver):
        pipe(rates, (3, 30), (1, 10), (4, 30), (None, 20))
        assert [(r.row["rate"], r.is_deleted) for r in out.read_records()] == [
            (3, False),
            (1, False),
            (4, False),
            (None, True),
        ]
        store = driver.get_versioned_store("rates")
        assert [value for _, value in store.versions("a")] == [1, None, 4]
        assert (store.get("a"), store.get("a", datetime(1970, 1, 1, microsecond=12_000, tzinfo=UTC))) == (4, 1)
    with driven(lambda sales, rates: rates) as (rates, _, out, _):
        pipe(rates, (3, 30), (1, 10), (4, 30), (None, 40), (5, 35))
        assert [(r.row["rate"], r.is_deleted) for r in out.read_records()] == [(3, False), (4, False), (None, True)]


def test_filters_and_mappings_of_a_versioned_table_are_versioned_too():
    def program(sales, rates):
        return sales.left_join(rates.filter(col("rate") > 1).map_values(rate=col("rate") * 10))

    with driven(program) as (rates, sales, out, _):
        pipe(rates, (3, 30), (1, 20), (2, 10))
        pipe(sales, (100, 10), (101, 20), (102, 30))
        assert joined(out) == [(100, 20), (101, None), (102, 30)]


def test_a_filter_forwards_tombstones_for_rows_that_never_passed_and_out_of_order_ones():
    with driven(lambda sales, rates: rates.filter(col("rate") > 1).to_stream()) as (rates, _, out, _):
        pipe(rates, (1, 30), (1, 40), (0, 20), (2, 10))
        assert [(r.row["rate"], r.is_deleted) for r in out.read_records()] == [
            (None, True),
            (None, True),
            (None, True),
            (2, False),
        ]


@pytest.mark.parametrize("join", ["join", "left_join", "outer_join"])
def test_out_of_order_updates_have_no_effect_on_a_join_of_tables(join):
    def program(sales, rates):
        return getattr(rates, join)(sales.to_table("sold", history_retention=HISTORY)).to_stream()

    with driven(program) as (rates, sales, out, driver):
        pipe(rates, (3, 30))
        pipe(sales, (100, 20))
        out.read_rows()
        pipe(rates, (1, 10), (None, 29))
        pipe(sales, (99, 19))
        assert out.is_empty()
        assert driver.counts["out_of_order_records"] == 3
        pipe(rates, (4, 30))
        pipe(sales, (101, 21))
        assert [(row["rate"], row["amount"]) for row in out.read_rows()] == [(4, 100), (4, 101)]


def test_a_join_of_versioned_tables_is_not_versioned():
    def program(sales, rates):
        return sales.left_join(rates.join(rates.map_values(double=col("rate") * 2)))

    with driven(program) as (rates, sales, out, _):
        pipe(rates, (1, 10), (3, 30))
        pipe(sales, (100, 15))
        assert joined(out) == [(100, 3)]


def test_a_grouped_table_counts_only_the_newest_rows():
    def program(sales, rates):
        return rates.group_by("rate").agg("groups", n=Count(), total=Sum("rate")).to_stream()

    with driven(program) as (rates, _, out, driver):
        pipe(rates, (3, 30), (1, 10), (2, 30), (5, 29), (None, 40), (9, 39))
        assert driver.get_key_value_store("groups").all() == [(2, {"n": 0, "total": 0}), (3, {"n": 0, "total": 0})]
        assert [(row["rate"], row["n"]) for row in out.read_rows()] == [(3, 1), (3, 0), (2, 1), (2, 0)]


def graced(grace: int, join: str = "join"):
    return lambda sales, rates: getattr(sales, join)(rates, grace=ms(grace), store="waiting")


def test_with_a_grace_records_wait_and_join_in_the_order_of_their_timestamps():
    with driven(graced(10)) as (rates, sales, out, driver):
        pipe(rates, (1, 0), (3, 30))
        pipe(sales, (100, 25), (101, 20), (102, 29))
        assert out.is_empty()
        assert driver.get_key_value_store("waiting").approximate_num_entries() == 3
        pipe(rates, (2, 22))
        pipe(sales, (103, 35))
        assert joined(out) == [(101, 1), (100, 2)]
        pipe(sales, (104, 45))
        assert joined(out) == [(102, 2), (103, 3)]


def test_records_of_one_key_and_time_all_wait_and_leave_in_order_of_arrival():
    with driven(graced(10)) as (rates, sales, out, _):
        pipe(rates, (1, 0))
        pipe(sales, (100, 20), (101, 20), (100, 20), (102, 30))
        assert joined(out) == [(100, 1), (101, 1), (100, 1)]


def test_records_wait_under_keys_of_any_length():
    long = "k" * 600
    with driven(graced(10, "left_join")) as (rates, sales, out, _):
        rates.pipe_input(long, 1, timestamp_ms=0)
        for key, amount, time_ms in ((long, 100, 20), (f"{long}2", 101, 20), (long, 102, 30)):
            sales.pipe_input(key, amount, timestamp_ms=time_ms)
        assert joined(out) == [(100, 1), (101, None)]


def test_a_record_beyond_the_grace_joins_at_once_and_one_at_its_edge_leaves_with_those_due():
    with driven(graced(10)) as (rates, sales, out, _):
        pipe(rates, (1, 0))
        pipe(sales, (100, 50), (101, 39))
        assert joined(out) == [(101, 1)]
        pipe(sales, (102, 40))
        assert joined(out) == [(102, 1)]


def test_rows_keep_their_time_and_the_table_alone_releases_nothing():
    with driven(graced(10)) as (rates, sales, out, _):
        pipe(sales, (100, 20))
        pipe(rates, (1, 0), (2, 90))
        assert out.is_empty()
        pipe(sales, (101, 30))
        assert [(r.row["rate"], r.timestamp.microsecond) for r in out.read_records()] == [(1, 20_000)]


@pytest.mark.parametrize(("join", "rows", "null_keys"), [("join", [], 1), ("left_join", [(7, None)], 0)])
def test_without_key_or_value_nothing_waits(join, rows, null_keys):
    with driven(graced(10, join)) as (_, sales, out, driver):
        pipe(sales, (None, 90))
        sales.pipe_input(None, 7, timestamp_ms=90)
        assert joined(out) == rows
        assert (driver.counts["null_keys"], driver.counts["null_values"]) == (null_keys, 1)
        pipe(sales, (100, 20))
        assert out.is_empty(), "their times do not move the stream time of waiting records"


def test_idle_input_releases_waiting_records():
    builder = StreamsBuilder()
    rates = rates_of(builder)
    builder.stream("sales", key=String("currency"), value=Int64("amount"), idle_after=ms(500)).left_join(
        rates, grace=ms(10), store="waiting"
    ).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        sales, out = driver.create_input_topic("sales"), driver.create_output_table("out")
        pipe(driver.create_input_topic("rates"), (1, 0))
        pipe(sales, (100, 20), (101, 15))
        driver.advance_wall_clock_time(ms(509))
        assert joined(out) == [(101, 1)]
        driver.advance_wall_clock_time(ms(1))
        assert joined(out) == [(100, 1)]
        for amount in range(4):
            sales.pipe_input("k" * 600, amount, timestamp_ms=30)
        driver.advance_wall_clock_time(ms(520))
        assert [row["amount"] for row in out.read_rows()] == [0, 1, 2, 3], "long keys keep their order"


def test_a_stream_with_a_new_key_waits_after_its_repartition_in_the_node_of_the_join():
    builder = StreamsBuilder()
    rates = rates_of(builder)
    builder.stream("sales", key=String("shop"), value=Json(Event)).select_key(currency="word").left_join(
        rates, name="converted", grace=ms(10), store="waiting"
    ).to_delta("out")
    text = builder.build().describe()
    assert (
        """\
    Source: converted-repartition-source (topics: [converted-repartition])
      --> converted
"""
        in text
    )
    assert (
        """\
    Processor: converted (stores: [waiting, rates])
      --> KSTREAM-SINK-0000000008
      <-- converted-repartition-source
"""
        in text
    )
    assert "buffer" not in text


def joining(history=HISTORY, of=None, **options):
    builder = StreamsBuilder()
    table = (
        of(builder, "rates", key=String("currency"), value=Int64("rate"), store="rates")
        if of
        else rates_of(builder, history)
    )
    return builder.stream("sales", key=String("currency"), value=Int64("amount")).join(table, **options)


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: rates_of(StreamsBuilder(), ms(0)), "at least one millisecond"),
        (
            lambda: StreamsBuilder().table(
                "t", key=String("k"), value=String("valid_from"), store="s", history_retention=HISTORY
            ),
            "'valid_from' is where its store keeps the time",
        ),
        (
            lambda: StreamsBuilder().table(
                "t", key=String("k"), value=String("v"), store="s", ttl=HISTORY, history_retention=HISTORY
            ),
            "both ttl= and history_retention=",
        ),
        (
            lambda: joining(history=None, grace=ms(1), store="waiting"),
            "KTABLE-SOURCE-0000000001 is not versioned; pass history_retention=",
        ),
        (
            lambda: joining(grace=ms(101), store="waiting"),
            "grace is 0:00:00.101000, but the table 'rates' keeps its history for only 0:00:00.100000; "
            "keep it at least as long as the grace",
        ),
        (lambda: joining(grace=ms(-1), store="waiting"), "must not be negative"),
        (lambda: joining(grace=ms(1)), "a versioned table with grace= and store="),
        (lambda: joining(store="waiting"), "a versioned table with grace= and store="),
        (
            lambda: joining(grace=ms(1), key="currency", store="waiting", of=StreamsBuilder.global_table),
            "a versioned table with grace= and store=, or a global table with key=",
        ),
        (
            lambda: (
                rates_of(StreamsBuilder())
                .filter(col("rate") > 1)
                .suppress(Suppressed.until_time_limit(ms(1), BufferConfig.unbounded()))
            ),
            "'rates' is versioned, and a suppression cannot hold back",
        ),
    ],
)
def test_options_that_do_not_fit_a_versioned_table_are_refused_with_the_way_out(describe, message):
    with pytest.raises(TopologyError, match=message):
        describe()


SHORT = ms(12)


def versioned(builder: StreamsBuilder, history: timedelta = SHORT) -> KTable:
    return builder.table("right", key=String("id"), value=Json(Event), store="t", history_retention=history)


def own_table(builder: StreamsBuilder) -> None:
    stream = left(builder)
    stream.join(stream.filter(col("amount") > 3).to_table("t", history_retention=SHORT)).to_delta("out")


def own_table_later(builder: StreamsBuilder) -> None:
    stream = left(builder)
    early = stream.map_values(twice=col("amount") * 2)
    early.left_join(stream.to_table("t", history_retention=SHORT), grace=ms(4), store="w").to_delta("out")


PROGRAMS = {
    "join as of a time": lambda b: left(b).join(versioned(b)).to_delta("out"),
    "left join as of a time": lambda b: left(b).left_join(versioned(b)).to_delta("out"),
    "left join with a grace": lambda b: left(b).left_join(versioned(b), grace=ms(5), store="w").to_delta("out"),
    "join with a grace of zero": lambda b: left(b).join(versioned(b), grace=ms(0), store="w").to_delta("out"),
    "join with a filtered table, with a grace": lambda b: (
        left(b)
        .left_join(versioned(b).filter(col("amount") > 3).map_values(twice=col("amount") * 2), grace=ms(12), store="w")
        .to_delta("out")
    ),
    "joined as of a time, aggregated": lambda b: (
        left(b)
        .join(versioned(b), grace=ms(3), store="w")
        .group_by_key()
        .agg("s", n=Count(), total=Sum("amount_right"))
        .to_stream()
        .to_delta("out")
    ),
    "join with a table of the stream itself": own_table,
    "join with a table that the stream reaches later": own_table_later,
    "to a stream": lambda b: versioned(b).filter(col("amount") > 3).to_stream().to_delta("out"),
    "to a table": lambda b: versioned(b).map_values(twice=col("amount") * 2).to_delta("out"),
    "every update": lambda b: versioned(b).to_delta("out", emit="record"),
    **{
        f"{join} of tables": lambda b, join=join: (
            getattr(left(b).to_table("l", history_retention=SHORT), join)(versioned(b).filter(col("amount") > 3))
            .to_stream()
            .to_delta("out")
        )
        for join in ("join", "left_join", "outer_join")
    },
    "join of a versioned table and another": lambda b: (
        left(b).to_table("l").outer_join(versioned(b)).to_stream().to_delta("out")
    ),
    "table by another key": lambda b: versioned(b).filter(col("amount") > 2).group_by("word").count("n"),
}
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["left", "right", "right"]),
        st.sampled_from(["a", "a", "b", None]),
        st.integers(0, 40),
        st.one_of(st.none(), st.tuples(st.integers(0, 9), st.sampled_from("xyz"))),
    ),
    min_size=1,
    max_size=30,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=examples(12))
@given(records=RECORDS, cuts=CUTS)
def test_any_cut_into_batches_gives_what_single_records_give(name, records, cuts):
    assert_cuts_do_not_show(PROGRAMS[name], records, cuts)


def by_definition(order: list, grace_ms: int, history_ms: int) -> list[tuple]:
    """Key, value, the table's value and time of each result of a left join with a grace, record by record."""
    versions, waiting, out = defaultdict(dict), [], []
    table_time = stream_time = -1

    def join(time_ms, key, _, value):
        held = versions[key]
        at = max((since for since in held if since <= time_ms), default=None)
        is_known = at is not None and (at == max(held) or time_ms >= table_time - history_ms)
        out.append((key, value, held[at] if is_known else None, time_ms))

    for number, ((topic, key, time_ms, value), _) in enumerate(order):
        if topic == "right":
            if key is not None and time_ms >= table_time - history_ms:
                table_time = max(table_time, time_ms)
                versions[key][time_ms] = value
        elif value is not None and key is None:
            out.append((None, value, None, time_ms))
        elif value is not None:
            stream_time = max(stream_time, time_ms)
            waiting.append((time_ms, key, number, value))
            late = [each for each in waiting if each[0] < stream_time - grace_ms and each[2] == number]
            for each in late or sorted(each for each in waiting if each[0] <= stream_time - grace_ms):
                join(*each)
                waiting.remove(each)
    return out


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(
    records=st.lists(
        st.tuples(
            st.sampled_from(["left", "right"]),
            st.just("a"),
            st.integers(0, 15),
            st.tuples(st.integers(0, 9), st.just("x")),
        ),
        min_size=5,
        max_size=20,
    )
    | RECORDS,
    cuts=CUTS,
    history_ms=st.integers(1, 9),
    grace_ms=st.integers(0, 9),
)
def test_a_join_with_a_grace_gives_what_its_definition_gives(records, cuts, history_ms, grace_ms):
    grace_ms = min(grace_ms, history_ms)
    sub_topology = build(
        lambda b: left(b).left_join(versioned(b, ms(history_ms)), grace=ms(grace_ms), store="w").to_delta("out")
    )
    order = picked(records, sub_topology.inputs)
    rows = run(sub_topology, batches(order, cuts))["facts"].get("out", [])
    found = [
        (
            row["user"],
            (row["amount"], row["word"]),
            None if row["word_right"] is None else (row["amount_right"], row["word_right"]),
            int(row["_ts"].timestamp() * 1000),
        )
        for row in rows
    ]
    assert found == by_definition(order, grace_ms, history_ms)
