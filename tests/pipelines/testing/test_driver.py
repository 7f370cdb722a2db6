"""The test driver itself: what it reads and refuses, and that it leaves nothing behind."""

import re
import tempfile
import traceback
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tests.yardstick import processor_ms
from weir import (
    Application,
    BadInputError,
    Count,
    FixedKeyProcessor,
    JoinWindows,
    Json,
    Last,
    OperatorError,
    SessionWindows,
    StreamsBuilder,
    String,
    TimeWindows,
    TopologyError,
    UserFunctionError,
    Windowed,
)
from weir.pipelines.serdes.row_type import row_type_of
from weir.pipelines.topology.nodes import RecordType
from weir.testing import ReadOnlyVersionedStore, TopologyTestDriver


@dataclass(frozen=True)
class Click:
    page: str


@dataclass(frozen=True)
class NumberedClick:
    page: int


def application(value=Click, **settings):
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(value))
    clicks.group_by("page").count("pages").to_delta("totals")
    return Application("test", builder, **settings)


def test_reading_an_empty_table_raises():
    with TopologyTestDriver(application()) as driver:
        out = driver.create_output_table("totals")
        assert out.is_empty()
        for read in (out.read_row, out.read_record):
            with pytest.raises(LookupError, match="no unread row"):
                read()
        assert out.read_rows() == []


def test_unknown_names_are_refused_naming_the_known_ones():
    with TopologyTestDriver(application()) as driver:
        for look, name, known in (
            (driver.create_input_topic, "x", "clicks"),
            (driver.create_output_table, "x", "totals"),
            (driver.get_key_value_store, "x", "pages"),
            (driver.get_window_store, "pages", "no store of this kind"),
        ):
            with pytest.raises(LookupError, match=known):
                look(name)


def test_an_output_that_another_call_reads_is_read_by_that_call():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.to_delta("table")
    clicks.to("topic", name="to-topic")
    clicks.to_sql("rows", url="env:SHOP")
    with TopologyTestDriver(Application("test", builder)) as driver:
        calls = {
            "create_output_table": driver.create_output_table,
            "create_output_topic": driver.create_output_topic,
            "read_sink": driver.read_sink,
        }
        for name, way_out in (
            ("table", "it is a table: call create_output_table('table')"),
            ("topic", "it is a sink to Kafka: call create_output_topic('topic')"),
            ("to-topic", "it is a sink to Kafka: call create_output_topic('topic')"),
            ("rows", "it is a sink: call read_sink('rows')"),
        ):
            told = way_out.partition("call ")[2].partition("(")[0]
            for call in calls.keys() - {told}:
                with pytest.raises(LookupError, match=re.escape(way_out)):
                    calls[call](name)
        driver.create_output_table("table")
        driver.create_output_topic("topic")
        driver.read_sink("rows")

    clicks.to(pl.col("page"), name="by-page")
    with TopologyTestDriver(Application("test", builder)) as driver:
        way_out = re.escape("it is a sink to Kafka: call create_output_topic(the name of one of its topics)")
        for call in (driver.create_output_table, driver.read_sink):
            with pytest.raises(LookupError, match=way_out):
                call("by-page")
        driver.create_output_topic("home")


@pytest.mark.parametrize(
    ("call", "record", "message"),
    [
        (
            "pipe_key_value_list",
            Click("x"),
            r"takes a list of \(key, value\), but one of its items is Click\(page='x'\)",
        ),
        ("pipe_key_value_list", "ab", r"takes a list of \(key, value\), but one of its items is 'ab'"),
        ("pipe_key_value_list", ("ann",), r"one of its items is \('ann',\)"),
        (
            "pipe_records",
            ("ann", Click("x")),
            r"pipe_records takes a list of \(key, value, time\), but one of its items",
        ),
    ],
)
def test_a_list_of_other_things_than_records_is_refused(call, record, message):
    with TopologyTestDriver(application()) as driver:
        with pytest.raises(TypeError, match=message):
            getattr(driver.create_input_topic("clicks"), call)([record])
        assert driver.counts["records_in"] == 0


def test_after_bad_input_a_corrected_producer_or_schema_is_read():
    written = b'{"page": 3}'
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks")
        with pytest.raises(BadInputError, match="correct the producer or the declared schema"):
            topic.pipe_input("a", written, timestamp_ms=1)
        topic.pipe_input("a", b'{"page": "3"}', timestamp_ms=1)
        assert driver.create_output_table("totals").read_rows() == [dict(page="3", count=1)]
    with TopologyTestDriver(application(NumberedClick)) as driver:
        driver.create_input_topic("clicks").pipe_input("a", written, timestamp_ms=1)
        assert driver.create_output_table("totals").read_rows() == [dict(page=3, count=1)]


@pytest.mark.parametrize(
    ("key", "value", "timestamp_ms", "reason"),
    [
        ("a", b"{", 1, "value: "),
        ("a", b'{"page": 3}', 1, "Expected `str`"),
        (b"\xff", Click("x"), 1, "key: "),
        ("a", Click("x"), -1, "negative timestamp"),
    ],
)
def test_bad_input_stops_the_run_or_goes_to_the_dead_letters(key, value, timestamp_ms, reason):
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks")
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        with pytest.raises(BadInputError, match="topic 'clicks', partition 0, offset 1: .*" + reason):
            topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
    with TopologyTestDriver(application(on_error="dead_letter")) as driver:
        topic = driver.create_input_topic("clicks")
        topic.pipe_input(key, value, timestamp_ms=timestamp_ms)
        topic.pipe_input("a", Click("x"), timestamp_ms=1)
        assert [(bad.offset, reason in bad.reason) for bad in driver.dead_letters] == [(0, True)]
        assert driver.create_output_table("totals").read_rows() == [dict(page="x", count=1)]
        assert driver.counts["dead_letters"] == 1


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (3, Click("x"), r"topic 'clicks', key \(user\): 3 does not fit: String\('user'\) takes str, found 3 \(int\);"),
        ("a", object(), r"topic 'clicks', value \(page\): <object .*> does not fit: .*; pass an object that"),
        ("a", {"pages": "x"}, r"value \(page\): {'pages': 'x'} does not fit: .* missing required field `page`; pass"),
        ("a", NumberedClick(3), r"value \(page\): NumberedClick\(page=3\) does not fit: Expected `str`, got `int`"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "continue", "dead_letter"])
def test_an_object_that_does_not_fit_its_serde_is_refused_naming_topic_column_and_expected_type(
    key, value, words, on_error
):
    with TopologyTestDriver(application(on_error=on_error)) as driver:
        with pytest.raises(TypeError, match=words):
            driver.create_input_topic("clicks").pipe_input(key, value, timestamp_ms=1)
        assert (driver.counts["records_in"], driver.dead_letters) == (0, [])


@pytest.mark.parametrize("failed", [False, True])
def test_after_its_end_a_driver_says_that_it_is_closed_and_what_it_has_sent_can_be_read(failed):
    kept = pytest.raises(KeyError) if failed else nullcontext()
    with kept, TopologyTestDriver(application()) as driver:
        topic, store = driver.create_input_topic("clicks"), driver.get_key_value_store("pages")
        topic.pipe_input("ann", Click("x"))
        if failed:
            raise KeyError
    for use in (
        lambda: topic.pipe_input("ann", Click("x")),
        lambda: store.get("x"),
        lambda: driver.create_input_topic("clicks"),
        lambda: driver.get_key_value_store("pages"),
        lambda: driver.get_window_store("pages"),
        lambda: driver.get_session_store("pages"),
        lambda: driver.get_versioned_store("pages"),
        lambda: driver.get_list_store("pages"),
        lambda: driver.advance_wall_clock_time(timedelta(1)),
        lambda: driver.advance_stream_time(datetime(2026, 1, 1, tzinfo=UTC)),
        driver.restart,
        lambda: driver.one_epoch().__enter__(),
    ):
        with pytest.raises(RuntimeError, match="the driver is closed: make another TopologyTestDriver, or use"):
            use()
    driver.close()
    assert driver.create_output_table("totals").get_queue_size() == 1
    assert driver.counts["records_in"] == 1


def length_of(value: Click) -> int:
    raise ValueError(value.page)


class Failing(FixedKeyProcessor[str, Click, int]):
    def process(self, record):
        raise ValueError(record.value.page)


@pytest.mark.parametrize(
    ("apply", "raised", "of_cause"),
    [
        (lambda clicks: clicks.map_values(length_of), UserFunctionError, ["length_of"]),
        (lambda clicks: clicks.process_values(Failing), UserFunctionError, ["process"]),
        (lambda clicks: clicks.map_values(n=pl.col("page").cast(pl.Int64)), OperatorError, []),
    ],
)
def test_a_test_that_fails_shows_its_own_lines_and_those_of_the_program(apply, raised, of_cause):
    """As pytest shows a traceback: without what hides itself."""
    builder = StreamsBuilder()
    apply(builder.stream("clicks", key=String("user"), value=Json(Click))).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver, pytest.raises(raised) as failed:
        driver.create_input_topic("clicks").pipe_input("ann", Click("x"))
    assert [entry.path.name for entry in failed.traceback.filter(failed)] == [Path(__file__).name]
    assert [frame.name for frame in traceback.extract_tb(cause_of(failed.value))][-1:] == of_cause


def cause_of(error):
    return None if error.__cause__ is None else error.__cause__.__traceback__


def test_a_record_without_a_time_gets_that_of_the_wall_clock():
    start = datetime(2024, 1, 1, tzinfo=UTC)
    with TopologyTestDriver(application(), initial_wall_clock=start) as driver:
        driver.advance_wall_clock_time(timedelta(seconds=5))
        driver.create_input_topic("clicks").pipe_input("a", Click("x"))
        assert driver.create_output_table("totals").read_record().timestamp == start + timedelta(seconds=5)


def test_a_time_has_a_zone_and_is_given_once():
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks")
        with pytest.raises(ValueError, match="time zone"):
            topic.pipe_input("a", Click("x"), timestamp=datetime(2024, 1, 1))
        with pytest.raises(ValueError, match="not both"):
            topic.pipe_input("a", Click("x"), timestamp=datetime(2024, 1, 1, tzinfo=UTC), timestamp_ms=1)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda driver, topic: topic.pipe_input("a", Click("x"), timestamp=5), "the time is 5; pass a datetime with"),
        (lambda driver, topic: topic.pipe_records([("a", Click("x"), "5")]), "the time is '5'; pass a datetime with"),
        (
            lambda driver, topic: topic.advance_time(timedelta(seconds=-5)),
            "duration is -0:00:05; it must not be negative",
        ),
        (
            lambda driver, topic: driver.create_input_topic("clicks", start=5),
            "the time is 5; pass a datetime with tzinfo",
        ),
        (
            lambda driver, topic: driver.create_input_topic("clicks", auto_advance=timedelta(seconds=-1)),
            "auto_advance is -0:00:01; it must not be negative",
        ),
        (
            lambda driver, topic: driver.advance_wall_clock_time(timedelta(seconds=-5)),
            "duration is -0:00:05; it must not",
        ),
        (lambda driver, topic: driver.advance_wall_clock_time(5), "duration is 5; pass a datetime.timedelta"),
    ],
)
def test_values_that_are_not_times_and_negative_durations_are_refused(ask, message):
    with TopologyTestDriver(application()) as driver:
        topic = driver.create_input_topic("clicks", start=datetime(2024, 1, 1, tzinfo=UTC))
        with pytest.raises(TopologyError, match=message):
            ask(driver, topic)


def test_internal_stores_of_joins_are_refused():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    views = builder.stream("views", key=String("user"), value=Json(Click))
    near = JoinWindows.of_time_difference_with_no_grace(timedelta(minutes=1))
    clicks.join(views, windows=near, store="near").to_delta("both")
    newest, seen = clicks.to_table("newest"), views.to_table("seen")
    newest.join(seen, foreign_key="page", store="named").to_stream().to_delta("out")
    application = Application("test", builder)
    stores = {spec.name for each in application.topology.sub_topologies for spec in each.stores} - {"newest", "seen"}
    assert stores == {"near-this-join-store", "near-other-join-store", "named-subscription-store", "named-result-store"}
    with TopologyTestDriver(application) as driver:
        for store in stores:
            with pytest.raises(LookupError, match=rf"'{store}' is internal to the join \S+; read"):
                driver.get_key_value_store(store)
        assert driver.get_key_value_store("newest").all() == []


def test_nothing_touches_the_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with TopologyTestDriver(application()) as driver:
        driver.create_input_topic("clicks").pipe_input("a", Click("x"), timestamp_ms=1)
        assert list(tmp_path.iterdir()) == []
    driver.close()
    with pytest.raises(RuntimeError, match="the driver is closed"):
        driver.get_key_value_store("pages")


def test_a_test_with_the_driver_takes_less_than_ten_milliseconds():
    """Of the processor, at its best, beside the yardstick of plain Python: about 5 ms, so half of it."""
    app = application()

    def one_test():
        with TopologyTestDriver(app) as driver:
            topic = driver.create_input_topic("clicks")
            for index in range(3):
                topic.pipe_input("a", Click("x"), timestamp_ms=index)
            assert driver.create_output_table("totals").read_rows()[-1] == dict(page="x", count=3)

    assert processor_ms(one_test) < 10


HOUR = datetime(2024, 1, 1, 12, tzinfo=UTC)


def windowed():
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.to_table("pages").to_delta("pages")
    clicks.group_by_key().windowed_by(
        SessionWindows.of_inactivity_gap_and_grace(timedelta(minutes=5), timedelta(minutes=1))
    ).count("sessions").to_delta("sessions")
    clicks.group_by_key().windowed_by(TimeWindows.of_size_and_grace(timedelta(hours=1), timedelta(0))).agg(
        "hourly", n=Count(), last=Last("page")
    ).to_delta("hourly")
    return Application("test", builder)


def test_each_topic_of_a_stream_over_several_is_piped_by_its_name():
    builder = StreamsBuilder()
    clicks = builder.stream(["eu", "us"], key=String("user"), value=Json(Click))
    clicks.group_by_key().agg("pages", n=Count(), last=Last("page")).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        eu, us = driver.create_input_topic("eu"), driver.create_input_topic("us")
        for topic, page in ((eu, "a"), (us, "b"), (eu, "c")):
            topic.pipe_input("ann", Click(page), timestamp_ms=1)
        assert driver.create_output_table("out").read_rows() == [
            dict(user="ann", n=n, last=page) for n, page in enumerate("abc", 1)
        ]


def test_a_topics_own_time_moves_with_each_record():
    with TopologyTestDriver(windowed(), initial_wall_clock=HOUR) as driver:
        topic = driver.create_input_topic("clicks", start=HOUR, auto_advance=timedelta(seconds=10))
        topic.pipe_key_value_list([("a", Click("x")), ("b", Click("y"))])
        topic.advance_time(timedelta(minutes=1))
        topic.pipe_input("c", Click("z"))
        topic.pipe_input("d", Click("z"), timestamp=HOUR)
        topic.pipe_input("e", Click("z"))
        topic.pipe_value_list([Click("n")])
        times = [(record.timestamp - HOUR).seconds for record in driver.create_output_table("pages").read_records()]
        assert times == [0, 10, 80, 0, 90]
        assert driver.counts["null_keys"] == 3, "a null key reaches no table and no window"
        with pytest.raises(ValueError, match="no time of its own"):
            driver.create_input_topic("clicks").advance_time(timedelta(seconds=1))


def test_keys_and_values_are_read_one_by_one_as_a_list_and_as_a_map():
    with TopologyTestDriver(windowed()) as driver:
        topic = driver.create_input_topic("clicks", start=HOUR)
        hourly, pages = driver.create_output_table("hourly"), driver.create_output_table("pages")
        topic.pipe_key_value_list([("a", Click("x")), ("b", Click("y")), ("a", Click("z")), ("b", None)])
        key = Windowed("a", HOUR, HOUR + timedelta(hours=1))
        assert hourly.get_queue_size() == 4
        assert hourly.read_key_value() == (key, dict(n=1, last="x"))
        assert hourly.read_value() == dict(n=1, last="y")
        assert hourly.read_key_values_to_list()[0] == (key, dict(n=2, last="z"))
        assert pages.read_key_values_to_map() == {"a": dict(page="z"), "b": None}
        for read in (hourly.read_key_value, hourly.read_value):
            with pytest.raises(LookupError, match="'hourly' has no unread row"):
                read()
        assert hourly.read_values_to_list() == []


def test_a_map_refuses_null_keys():
    builder = StreamsBuilder()
    builder.stream("clicks", key=String("user"), value=Json(Click)).to_delta("out")
    with TopologyTestDriver(Application("test", builder)) as driver:
        driver.create_input_topic("clicks").pipe_value_list([Click("x")])
        with pytest.raises(ValueError, match="null key"):
            driver.create_output_table("out").read_key_values_to_map()


def test_stores_of_every_kind_are_read_with_their_keys_and_times():
    with TopologyTestDriver(windowed()) as driver:
        topic = driver.create_input_topic("clicks", start=HOUR, auto_advance=timedelta(minutes=2))
        topic.pipe_key_value_list([("a", Click("x")), ("a", Click("y")), ("b", Click("z"))])
        session = Windowed("a", HOUR, HOUR + timedelta(minutes=2))
        sessions = driver.get_session_store("sessions")
        assert sessions.fetch("a") == [(session, 2)]
        assert sessions.fetch_session("a", session.window_start, session.window_end) == 2
        assert sessions.fetch_session("a", HOUR, HOUR) is None
        pages = driver.get_key_value_store("pages")
        assert pages.get_with_timestamp("a") == (dict(page="y"), HOUR + timedelta(minutes=2))
        assert pages.get_with_timestamp("nobody") is None
        assert driver.get_window_store("hourly").fetch("a", HOUR) == dict(n=2, last="y")
        with pytest.raises(LookupError, match=r"no session store 'pages'.* has sessions"):
            driver.get_session_store("pages")


def test_versions_are_read_as_of_a_time():
    record = RecordType(key=row_type_of(str, "user"), value=row_type_of(Click, ""))
    rows = pl.DataFrame(
        {
            "user": ["a", "a", "a", "b"],
            "valid_from": [HOUR + timedelta(hours=n) for n in (0, 1, 2, 0)],
            "page": ["x", None, "z", "y"],
            "_gone": [False, True, False, False],
        }
    )
    store = ReadOnlyVersionedStore(lambda: rows, record)
    assert store.get("a") == dict(page="z")
    assert [store.get("a", HOUR + timedelta(minutes=30 * n)) for n in range(-1, 5)] == [
        None,
        dict(page="x"),
        dict(page="x"),
        None,
        None,
        dict(page="z"),
    ]
    assert [value for _, value in store.versions("a")] == [dict(page="x"), None, dict(page="z")]


def test_metrics_are_those_of_the_records_piped():
    with TopologyTestDriver(windowed()) as driver:
        topic = driver.create_input_topic("clicks")
        topic.pipe_records([("a", Click("x"), 7_200_000), ("a", Click("x"), 0), (None, Click("x"), 7_200_000)])
        driver.advance_wall_clock_time(timedelta(seconds=30))
        found = {reading.name: reading.value for reading in driver.metrics() if reading.tags == {"task-id": "0_0"}}
        assert (found["process-total"], found["process-rate"]) == (3, 0.1)
        assert (found["record-lateness-max"], found["record-lateness-avg"]) == (7_200_000, 2_400_000)
        assert (found["late-record-drop-total"], found["dropped-records-total"]) == (2, 5)
