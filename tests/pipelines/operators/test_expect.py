"""Expectations on streams and tables: what goes on, what is counted and put aside, against a plain model."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars import col

from tests.examples import examples
from weir import (
    Application,
    BufferConfig,
    Int64,
    KeyValueStore,
    Materialized,
    Processor,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from weir.pipelines.errors import ExpectationError
from weir.pipelines.expectations import ON_VIOLATION, ExpectationCounts
from weir.testing import TopologyTestDriver

RECORDS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(-3, 9)), max_size=30)


def add(one, other):
    return one + other


def positive(key, n):
    return n is not None and n > 0


PREDICATES = [col("n") > 0, positive]


def counts(passed=0, failed=0, dropped=0):
    return ExpectationCounts(passed=passed, failed=failed, dropped=dropped)


def numbers(builder):
    return builder.stream("in", key=String("k"), value=Int64("n"))


def number_table(builder):
    return builder.table("in", key=String("k"), value=Int64("n"), store="all")


def driver_of(builder, **options):
    return TopologyTestDriver(Application("test", builder, **options))


def piped(driver, records, *, in_one_epoch=False):
    topic = driver.create_input_topic("in")
    if not in_one_epoch:
        topic.pipe_key_value_list(records)
    elif records:
        with driver.one_epoch():
            topic.pipe_key_value_list(records)


def windowed(builder):
    windows = numbers(builder).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=10)))
    return windows.count("counts")


FINAL = Suppressed.until_window_closes(BufferConfig.unbounded())


def keys(driver, table):
    return [key for key, _ in driver.create_output_table(table).read_key_values_to_list()]


@dataclass
class Model:
    """Record by record, in Python."""

    passed: int = 0
    failed: int = 0
    dropped: int = 0

    def stream(self, records, on_violation):
        for key, n in records:
            is_met = n is not None and n > 0
            self.passed += is_met
            self.failed += not is_met
            if is_met or on_violation == "count":
                yield key, n
            else:
                self.dropped += 1

    def updates(self, records, on_violation):
        for key, n in records:
            if n is None:
                yield key, None
            else:
                yield from self.stream([(key, n)], on_violation)

    @property
    def counts(self):
        return counts(self.passed, self.failed, self.dropped)


@given(
    records=RECORDS,
    predicate=st.sampled_from(PREDICATES),
    on_violation=st.sampled_from(["count", "drop", "dead_letter"]),
    in_one_epoch=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_stream_has_what_a_plain_model_has(records, predicate, on_violation, in_one_epoch):
    builder, model = StreamsBuilder(), Model()
    numbers(builder).expect("positive", predicate, on_violation=on_violation).to_delta("out")
    with driver_of(builder) as driver:
        piped(driver, records, in_one_epoch=in_one_epoch)
        assert driver.create_output_table("out").read_key_values_to_list() == list(model.stream(records, on_violation))
        assert driver.expectations == {"positive": model.counts}
        put_aside = [place for place, (_, n) in enumerate(records) if not positive("", n)]
        assert [letter.offset for letter in driver.dead_letters] == put_aside * (on_violation == "dead_letter")


@given(
    records=RECORDS,
    predicate=st.sampled_from(PREDICATES),
    on_violation=st.sampled_from(["count", "drop", "dead_letter"]),
    in_one_epoch=st.booleans(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_table_has_what_a_plain_model_has(records, predicate, on_violation, in_one_epoch):
    builder, model = StreamsBuilder(), Model()
    table = number_table(builder).expect("positive", predicate, on_violation=on_violation, store="valid")
    table.to_delta("out", emit="record")
    table.group_by("k").count("counted").to_delta("counts")
    with driver_of(builder) as driver:
        piped(driver, records, in_one_epoch=in_one_epoch)
        wanted = list(model.updates(records, on_violation))
        assert driver.create_output_table("out").read_key_values_to_list() == wanted
        rows = {key: n for key, n in dict(wanted).items() if n is not None}
        assert dict(driver.get_key_value_store("valid").all()) == rows
        counted = driver.get_key_value_store("counted")
        assert {key: n for key, n in counted.all() if n} == dict.fromkeys(rows, 1)
        assert driver.expectations == {"positive": model.counts}


@pytest.mark.parametrize("in_one_epoch", [False, True])
def test_a_record_that_is_put_aside_has_no_effect_anywhere(in_one_epoch):
    builder = StreamsBuilder()
    records = numbers(builder)
    records.to_delta("all")
    records.expect("positive", col("n") > 0, on_violation="dead_letter").expect("small", col("n") < 9).to_delta("out")
    with driver_of(builder) as driver:
        piped(driver, [("a", 1), ("b", -1), ("c", 9), ("d", None)], in_one_epoch=in_one_epoch)
        assert keys(driver, "all") == ["a", "c"]
        assert driver.expectations == {"positive": counts(2, 2, 2), "small": counts(1, 1)}
        (first, second) = driver.dead_letters
        assert (first.topic, first.offset, first.key, first.expectation) == ("in", 1, b"b", "positive")
        assert (first.stage, first.operator) == ("processing", "KSTREAM-EXPECT-positive")
        assert (first.reason, first.trace) == ("the expectation 'positive' is violated", None)
        assert second.offset == 3
        assert driver.counts["dead_letters"] == 2


@given(records=RECORDS)
@settings(max_examples=examples(40), deadline=None)
def test_what_depends_on_earlier_records_is_judged_without_those_put_aside(records):
    """A running sum: a record that would take it above ten is put aside, and those after it are judged without it."""
    builder = StreamsBuilder()
    table = numbers(builder).filter(col("n").is_not_null()).group_by_key().reduce("sums", add)
    table.expect("at_most_ten", col("n") <= 10, on_violation="dead_letter").to_delta("out", emit="record")
    wanted, sums, put_aside, passed = [], Counter(), [], 0
    for place, (key, n) in enumerate(records):
        if n is None:
            continue
        if sums[key] + n > 10:
            put_aside.append(place)
        else:
            sums[key] += n
            passed += 1
            wanted.append((key, sums[key]))
    with driver_of(builder) as driver:
        piped(driver, records, in_one_epoch=True)
        assert driver.create_output_table("out").read_key_values_to_list() == wanted
        assert [letter.offset for letter in driver.dead_letters] == put_aside
        assert driver.expectations["at_most_ten"] == counts(passed, len(put_aside), len(put_aside))


def test_an_operator_that_fails_beside_it_is_decided_about_by_the_application():
    builder = StreamsBuilder()
    stream = numbers(builder).expect("positive", col("n") > 0, on_violation="dead_letter")
    stream.map_values(inverse).to_delta("out")
    with driver_of(builder, on_processing_error="continue") as driver:
        piped(driver, [("a", 2), ("b", 1), ("c", -1), ("d", 3)], in_one_epoch=True)
        assert driver.create_output_table("out").read_key_values_to_list() == [("a", 12), ("d", 6)]
        assert [letter.offset for letter in driver.dead_letters] == [2]
        assert (driver.counts["dead_letters"], driver.counts["failed_records"]) == (1, 1)
        assert driver.expectations["positive"] == counts(2, 1, 1)


def inverse(n: int) -> int:
    return 12 // (n - 1)


@pytest.mark.parametrize("on_processing_error", ["fail", "continue", "dead_letter"])
def test_a_violation_stops_the_run_whatever_the_application_does_with_errors(on_processing_error):
    builder = StreamsBuilder()
    numbers(builder).expect("positive", col("n") > 0, on_violation="fail").to_delta("out")
    with driver_of(builder, on_processing_error=on_processing_error) as driver:
        piped(driver, [("a", 1)])
        with pytest.raises(ExpectationError) as caught:
            piped(driver, [("b", 2), ("c", -1), ("d", 4)], in_one_epoch=True)
        assert str(caught.value) == (
            "KSTREAM-EXPECT-positive: the record of topic 'in', partition 0, offset 2, key k='c' violates the "
            "expectation 'positive'; correct the expectation, or let it count such records with on_violation=\"count\""
        )
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        assert keys(driver, "out") == ["a"]
        assert driver.dead_letters == []


@pytest.mark.parametrize(("least", "on_violation"), [(0, "count"), (-9, "fail")])
def test_the_ways_out_of_a_violation_that_stops_the_run_work(least, on_violation):
    builder = StreamsBuilder()
    numbers(builder).expect("positive", col("n") > least, on_violation=on_violation).to_delta("out")
    with driver_of(builder) as driver:
        piped(driver, [("c", -1)])
        assert keys(driver, "out") == ["c"]


@pytest.mark.parametrize("on_violation", ["count", "drop"])
def test_final_results_are_judged_once_and_need_no_store(on_violation):
    builder = StreamsBuilder()
    windowed(builder).suppress(FINAL).expect("several", col("count") > 1, on_violation=on_violation).to_delta("out")
    with driver_of(builder) as driver:
        topic = driver.create_input_topic("in")
        for key, seconds in [("a", 1), ("a", 2), ("b", 3), ("c", 20)]:
            topic.pipe_input(key, 1, timestamp_ms=seconds * 1000)
        wanted = [2, 1] if on_violation == "count" else [2]
        assert driver.create_output_table("out").read_values_to_list() == wanted
        assert driver.expectations["several"] == counts(1, 1, on_violation == "drop")


def test_every_update_of_an_aggregation_is_judged_also_where_only_the_newest_is_written():
    builder = StreamsBuilder()
    numbers(builder).group_by_key().count("counts").expect("at_most_two", col("count") <= 2).to_delta("out")
    with driver_of(builder) as driver:
        piped(driver, [("a", 1)] * 5, in_one_epoch=True)
        assert driver.expectations["at_most_two"] == counts(2, 3)
        assert driver.create_output_table("out").read_values_to_list() == [5]


def test_a_table_with_an_expectation_that_drops_nothing_is_looked_up_as_before():
    builder = StreamsBuilder()
    names = builder.table("names", key=String("k"), value=String("name"), store="names")
    known = names.expect("named", col("name") != "", on_violation="dead_letter")
    numbers(builder).join(known).to_delta("out")
    with driver_of(builder) as driver:
        driver.create_input_topic("names").pipe_key_value_list([("a", "Ann"), ("a", "")])
        piped(driver, [("a", 1)])
        assert driver.create_output_table("out").read_rows() == [{"k": "a", "n": 1, "name": "Ann"}]


def test_a_join_finds_the_row_from_before_an_update_that_was_dropped():
    builder = StreamsBuilder()
    names = builder.table("names", key=String("k"), value=String("name"), store="names")
    known = names.expect("named", col("name") != "", on_violation="drop", store="known")
    numbers(builder).join(known).to_delta("out")
    with driver_of(builder) as driver:
        driver.create_input_topic("names").pipe_key_value_list([("a", "Ann"), ("a", "")])
        piped(driver, [("a", 1)])
        assert driver.create_output_table("out").read_rows() == [{"k": "a", "n": 1, "name": "Ann"}]


def test_an_expectation_that_judged_nothing_counts_nothing():
    builder = StreamsBuilder()
    numbers(builder).expect("positive", col("n") > 0)
    with driver_of(builder) as driver:
        assert driver.expectations == {"positive": counts()}
        assert driver.expectations["positive"].failed_share == 0.0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda b: numbers(b).expect("n>0", col("n") > 0), "use letters, digits and underscores"),
        (lambda b: numbers(b).expect(None, col("n") > 0), "an expectation is named None"),
        (lambda b: numbers(b).expect("x", col("n")), "the predicate has type Int64; it must be true or false"),
        (lambda b: numbers(b).expect("x", col("n") > 0, on_violation="warn"), "got on_violation='warn'"),
        (
            lambda b: numbers(b).expect("x", col("n") > 0).expect("x", col("n") > 1),
            "the name 'x' is given to two expectations",
        ),
        (
            lambda b: number_table(b).expect("x", col("n") > 0, on_violation="drop"),
            'name a store for them, as in expect(..., on_violation="drop", store="valid")',
        ),
        (
            lambda b: b.table(
                "in", key=String("k"), value=Int64("n"), store="all", history_retention=timedelta(days=1)
            ).expect("x", col("n") > 0, on_violation="drop", store="valid"),
            "drops updates of a versioned table",
        ),
        (
            lambda b: windowed(b).suppress(FINAL).expect("x", col("count") > 0, on_violation="dead_letter"),
            "final results come of time",
        ),
        (
            lambda b: windowed(b).expect("x", col("count") > 0).suppress(FINAL),
            "stands between the windows and their suppression",
        ),
        (
            lambda b: windowed(b).expect("x", col("count") > 0, on_violation="drop", store="valid").suppress(FINAL),
            "stands between the windows and their suppression",
        ),
    ],
)
def test_what_cannot_run_is_refused(program, reason):
    with pytest.raises(TopologyError) as caught:
        program(StreamsBuilder())
    assert reason in str(caught.value)


@pytest.mark.parametrize("on_violation", ON_VIOLATION)
def test_the_ways_out_of_refusals_work(on_violation):
    """On the stream before the table, and with a store of its own."""
    builder = StreamsBuilder()
    valid = numbers(builder).expect("on_stream", col("n") > 0, on_violation=on_violation)
    valid.to_table("stock", history_retention=timedelta(days=1)).to_delta("out")
    other = builder.table("other", key=String("k"), value=Int64("n"), store="other")
    other.expect("on_table", col("n") > 0, on_violation=on_violation, store="valid").to_delta("others")
    with driver_of(builder) as driver:
        piped(driver, [("a", 1)])
        driver.create_input_topic("other").pipe_input("b", 2)
        assert driver.expectations == {"on_stream": counts(1), "on_table": counts(1)}


def counting(store, on_violation="dead_letter"):
    builder = StreamsBuilder()
    valid = numbers(builder).expect("positive", col("n") > 0, on_violation=on_violation)
    valid.group_by_key().count(store)
    return Application("test", builder)


def test_a_store_without_a_changelog_cannot_be_computed_again_without_what_was_put_aside():
    with pytest.raises(TopologyError, match="without regard to what the expectation 'positive' put aside"):
        counting(Materialized("counts", logging=False))


@pytest.mark.parametrize(
    ("store", "on_violation"),
    [
        (Materialized("counts"), "dead_letter"),
        (Materialized("counts", logging=False, on_loss="empty"), "dead_letter"),
        (Materialized("counts", logging=False), "drop"),
    ],
)
def test_the_ways_out_for_a_store_without_a_changelog_work(store, on_violation):
    with TopologyTestDriver(counting(store, on_violation)) as driver:
        piped(driver, [("a", 1), ("a", -1)])
        assert dict(driver.get_key_value_store("counts").all()) == {"a": 1}


def test_what_is_put_aside_goes_to_the_topic_of_dead_letters():
    builder = StreamsBuilder()
    numbers(builder).expect("positive", col("n") > 0, on_violation="dead_letter").to_delta("out")
    with driver_of(builder, dead_letter_topic="dead") as driver:
        piped(driver, [("a", 1), ("b", -1)])
        (record,) = driver.create_output_topic("dead").read_records()
        assert record.key == b"b"
        headers = {name: value.decode() for name, value in record.headers if value is not None}
        assert headers["__streams.errors.message"] == "the expectation 'positive' is violated"


def held():
    return Suppressed.until_time_limit(timedelta(seconds=1), BufferConfig.unbounded())


def test_it_is_shown_in_the_topology_without_a_number():
    with_it, without = StreamsBuilder(), StreamsBuilder()
    numbers(with_it).expect("positive", col("n") > 0).group_by_key().count("counts").suppress(held()).to_delta("out")
    numbers(without).group_by_key().count("counts").suppress(held()).to_delta("out")
    described, plain = (Application("test", each).topology.describe() for each in (with_it, without))
    assert "Processor: KSTREAM-EXPECT-positive (stores: [])" in described
    for line in plain.splitlines():
        if "-->" not in line and "<--" not in line:
            assert line in described


class Adds(Processor[str, int, str, int]):
    """Forwards the sum of its key in a store that it shares."""

    def init(self, context):
        self.context, self.sums = context, context.state_store("sums")

    def process(self, record):
        total = (self.sums.get(record.key) or 0) + record.value
        self.sums.put(record.key, total)
        self.context.forward(record.with_value(total))


@given(records=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=20), in_one_epoch=st.booleans())
@settings(max_examples=examples(30), deadline=None)
def test_between_processors_that_share_a_store_records_are_judged_one_by_one(records, in_one_epoch):
    """The second adds what the first has forwarded; a record whose sum is a multiple of three, or whose number is five,
    leaves no trace in the store."""
    builder = StreamsBuilder().add_state_store(KeyValueStore("sums", key=str, value=int))
    first = (
        numbers(builder).expect("not_five", col("n") != 5, on_violation="dead_letter").process(Adds, stores=["sums"])
    )
    valid = first.expect("not_by_three", col("value") % 3 != 0, on_violation="dead_letter")
    valid.process(Adds, stores=["sums"]).to_delta("out")
    wanted, sums, put_aside = [], Counter(), []
    for place, (key, n) in enumerate(records):
        total = sums[key] + n
        if n == 5 or total % 3 == 0:
            put_aside.append(place)
        else:
            sums[key] = 2 * total
            wanted.append((key, 2 * total))
    with driver_of(builder) as driver:
        piped(driver, records, in_one_epoch=in_one_epoch)
        assert driver.create_output_table("out").read_key_values_to_list() == wanted
        assert [letter.offset for letter in driver.dead_letters] == put_aside
        assert driver.expectations["not_by_three"].passed == len(wanted)
        found = driver.expectations.values()
        assert sum(each.failed for each in found) == sum(each.dropped for each in found) == len(put_aside)
