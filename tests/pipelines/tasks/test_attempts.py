"""Records that fail in operators are left out: the outcome is that of a plain model which takes record by record.

The model runs the steps of a random program on one record after another. A record on which a step raises is put aside,
and what the steps before it have kept for it is undone. Repartitions divide the steps into lists, one after another.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest
from polars import col

from tests.pipelines.processors.runs import disturbed_run, written
from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BadInputError,
    BadRecord,
    BufferConfig,
    Int32,
    Json,
    KeyValueStore,
    Processor,
    Punctuation,
    Record,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
    UserFunctionError,
)
from weir.pipelines.spark.errors import TaskFailedError
from weir.pipelines.tasks import epoch, tables
from weir.pipelines.tasks.dead_letters import DEAD_LETTERS, dead_letter_frame
from weir.pipelines.tasks.epoch import EpochRunner
from weir.pipelines.tasks.plan import OffsetRange, Receipt, ReceiptStatus, TaskPlan
from weir.state.commit.tables import read_table
from weir.state.types import StateId, TaskId
from weir.testing import TopologyTestDriver


@dataclass(frozen=True)
class Number:
    n: int


Rows = list[tuple[str, int]]
Failing = tuple[int, int]
"""Modulus and remainder of the numbers on which a step fails."""


class PoisonError(Exception):
    pass


def check(n: int, failing: Failing) -> int:
    if n % failing[0] == failing[1]:
        raise PoisonError(n)
    return n


def expression(failing: Failing, column: str = "n") -> pl.Expr:
    """``check`` for a column, by a cast that fails."""
    is_poison = col(column) % failing[0] == failing[1]
    return pl.when(is_poison).then(pl.lit("poison")).otherwise(col(column).cast(pl.String)).cast(pl.Int64)


def plain(value) -> Number:
    return Number(getattr(value, "n", value))


@dataclass
class Step:
    failing: Failing
    kept: dict[str, int] = field(default_factory=dict)
    name: str = ""

    def add(self, stream):
        raise NotImplementedError

    def take(self, key: str, n: int) -> Rows:
        raise NotImplementedError


class MapWithFunction(Step):
    def add(self, stream):
        def mapped(value: Number) -> Number:
            return Number(check(value.n, self.failing) + 1)

        return stream.map_values(mapped)

    def take(self, key, n):
        return [(key, check(n, self.failing) + 1)]


class MapWithExpression(Step):
    def add(self, stream):
        return stream.map_values(n=expression(self.failing) + 3)

    def take(self, key, n):
        return [(key, check(n, self.failing) + 3)]


class FilterWithFunction(Step):
    def add(self, stream):
        def is_kept(key: str, value: Number) -> bool:
            return check(value.n, self.failing) % 5 != 0

        return stream.filter(is_kept)

    def take(self, key, n):
        return [(key, n)] if check(n, self.failing) % 5 else []


class FlatMap(Step):
    """Fails on the second of two rows."""

    def add(self, stream):
        def mapped(key: str, value: Number) -> Iterable[tuple[str, Number]]:
            return [(key, Number(value.n * 2)), (key, Number(check(value.n, self.failing) + 7))]

        return stream.flat_map(mapped)

    def take(self, key, n):
        return [(key, n * 2), (key, check(n, self.failing) + 7)]


class RunningSum(Step):
    """Never fails itself; what it keeps decides whether later steps do."""

    def add(self, stream):
        return stream.group_by_key().agg(self.name, n=Sum("n")).to_stream()

    def take(self, key, n):
        self.kept[key] = self.kept.get(key, 0) + n
        return [(key, self.kept[key])]


class Fold(Step):
    def add(self, stream):
        def fold(key: str, value: Number, total: int) -> int:
            return check(total + value.n, self.failing)

        return stream.group_by_key().aggregate(self.name, int, fold).to_stream().map_values(plain)

    def take(self, key, n):
        self.kept[key] = check(self.kept.get(key, 0) + n, self.failing)
        return [(key, self.kept[key])]


class InProcessor(Step):
    """Keeps a number and forwards before it fails."""

    def add(self, stream):
        failing, name = self.failing, self.name

        class Remembers(Processor[str, Number, str, Number]):
            stores = (KeyValueStore(name, key=str, value=int),)

            def init(self, context):
                self.context, self.newest = context, context.state_store(name)

            def process(self, record: Record[str, Number]) -> None:
                before = self.newest.get(record.key) or 0
                self.newest.put(record.key, record.value.n)
                self.context.forward(record.with_value(Number(record.value.n + before)))
                check(record.value.n, failing)

        return stream.process(Remembers)

    def take(self, key, n):
        before, self.kept[key] = self.kept.get(key, 0), n
        return [(key, check(n, self.failing) + before)]


STEPS: list[Callable[[Failing], Step]] = [
    MapWithFunction,
    MapWithExpression,
    FilterWithFunction,
    FlatMap,
    RunningSum,
    Fold,
    InProcessor,
]


@dataclass
class Program:
    parts: list[list[Step]]
    """One list of steps before each repartition, and one after the last."""

    @classmethod
    def random(cls, chance: random.Random) -> Program:
        def step() -> Step:
            modulus = chance.choice([5, 11, 50])
            return chance.choice(STEPS)((modulus, chance.randrange(modulus)))

        parts = [[step() for _ in range(chance.choice([1, 2, 3, 4]))] for _ in range(chance.choice([1, 1, 2]))]
        for number, each in enumerate([each for part in parts for each in part]):
            each.name = f"s{number}"
        return cls(parts)

    def application(self, **settings) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("numbers", key=String("key"), value=Json(Number))
        for number, part in enumerate(self.parts):
            if number:
                stream = stream.repartition(f"moved{number}").map_values(plain)
            for step in part:
                stream = step.add(stream).map_values(plain)
        stream.to_delta("out")
        return Application("numbers", builder, **settings)

    def tasks(self) -> list[list[Step]]:
        """The steps of each sub-topology: a step that groups by a key that may have changed has a repartition too."""
        tasks: list[list[Step]] = []
        for part in self.parts:
            tasks.append([])
            may_have_changed = False
            for step in part:
                if may_have_changed and isinstance(step, RunningSum | Fold):
                    tasks.append([])
                    may_have_changed = False
                tasks[-1].append(step)
                may_have_changed |= isinstance(step, FlatMap | InProcessor)
        return tasks

    def model(self, rows: Rows) -> tuple[Rows, list[list[tuple[int, str, int]]]]:
        """What reaches the output; and of each part, the place, key and number of the rows on which it fails."""
        failed = []
        for part in self.tasks():
            given, rows = rows, []
            failed.append([])
            for place, (key, n) in enumerate(given):
                before = [copy.copy(step.kept) for step in part]
                through = [(key, n)]
                try:
                    for step in part:
                        through = [row for each in through for row in step.take(*each)]
                except PoisonError:
                    failed[-1].append((place, key, n))
                    for step, kept in zip(part, before, strict=True):
                        step.kept = kept
                else:
                    rows += through
        return rows, failed


def numbers(chance: random.Random, count: int) -> Rows:
    return [(f"user-{chance.randrange(5)}", chance.randrange(1000)) for _ in range(count)]


def raw(rows: Rows) -> list[tuple[bytes, bytes, int]]:
    return [(key.encode(), json.dumps({"n": n}).encode(), 1_000 + place) for place, (key, n) in enumerate(rows)]


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


SECOND_TEN = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
PER_SECOND = TimeWindows.of_size_with_no_grace(timedelta(seconds=1))


def fails_on_a_final_result(stream):
    counted = stream.group_by_key().windowed_by(PER_SECOND).count("counts")
    final = counted.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    return final.to_stream().map_values(n=expression((2, 0), "count"))


@pytest.mark.parametrize("add", [lambda stream: stream.process(Punctual), fails_on_a_final_result])
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


def test_a_handler_that_decides_nothing_stops_the_run_and_another_setting_is_refused():
    program = Program([[MapWithFunction((2, 0))]])
    with (
        TopologyTestDriver(program.application(on_processing_error=lambda record: None)) as driver,
        pytest.raises(TopologyError, match='the handler returned None for a record; return "fail", "continue" or'),
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
