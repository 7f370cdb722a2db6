"""Records that fail in operators are left out: the outcome is that of a plain model which takes record by record."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from polars import col

from tests.pipelines.processors.runs import disturbed_run, written
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.tasks.poison import (
    MapWithExpression,
    MapWithFunction,
    Number,
    PoisonError,
    Program,
    RunningSum,
    expression,
    numbers,
    plain,
    raw,
)
from weir import (
    Application,
    BadInputError,
    BadRecord,
    BufferConfig,
    Int32,
    Json,
    Processor,
    Punctuation,
    Record,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
    UserFunctionError,
)
from weir.pipelines.on_error import ErrorHandling
from weir.pipelines.spark.errors import TaskFailedError
from weir.pipelines.tasks import epoch, tables
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, dead_letter_frame
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, TaskPlan
from weir.state.commit.tables import read_table
from weir.state.types import StateId, TaskId
from weir.testing import TopologyTestDriver


@pytest.mark.parametrize("seed", range(20))
def test_runs_that_crash_leave_out_what_fails_and_nothing_else(seed, tmp_path):
    chance = random.Random(seed)
    program, rows = Program.random(chance), numbers(chance, 100)
    place = disturbed_run(program.application(on_processing_error="dead_letter"), raw(rows), tmp_path, seed)
    wanted, failed = program.model(rows)
    assert [row[:2] for row in written(place, "out", "key", "n")] == wanted
    letters = read_table(place.warehouse / "numbers" / "_dead_letters")
    assert letters["id"].n_unique() == letters.height == sum(map(len, failed))
    assert set(letters["stage"]) <= {"processing"}
    of_topic = letters.filter(col("topic") == "numbers").sort("offset")
    assert list(of_topic.select("offset", "key", "value").iter_rows()) == [
        (offset, *raw(rows)[offset][:2]) for offset, _, _ in failed[0]
    ]
    moved = letters.filter(col("topic") != "numbers").sort("_epoch", "offset").select("topic", "key", "value")
    assert sorted((json.loads(key)["key"], json.loads(value)["n"]) for _, key, value in moved.iter_rows()) == sorted(
        (key, n) for part in failed[1:] for _, key, n in part
    )


@pytest.mark.parametrize("seed", range(20, 35))
def test_the_test_driver_leaves_out_the_same(seed):
    chance = random.Random(seed)
    program, rows = Program.random(chance), numbers(chance, 60)
    with TopologyTestDriver(program.application(on_processing_error="dead_letter")) as driver:
        topic = driver.create_input_topic("numbers")
        for key, n in rows:
            topic.pipe_input(key, Number(n))
        wanted, failed = program.model(rows)
        out = [(row["key"], row["n"]) for row in driver.create_output_table("out").read_rows()]
        assert sorted(out) == sorted(wanted)
        assert [each.offset for each in driver.dead_letters if each.topic == "numbers"] == [at for at, *_ in failed[0]]
        assert len(driver.dead_letters) == driver.counts["dead_letters"] == sum(map(len, failed))


def test_what_continues_is_counted_and_nowhere_kept(tmp_path):
    program, rows = Program([[MapWithExpression((2, 0))]]), [("ann", n) for n in range(10)]
    place = Place(
        program.application(on_processing_error="continue"),
        Topics({("numbers", 0): raw(rows)}),
        tmp_path,
        max_records=4,
    )
    totals = place.run().totals
    assert (totals["failed_records"], totals["dead_letters"], totals["records_in"]) == (5, 0, 10)
    assert [n for _, n, _ in written(place, "out", "key", "n")] == [4, 6, 8, 10, 12]
    assert not (place.warehouse / "numbers" / "_dead_letters" / "_delta_log").is_dir() or (
        read_table(place.warehouse / "numbers" / "_dead_letters").is_empty()
    )


def test_the_epochs_of_two_topics_and_a_limit_of_uncommitted_bytes_change_nothing(tmp_path):
    """What fails depends on what both topics have brought before, in the order of their times."""
    chance, counts = random.Random(1), {}
    rows = {topic: [(key, n) for key, n in numbers(chance, 60)] for topic in ("left", "right")}

    def program(**settings):
        builder = StreamsBuilder()
        left, right = (builder.stream(topic, key=String("key"), value=Json(Number)) for topic in ("left", "right"))
        stream = RunningSum((1, 1), name="sums").add(left.merge(right)).map_values(plain)
        MapWithFunction((5, 2)).add(stream).map_values(plain).to_delta("out")
        return Application("numbers", builder, on_processing_error="dead_letter", **settings)

    step, wanted, failed = RunningSum((1, 1)), [], {"left": [], "right": []}
    for place in range(60):
        for topic in ("left", "right"):  # of equal times the first topic's comes first
            before = dict(step.kept)
            ((key, n),) = step.take(*rows[topic][place])
            if n % 5 == 2:
                step.kept = before
                failed[topic].append(place)
            else:
                wanted.append((key, n + 1))
    for name, max_records, settings in [("a", 7, {}), ("b", 1000, {}), ("c", 1000, {"uncommitted_max_bytes": 300})]:
        topics = Topics({(topic, 0): raw(rows[topic]) for topic in rows})
        place = Place(program(**settings), topics, tmp_path / name, max_records=max_records)
        place.run()
        assert [row[:2] for row in written(place, "out", "key", "n")] == wanted
        letters = read_table(place.warehouse / "numbers" / "_dead_letters")
        for topic in rows:
            assert sorted(letters.filter(topic=topic)["offset"]) == failed[topic]
        counts[name] = place.run().totals["dead_letters"]
    assert set(counts.values()) == {sum(map(len, failed.values()))}


class Punctual(Processor[str, Number, str, Number]):
    """Fails at 10 s of stream time, whatever the record is that brings it."""

    def init(self, context):
        self.context = context
        context.schedule(timedelta(seconds=10), Punctuation.STREAM_TIME, self.tick)

    def tick(self, now: datetime) -> None:
        if now >= SECOND_TEN:
            raise PoisonError("tick")

    def process(self, record: Record[str, Number]) -> None:
        self.context.forward(record)


class PunctualAtOnce(Punctual):
    """Fails whenever it is called, so from the first record on."""

    def tick(self, now: datetime) -> None:
        raise PoisonError("tick")


class Careful(Punctual):
    """Fails on what a record has left behind, which no later record does."""

    def init(self, context):
        super().init(context)
        self.seen = []

    def tick(self, now: datetime) -> None:
        if -1 in self.seen:
            raise PoisonError("tick")

    def process(self, record: Record[str, Number]) -> None:
        self.seen.append(record.value.n)
        super().process(record)


SECOND_TEN = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
PER_SECOND = TimeWindows.of_size_with_no_grace(timedelta(seconds=1))


def fails_on_a_final_result(stream):
    counted = stream.group_by_key().windowed_by(PER_SECOND).count("counts")
    final = counted.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    return final.to_stream().map_values(n=expression((2, 0), "count"))


@pytest.mark.parametrize(
    "add",
    [
        lambda stream: stream.process(Punctual),
        lambda stream: stream.process(PunctualAtOnce),
        fails_on_a_final_result,
    ],
)
@pytest.mark.parametrize("max_records", [1, 1000])
def test_what_time_makes_fail_stops_the_run_since_later_records_would_fail_too(add, max_records, tmp_path):
    builder = StreamsBuilder()
    add(builder.stream("numbers", key=String("key"), value=Json(Number)).filter(col("n") >= 0)).to_delta("out")
    rows = [(b"ann", b'{"n": 1}', ms) for ms in (0, 500, 20_000, 30_000)]
    place = Place(
        Application("numbers", builder, on_processing_error="dead_letter"),
        Topics({("numbers", 0): rows}),
        tmp_path,
        max_records=max_records,
    )
    with pytest.raises(TaskFailedError, match=r"tick|poison"):
        place.run()


@pytest.mark.parametrize("max_records", [1, 1000])
def test_a_record_that_makes_the_first_punctuation_fail_is_left_out_alone(max_records, tmp_path):
    builder = StreamsBuilder()
    builder.stream("numbers", key=String("key"), value=Json(Number)).process(Careful).to_delta("out")
    rows = [(b"ann", b'{"n": %d}' % number, 1_000 * at) for at, number in enumerate((-1, 1, 2, 3))]
    place = Place(
        Application("numbers", builder, on_processing_error="dead_letter"),
        Topics({("numbers", 0): rows}),
        tmp_path,
        max_records=max_records,
    )
    assert place.run().totals["dead_letters"] == 1
    assert read_table(place.warehouse / "numbers" / "out")["n"].to_list() == [1, 2, 3]


def test_a_handler_decides_record_by_record():
    seen = []

    def handler(record: BadRecord) -> str:
        seen.append((record.stage, record.offset, record.operator is not None, "PoisonError" in (record.trace or "")))
        return "dead_letter" if record.offset < 2 else "continue" if record.offset < 3 else "fail"

    program = Program([[MapWithFunction((2, 0))]])
    with TopologyTestDriver(program.application(on_error=handler, on_processing_error=handler)) as driver:
        topic = driver.create_input_topic("numbers")
        for value in (b"{", Number(2), Number(4), Number(5)):
            topic.pipe_input("ann", value)
        with pytest.raises(UserFunctionError, match="offset 4"):
            topic.pipe_input("ann", Number(6))
        with pytest.raises(BadInputError, match="offset 5"):
            topic.pipe_input("ann", b"{")
        assert [letter.offset for letter in driver.dead_letters] == [0, 1]
        assert (driver.counts["dead_letters"], driver.counts["failed_records"]) == (2, 1)
    read, processed = ("deserialization", False, False), ("processing", True, True)
    assert [(stage, *rest) for stage, _, *rest in seen] == [read, processed, processed, processed, read]


def test_a_handler_that_fails_is_named_with_the_record():
    def broken(record):
        raise KeyError("stage")

    handling = ErrorHandling(processing=broken)
    record = BadRecord(topic="numbers", partition=1, offset=7, timestamp_ms=0, reason="poison", stage="processing")
    with pytest.raises(
        TopologyError, match=r"the handler .*broken failed on the record at numbers, partition 1, offset 7: KeyError"
    ):
        handling.decide(record)


def test_a_handler_that_decides_nothing_stops_the_run_and_another_setting_is_refused():
    program = Program([[MapWithFunction((2, 0))]])
    with (
        TopologyTestDriver(program.application(on_processing_error=lambda record: None)) as driver,
        pytest.raises(
            TopologyError,
            match='the handler returned None for the record at numbers, partition 0, offset 0; return "fail"',
        ),
    ):
        driver.create_input_topic("numbers").pipe_input("ann", Number(2))
    with pytest.raises(TopologyError, match='on_processing_error is \'skip\'; it must be "fail", "continue"'):
        program.application(on_processing_error="skip")


def test_a_receipt_with_a_record_that_failed_can_be_read_again(tmp_path):
    """PROTOCOL 7: the same plan again is answered with the stored receipt."""
    topics = Topics({("numbers", 0): [*raw([("ann", 1), ("ann", 2)]), (b"ann", b"{", 3)]})
    place = Place(Program([[MapWithFunction((2, 0))]]).application(on_processing_error="dead_letter"), topics, tmp_path)
    plan = TaskPlan(
        task=TaskId(0, 0),
        instance="first",
        state=StateId(1, 1),
        expected=None,
        committed=None,
        now_ms=0,
        ranges=(OffsetRange(topic="numbers", partition=0, start=0, end=3),),
    )

    def run() -> Receipt:
        handling = place.application.error_handling
        topology, settings = place.application.topology, place.settings
        return EpochRunner(topology, settings, place.topics.reader, lambda name: None, handling).run(plan)

    first = run()
    assert (first.status, first.counts["dead_letters"], first.bad_record.offset) == (ReceiptStatus.DONE, 1, 2)
    files = sorted(place.warehouse.rglob("*.parquet"))
    assert run() == first
    assert sorted(place.warehouse.rglob("*.parquet")) == files


def test_what_a_sink_cannot_write_is_of_the_stage_production():
    builder = StreamsBuilder()
    stream = builder.stream("numbers", key=String("key"), value=Json(Number))
    stream.to("small", value=Int32("n"))
    with TopologyTestDriver(Application("numbers", builder, on_processing_error="dead_letter")) as driver:
        topic = driver.create_input_topic("numbers")
        for n in (1, 1 << 40, 3):
            topic.pipe_input("ann", Number(n))
        assert driver.create_output_topic("small").read_key_values_to_list() == [("ann", 1), ("ann", 3)]
        ((stage, offset),) = ((letter.stage, letter.offset) for letter in driver.dead_letters)
        assert (stage, offset) == ("production", 1)


def test_dead_letters_of_an_earlier_version_get_the_new_columns(tmp_path, monkeypatch):
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "reason", "_epoch")
    older = replace(DEAD_LETTERS, schema=pl.Schema({name: DEAD_LETTERS.schema[name] for name in names}))
    place = Place(
        Program([[MapWithFunction((2, 0))]]).application(on_error="dead_letter", on_processing_error="dead_letter"),
        Topics({("numbers", 0): [(b"ann", b"{", 1)]}),
        tmp_path,
    )
    with monkeypatch.context() as earlier:
        earlier.setattr(tables, "DEAD_LETTERS", older)
        earlier.setattr(epoch, "DEAD_LETTERS", older)
        earlier.setattr(epoch, "dead_letter_frame", lambda *given: dead_letter_frame(*given).select(names))
        place.run()
    place.topics.rows["numbers", 0] += raw([("ann", 2)])
    place.run()
    rows = read_table(place.warehouse / "numbers" / "_dead_letters").sort("offset")
    assert list(rows.select("offset", "stage", "id").iter_rows()) == [
        (0, None, None),
        (1, "processing", f"numbers-0-1-{rows['_epoch'][1]}"),
    ]
