"""What cannot run is refused while the topology is built, in one sentence with the way out."""

import operator
import re
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pytest
from polars import col

from weir import (
    Application,
    ApproxQuantiles,
    Avro,
    BufferConfig,
    Collect,
    Count,
    Delimited,
    First,
    JoinWindows,
    Json,
    Last,
    MaxBy,
    Mean,
    MinBy,
    Msgpack,
    Protobuf,
    SessionWindows,
    StdDev,
    StreamsBuilder,
    String,
    StringAgg,
    Sum,
    Suppressed,
    TimeWindowed,
    TimeWindows,
    TopK,
    TopologyError,
    UnlimitedWindows,
    ValueCounts,
    Variance,
)
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str
    ms: int | None


@dataclass(frozen=True)
class Hidden:
    _page: str


@dataclass(frozen=True)
class Tags:
    tags: list[str]


@dataclass(frozen=True)
class Start:
    window_start: int


def untyped(value):
    return value


def untyped_of_any(*taken):
    return taken


def odd(value) -> complex:
    return 1j


WINDOWS = TimeWindows.of_size_with_no_grace(timedelta(hours=1))
FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())
SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(minutes=1))
CLOSE = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=1))


def clicks(builder=None, value=Click, key="user"):
    return (builder or StreamsBuilder()).stream("clicks", key=String(key), value=Json(value))


def with_clicks(describe):
    return describe(clicks())


def joined_with_users(key):
    builder = StreamsBuilder()
    return clicks(builder).join(builder.global_table("users", **TABLE), key=key)


def by_key(**aggregates):
    return clicks().group_by_key().agg("s", **aggregates)


def built():
    builder = StreamsBuilder()
    clicks(builder)
    return builder.build()


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: clicks(value=Hidden), r"'_page' begins with an underscore"),
        (lambda: clicks(key="page"), r"'page' is both a key column and a value column; rename"),
        (lambda: clicks().group_by_key().agg("", n=Count()), "the store has no name"),
        (lambda: clicks().group_by_key().count(None), "the store has no name"),
        (lambda: clicks().to_table("a/b"), "the store name 'a/b' .*use letters, digits, dots, dashes and underscores"),
        (lambda: clicks().to_delta("_commits"), "the table name '_commits' .*begin with a letter or digit"),
        (lambda: clicks().group_by_key().agg("s"), "computes nothing"),
        (lambda: clicks().group_by_key().agg("s", n=Count), "pass Count()"),
        (lambda: clicks().group_by_key().agg("s", n=Sum("nope")), "'nope'; the columns here are user, page, ms"),
        (lambda: clicks().group_by_key().agg("s", n=Mean("page")), "it needs numbers or booleans"),
        (lambda: clicks().group_by_key().agg("s", n=Sum(pl.lit(1))), "uses no column"),
        (lambda: clicks().group_by_key().agg("s", user=Count()), "'user' is both"),
        (lambda: clicks().group_by_key().agg("s", _n=Count()), "underscore"),
        (
            lambda: clicks().group_by_key().agg("s", n=Mean("ms"), n__sum=Count()),
            "'n__sum' is reserved for Weir's own state; rename",
        ),
        (
            lambda: clicks(key="n__count").group_by_key().agg("s", n=Mean("ms")),
            "'n__count' is reserved for Weir's own state; rename",
        ),
        (
            lambda: clicks().group_by_key().agg("s", n__stored=Count()),
            "'n__stored' is reserved for Weir's own state; rename",
        ),
        (lambda: StreamsBuilder().table("t", key=Json(Tags), value=String(), store="s"), "'tags', which is a list"),
        (lambda: clicks().filter(col("ms") + 1), "it must be true or false"),
        (lambda: clicks().filter(col("ms").shift(1) > 1), "beyond its own record"),
        (lambda: clicks().filter(col("ms") > col("ms").mean()), "beyond its own record"),
        (lambda: clicks().map_values(x=col("ms").filter(col("ms") > 1) + 1), "beyond its own record"),
        (lambda: clicks().map_values(x=col("ms").map_elements(untyped, return_dtype=pl.Int64)), "map_elements"),
        (lambda: clicks().map_values(x=col("page").dt.hour()), "does not fit the columns"),
        (lambda: clicks().map_values(untyped), "untyped has no return annotation"),
        (lambda: clicks().map_values(odd), "no column type"),
        (lambda: clicks().map_values(), "either one function or columns"),
        (lambda: clicks().map_values(user=col("ms")), "'user' is both"),
        (lambda: clicks().select_key(untyped_of_any), "no return annotation"),
        (lambda: clicks().select_key(), "no columns"),
        (lambda: clicks().select_key(page="user"), "'page' is both"),
        (lambda: clicks().group_by_key().aggregate("s", dict, untyped_of_any), "no return annotation"),
        (lambda: clicks().group_by_key().windowed_by(timedelta(hours=1)), "pass TimeWindows"),
        (lambda: clicks(value=Start).group_by_key().windowed_by(WINDOWS).reduce("s", max), "reserved for the window"),
        (
            lambda: (
                clicks().group_by_key().windowed_by(WINDOWS).count("s").to_stream().group_by_key().windowed_by(WINDOWS)
            ),
            "windowed already",
        ),
        (lambda: clicks().group_by_key().count("s").suppress(FINAL), "needs a windowed table"),
        (lambda: clicks().group_by_key().windowed_by(WINDOWS).count("s").suppress(WINDOWS), "pass Suppressed"),
        (lambda: Delimited(Hidden, sep=""), "empty separator"),
        (
            lambda: with_clicks(lambda s: s.merge(s.map_values(page="page"))),
            "user: String, page: String, ms: Int64 and user: String, page: String; give both the same names",
        ),
        (lambda: with_clicks(lambda s: s.merge(s.to_table("s"))), "merge got a KTable; pass a stream"),
        (
            lambda: with_clicks(lambda s: s.join(s.group_by_key().windowed_by(WINDOWS).count("s").suppress(FINAL))),
            r"joins the key \(user: String\) with the key \(user: String, window_start",
        ),
        (
            lambda: with_clicks(lambda s: s.join(s.group_by_key().windowed_by(WINDOWS).count("s"))),
            r"joins the key \(user: String\) with the key \(user: String, window_start",
        ),
        (
            lambda: joined_with_users("ms"),
            r"joins the key \(ms: Int64\) with the key \(user: String\); give key= columns of the same types",
        ),
        (
            lambda: with_clicks(lambda s: s.join(s.filter(col("ms") > 0), windows=CLOSE, store=("a", "b", "c"))),
            "got 3 stores, .*; pass two names, or one that begins",
        ),
        (
            lambda: with_clicks(lambda s: s.join(s.filter(col("ms") > 0), windows=CLOSE, store=("a", "b/"))),
            "store name 'b/' is invalid",
        ),
        (lambda: with_clicks(lambda s: s.join(s.to_table("s", ttl=timedelta(hours=1)))), "cannot look them up"),
        (lambda: with_clicks(lambda s: s.join(s.to_table("s"), windows=timedelta(1))), "cannot join .* this way"),
        (lambda: with_clicks(lambda s: s.join(s.to_table("s"), grace=timedelta(1))), "cannot join a KTable this way"),
        (lambda: with_clicks(lambda s: s.to_table("s").join(s)), "a table cannot join a KStream; pass a table"),
        (lambda: with_clicks(lambda s: s.to(5)), "the topic name is 5; pass text"),
        (lambda: StreamsBuilder().build(), "reads nothing"),
        (
            lambda: StreamsBuilder().table(re.compile("c.*"), key=String(), value=String(), store="s"),
            r"the topic is re.compile\('c.\*'\); pass its name.*only stream\(...\) reads several",
        ),
        (
            lambda: StreamsBuilder().stream("c-*", key=String(), value=String()),
            r"'c-[*]' is not a valid .*; use up to 249 letters.*stream\(re.compile\('c-\*'\)",
        ),
        (
            lambda: StreamsBuilder().stream(["c", None], key=String(), value=String()),
            "the topic is None; pass its name",
        ),
        (
            lambda: StreamsBuilder().table(["c", "d"], key=String(), value=String(), store="s"),
            r"the topic is \['c', 'd'\]; .*only stream\(",
        ),
        (lambda: StreamsBuilder().stream("c", key=str, value=String()), "key is <class 'str'>; pass a serde"),
        (lambda: StreamsBuilder().stream("c", key=String(), value=String), "value is <class .*String'>; pass a serde"),
        (lambda: TimeWindows.of_size_and_grace(3600, 60), "window size is 3600; pass a datetime.timedelta"),
        (
            lambda: TimeWindows.of_size_with_no_grace(timedelta(seconds=-1)),
            "window size is -0:00:01; it must be at least",
        ),
        (
            lambda: TimeWindows.of_size_and_grace(timedelta(1), timedelta(hours=-25)),
            "grace is -1 day, 1:00:00; it must",
        ),
        (
            lambda: SessionWindows.of_inactivity_gap_with_no_grace(timedelta(microseconds=-1500)),
            r"inactivity gap is -0:00:00.001500, which is not a whole number",
        ),
        (
            lambda: JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=-2)),
            "time difference is -0:00:02; it",
        ),
        (lambda: UnlimitedWindows.start_on("2024"), "the window starts at '2024'; pass a datetime with tzinfo=UTC"),
        (lambda: BufferConfig.max_records("5"), "max_records is '5'; it must be a whole number from 0"),
        (lambda: BufferConfig.max_records(None), "max_records is None; it must be a whole number from 0"),
        (lambda: BufferConfig.max_records(True), "max_records is True; it must be a whole number from 0"),
        (
            lambda: BufferConfig.unbounded().with_max_bytes("1MB"),
            "max_bytes is '1MB'; it must be a whole number from 0",
        ),
        (lambda: BufferConfig.max_bytes(1.5), "max_bytes is 1.5; it must be a whole number from 0"),
        (
            lambda: clicks().group_by_key().agg("s", q=ApproxQuantiles("ms", at=0.5)),
            "q is at 0.5; give shares between 0",
        ),
        (
            lambda: clicks().group_by_key().agg("s", q=ApproxQuantiles("ms", at="5")),
            "q is at '5'; give shares between 0",
        ),
        (
            lambda: clicks().group_by_key().agg("s", c=Collect("ms", limit="3")),
            "the limit of c is '3'; it must be a whole",
        ),
        (lambda: by_key(n=Sum(3)), "an aggregate got an int as its column; pass a column's name"),
        (lambda: by_key(n=MaxBy("page", by=None)), "an aggregate got None as its column"),
        (lambda: by_key(n=MinBy("page", by="nope")), "no column 'nope'"),
        (lambda: by_key(n=MinBy("page", by=col("ms").implode())), "beyond its own record"),
        (lambda: by_key(n=MaxBy("page", by=pl.struct("ms"))), r"MaxBy.* compares .*Struct.* values that have an order"),
        (
            lambda: by_key(n=TopK("page", 3, by=pl.struct("ms"))),
            r"TopK.* compares .*Struct.* values that have an order",
        ),
        (lambda: by_key(n=TopK(pl.struct("ms"), 3)), r"TopK.* aggregates .*Struct.* values that have an order"),
        (lambda: by_key(n=TopK("ms", 0)), "k of n is 0; it must be a whole number from 1"),
        (
            lambda: by_key(n=First("page", by_time="ms")),
            r"by_time='ms'\) .*; pass by_time=True, or use MinBy\(..., by=",
        ),
        (lambda: by_key(n=Last("page", by_time=1)), r"by_time=1\) .*; pass by_time=True, or use MaxBy\(..., by="),
        (lambda: by_key(n=StringAgg("ms", ", ", 9)), r"StringAgg.* joins .*Int64; it needs text: make it with .cast"),
        (lambda: by_key(n=StringAgg("page", 5, 9)), r'the separator of n is an int; pass a text, such as ", "'),
        (lambda: by_key(n=StringAgg("page", ", ", 0)), "max_chars of n is 0; it must be a whole number from 1"),
        (lambda: by_key(n=ValueCounts("ms", 9)), r"ValueCounts.* counts .*Int64; it needs text: make it with .cast"),
        (lambda: by_key(n=ValueCounts("page", None)), "the limit of n is None; it must be a whole number from 1"),
        (lambda: by_key(n=Variance("page")), "it needs numbers or booleans"),
        (lambda: by_key(n=StdDev("ms", ddof=0.5)), "ddof of n is 0.5; it must be a whole number from 0"),
        (
            lambda: Protobuf(Click),
            "Protobuf got <class '.*Click'>.* not a message class; .* protoc generated.*orders_pb2.Order",
        ),
        (lambda: Avro("x.avsc"), "'x.avsc' is not a dataclass; declare the schema as a frozen dataclass"),
        (lambda: Json("x"), "'x' is not a dataclass"),
        (lambda: Msgpack("x"), "'x' is not a dataclass"),
        (lambda: Delimited("x", sep="-"), "'x' is not a dataclass"),
        (lambda: TimeWindowed(String(), size=5), "the size of TimeWindowed is 5; pass a datetime.timedelta"),
        (lambda: TimeWindowed(String(), size=timedelta(0)), "the size of TimeWindowed is 0:00:00; it must be at least"),
        (lambda: String(5), r"String got the column name 5; pass text, .*String\("),
        (lambda: Application("a", None), "got None as its builder; pass the StreamsBuilder that"),
        (lambda: Application("a", built()), "got a Topology as its builder; pass the StreamsBuilder that"),
        (
            lambda: Application(5, StreamsBuilder()),
            "the application id 5 .*use letters, digits, dashes and underscores",
        ),
        (
            lambda: Application("a", StreamsBuilder(), uncommitted_max_bytes="5"),
            "uncommitted_max_bytes is '5'; it must be",
        ),
        (
            lambda: TopologyTestDriver(StreamsBuilder()),
            r"runs an Application, but got a StreamsBuilder; pass Application\(",
        ),
    ],
)
def test_a_mistake_is_named(describe, message):
    with pytest.raises(TopologyError, match=message) as error:
        describe()
    assert "\n" not in str(error.value).split(": ", 2)[0]


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda b: [clicks(b), clicks(b)], "topic 'clicks' is declared 2 times; read it once"),
        (lambda b: [clicks(b).group_by_key().count("s").to_stream().group_by_key().agg("s", n=Count())], "store 's'"),
        (lambda b: [stream.to_delta("t") or stream.to_delta("t") for stream in [clicks(b)]], "table 't'"),
    ],
)
def test_two_nodes_with_one_name_are_refused_when_the_topology_is_built(describe, message):
    builder = StreamsBuilder()
    describe(builder)
    with pytest.raises(TopologyError, match=message):
        builder.build()


TABLE = dict(key=String("user"), value=Json(Click), store="t")


@pytest.mark.parametrize(
    "other",
    [
        lambda b: b.table("t", **TABLE),
        lambda b: b.table("t", **TABLE, history_retention=timedelta(1)),
        lambda b: b.global_table("t", **TABLE),
    ],
)
@pytest.mark.parametrize("options", [{}, {"windows": CLOSE, "store": "s"}])
def test_an_outer_join_of_a_stream_and_a_table_is_refused(other, options):
    """Kafka Streams has none: an unmatched table row is not a stream event."""
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match=r"outer_join joins two streams, and got a \w*KTable; use left_join"):
        clicks(builder).outer_join(other(builder), **options)


@pytest.mark.parametrize(
    "other",
    [
        lambda b: dict(other=b.global_table("t", **TABLE), key="user", name="mine"),
        lambda b: dict(other=b.global_table("t", **TABLE), key="user", retention=timedelta(1)),
        lambda b: dict(other=b.table("t", **TABLE), name="mine", retention=timedelta(1)),
    ],
)
def test_options_that_a_join_cannot_use_are_refused(other):
    builder = StreamsBuilder()
    options = other(builder)
    with pytest.raises(TopologyError, match=r"cannot join a .* this way; pass a stream"):
        clicks(builder).join(options.pop("other"), **options)


@pytest.mark.parametrize(
    "meet",
    [
        lambda one, two: clicks(one).merge(clicks(two)),
        lambda one, two: clicks(one).join(clicks(two), windows=CLOSE, store="s"),
        lambda one, two: clicks(one).left_join(clicks(two).select_key(k="page"), windows=CLOSE, store="s"),
        lambda one, two: clicks(one).left_join(two.table("t", **TABLE)),
        lambda one, two: clicks(one).join(
            two.table("t", **TABLE, history_retention=timedelta(1)), grace=timedelta(0), store="s"
        ),
        lambda one, two: clicks(one).join(two.global_table("t", **TABLE), key="page"),
        lambda one, two: one.table("t", **TABLE).outer_join(two.table("t", **TABLE)),
        lambda one, two: one.table("t", **TABLE).join(two.table("t", **TABLE), foreign_key="page"),
        lambda one, two: clicks(one).group_by_key().cogroup(n=Count()).cogroup(clicks(two).group_by_key(), m=Count()),
    ],
)
def test_streams_and_tables_of_two_builders_cannot_meet(meet):
    """The topology of one builder would never read the other's topics."""
    one, two = StreamsBuilder(), StreamsBuilder()
    with pytest.raises(TopologyError, match=r"come from two StreamsBuilders, .*; make both with the same"):
        meet(one, two)
    assert all(child in two._graph.nodes for node in two._graph.nodes for child in node.children)


def returning_click(*taken) -> Click:
    return Click("x", 1)


@pytest.mark.parametrize(
    ("describe", "wanted"),
    [
        (lambda s, f: s.map_values(f), "(value)"),
        (lambda s, f: s.filter(f), "(key, value)"),
        (lambda s, f: s.peek(f), "(key, value)"),
        (lambda s, f: s.select_key(f), "(key, value)"),
        (lambda s, f: s.map(f), "(key, value)"),
        (lambda s, f: s.flat_map(f), "(key, value)"),
        (lambda s, f: s.flat_map_values(f), "(value)"),
        (lambda s, f: s.split().branch(f), "(key, value)"),
        (lambda s, f: s.join(s.to_table("t"), f), "(value, other)"),
        (lambda s, f: s.to_table("t").join(s.to_table("u"), foreign_key=f), "(key, value)"),
        (lambda s, f: s.group_by_key().reduce("s", f), "(reduced, value)"),
        (lambda s, f: s.group_by_key().aggregate("s", f, returning_click), "()"),
        (lambda s, f: s.group_by_key().aggregate("s", dict, f), "(key, value, aggregate)"),
        (
            lambda s, f: s.group_by_key().windowed_by(SESSIONS).aggregate("s", dict, returning_click, f),
            "(key, aggregate, other)",
        ),
        (lambda s, f: s.group_by_key().cogroup(f).aggregate("s", dict), "(key, value, aggregate)"),
        (
            lambda s, f: s.group_by_key().cogroup(returning_click).windowed_by(SESSIONS).aggregate("s", dict, f),
            "(key, aggregate, other)",
        ),
        (lambda s, f: s.to_table("t").group_by("page").reduce("s", returning_click, f), "(reduced, value)"),
        (
            lambda s, f: s.to_table("t").group_by("page").aggregate("s", dict, f, returning_click),
            "(key, value, aggregate)",
        ),
    ],
)
def test_a_function_whose_parameters_do_not_fit_is_refused(describe, wanted):
    def four(one, two, three, four) -> Click:
        return Click("x", 1)

    with pytest.raises(
        TopologyError, match=re.escape("four takes (one, two, three, four)") + f".* with {re.escape(wanted)}; "
    ):
        describe(clicks(), four)


def test_a_function_without_a_known_signature_is_accepted():
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String(), value=String()).filter(operator.eq)
    numbers.group_by_key().reduce("least", min)
    numbers.group_by_key().aggregate("all", dict, returning_click)
    builder.build()


def longest(reduced: Click, value: Click) -> Click:
    return max(reduced, value, key=lambda click: len(click.page))


@pytest.mark.parametrize(
    "aggregate",
    [
        lambda grouped: grouped.reduce("s", longest),
        lambda grouped: grouped.windowed_by(WINDOWS).reduce("s", longest),
    ],
)
def test_a_key_that_is_also_a_column_of_the_result_is_refused_with_a_way_out_that_works(aggregate):
    with pytest.raises(
        TopologyError,
        match=re.escape(
            "'page' is both a key column and a value column; give the key another name, for example group_by(page_key="
            'col("page")), or rename or drop the value\'s column'
        ),
    ):
        aggregate(clicks().group_by("page"))
    aggregate(clicks().group_by(page_key=col("page")))
    clicks().select_key("page").map_values(ms="ms").group_by_key().reduce("s", max)
    with pytest.raises(TopologyError, match=r"group_by\(page_key="):
        clicks().to_table("t").group_by("page").reduce("s", longest, longest)
    clicks().to_table("t").group_by(page_key=col("page")).reduce("s", longest, longest)
