"""Outputs partitioned by columns: every reader sees the rows of a plain loop, whatever dies, before and after
compaction."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest

from tests.pipelines.processors.runs import CrashError, CrashesAt
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Count, Json, StreamsBuilder, String, TopologyError
from weir.pipelines.spark.errors import RunError
from weir.state.changelog.compaction import Compaction
from weir.state.commit.files import scan_as_written
from weir.state.commit.tables import file_actions, read_table
from weir.state.errors import TableSchemaError
from weir.state.storage.contract import Folder
from weir.state.storage.places import folder_at, storage_options, table_at

RECORDS = 120
TEXTS = ("a", "b c/d=e%f", "ü", "x" * 300, "", None)
BY = ["day", "text", "number", "flag"]


@dataclass(frozen=True)
class Event:
    number: int | None
    text: str | None
    flag: bool | None
    day: date | None


def event(number: int) -> Event:
    is_empty = number % 17 == 0
    return Event(
        number=None if is_empty else number % 3 - 1,
        text=TEXTS[number % len(TEXTS)],
        flag=None if is_empty else number % 2 == 0,
        day=None if is_empty else date(2024, 1, 1) + timedelta(days=number % 2),
    )


def program(facts_by=BY, updates_by="events") -> Application:
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=Json(Event))
    events.to_delta("facts", partition_by=facts_by)
    events.group_by_key().agg("counts", events=Count()).to_delta("counts", partition_by=updates_by)
    return Application("shop", builder)


def place(folder: Path, application: Application | None = None) -> Place:
    records = [
        (b"user-%d" % (number % 4), msgspec.json.encode(event(number)), 1_000 + number) for number in range(RECORDS)
    ]
    topics = Topics({("events", 0): records[::2], ("events", 1): records[1::2]})
    return Place(application or program(), topics, folder, max_records=25)


def model() -> list[tuple]:
    rows = [(f"user-{number % 4}", event(number)) for number in range(RECORDS)]
    return sorted(((user, each.number, each.text or None, each.flag, each.day) for user, each in rows), key=str)


def rows_of(frame: pl.DataFrame) -> list[tuple]:
    return sorted(frame.select("user", "number", "text", "flag", "day").rows(), key=str)


def check(warehouse: Folder | Path) -> None:
    facts, counts = folder_at(warehouse) / "shop" / "facts", folder_at(warehouse) / "shop" / "counts"
    assert rows_of(read_table(facts)) == model()
    assert rows_of(pl.from_arrow(table_at(facts).to_pyarrow_table())) == model()
    only = (
        pl.scan_delta(facts.uri, storage_options=storage_options(facts))
        .filter(pl.col("text") == TEXTS[1], pl.col("day") == date(2024, 1, 2))
        .collect()
    )
    assert rows_of(only) == [row for row in model() if row[2] == TEXTS[1] and row[4] == date(2024, 1, 2)]
    assert sorted(read_table(counts).select("user", "events").rows()) == [
        (f"user-{user}", RECORDS // 4) for user in range(4)
    ]
    for file in file_actions(table_at(facts)).iter_rows(named=True):
        (values,) = scan_as_written(facts, [file["path"]]).select(BY).unique().collect().rows()
        assert values == tuple(file[f"partition.{name}"] for name in BY), "the log says what is in the file"


@pytest.mark.parametrize(("seed", "is_distant"), [(0, False), (1, False), (2, False), (0, True)])
def test_every_reader_sees_the_rows_of_a_loop_whatever_dies(tmp_path, seed, is_distant, request):
    here, choose = place(tmp_path), random.Random(seed)
    here.bucket = request.getfixturevalue("s3_bucket") if is_distant else ""
    for _ in range(4 * (seed > 0)):
        with suppress(CrashError, RunError):
            here.run(CrashesAt(choose.randrange(1, 40)))
    here.run()
    check(here.warehouse)
    before = file_actions(table_at(here.warehouse / "shop" / "facts")).height
    compaction = Compaction(here.warehouse, "shop", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    check(here.warehouse)
    files = file_actions(table_at(here.warehouse / "shop" / "facts"))
    assert files.height == files.select(f"partition.{name}" for name in BY).n_unique() < before
    here.run()
    check(here.warehouse)


@pytest.mark.parametrize(("facts_by", "words"), [("day", "partitioned by day"), ((), "not partitioned")])
def test_a_table_keeps_its_partitions(tmp_path, facts_by, words):
    place(tmp_path).run()
    other = place(tmp_path, program(facts_by=facts_by))
    with pytest.raises(TableSchemaError, match=f"it is partitioned by day, text, number, flag, and .* that is {words}"):
        other.run()
    place(tmp_path).run()
    check(tmp_path / "warehouse")


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("dya", "is to be partitioned by 'dya', but its columns are user, number, text, flag, day; name one of these"),
        (["day", "day"], "by a column twice: day, day"),
        ("share", r"which is Float64: take a column of text, whole numbers, dates or booleans"),
        ("at", r"which is Datetime.*such as the day of a time: map_values\(day=pl.col\(...\).dt.date\(\)\)"),
    ],
)
def test_a_table_is_not_partitioned_by_just_anything(by, words):
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=Json(Event))
    if by in ("share", "at"):
        column = {"share": pl.col("number") / 2, "at": pl.col("day").cast(pl.Datetime("ms", "UTC"))}[by]
        events = events.map_values(**{by: column})
    with pytest.raises(TopologyError, match=words):
        events.to_delta("facts", partition_by=by)


def test_the_way_out_of_a_time_is_its_day():
    builder = StreamsBuilder()
    events = builder.stream("events", key=String("user"), value=Json(Event))
    times = events.map_values(at=pl.col("day").cast(pl.Datetime("ms", "UTC")))
    times.map_values(day=pl.col("at").dt.date()).to_delta("facts", partition_by="day")


def test_a_table_of_upserts_is_not_partitioned():
    builder = StreamsBuilder()
    counts = builder.stream("events", key=String("user"), value=Json(Event)).group_by_key().agg("c", events=Count())
    with pytest.raises(TopologyError, match='leave partition_by out, or use mode="append"'):
        counts.to_delta("counts", mode="upsert", partition_by="events")
    counts.to_delta("counts", partition_by="events")


@pytest.mark.spark
def test_spark_reads_the_rows_and_only_the_files_of_a_partition(tmp_path, session):
    here = place(tmp_path)
    here.run()
    compaction = Compaction(here.warehouse, "shop", is_whole=True, tombstone_retention_ms=0)
    list(compaction.run(compaction.tables()))
    table = session.read.format("delta").load(str(here.warehouse / "shop" / "facts"))
    columns = ("user", "number", "text", "flag", "day")
    assert sorted(map(tuple, table.select(*columns).collect()), key=str) == model()
    some = table.where("day = date'2024-01-02' and not flag")
    assert sorted(map(tuple, some.select(*columns).collect()), key=str) == [
        row for row in model() if row[3] is False and row[4] == date(2024, 1, 2)
    ]
    assert 0 < len(some.inputFiles()) < len(table.inputFiles())
