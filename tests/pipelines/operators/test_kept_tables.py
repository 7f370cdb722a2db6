"""Filters and mappings of tables that keep their rows in a store (Kafka Streams' ``Materialized``), against a model."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pytest
from hypothesis import given, settings
from polars import col

from tests.examples import examples
from tests.pipelines.operators import two_topics
from tests.pipelines.operators.one_topic import Event
from tests.pipelines.spark.inline import Place, Topics
from tests.state.engine.own_store import InMemory
from weir import (
    Application,
    BufferConfig,
    Int64,
    KTable,
    Materialized,
    StateReader,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from weir.pipelines.migrate.errors import NotMovedError
from weir.pipelines.migrate.stores import format_of, keepers
from weir.state.commit.tables import read_table
from weir.testing import TopologyTestDriver


def is_large(key: str, n: int) -> bool:
    return n > 5


def doubled(n: int) -> int | None:
    return None if n == 13 else 2 * n


@contextmanager
def driven(program):
    """The driver, and a function that pipes records ``(key, n)`` of the table ``in``."""
    builder = StreamsBuilder()
    program(builder.table("in", key=String("user"), value=Int64("n"), store="all"))
    with TopologyTestDriver(Application("test", builder)) as driver:
        yield driver, driver.create_input_topic("in").pipe_key_value_list


def rows(driver, store):
    return dict(driver.get_key_value_store(store).all())


RECORDS = [("a", 6), ("b", 1), ("a", 7), ("c", 13), ("a", 2), ("b", 9), ("c", None), ("d", 20), (None, 30)]


@pytest.mark.parametrize("predicate", [col("n") > 5, is_large])
def test_a_filter_keeps_the_rows_that_pass(predicate):
    def program(table):
        table.filter(predicate, store="large").to_stream().to_delta("out")
        table.filter_not(predicate, store="small")

    with driven(program) as (driver, pipe):
        kept, others = {}, {}
        for key, n in RECORDS:
            pipe([(key, n)])
            if key is not None:
                kept.pop(key, None), others.pop(key, None)
                if n is not None:
                    (kept if n > 5 else others)[key] = n
            assert (rows(driver, "large"), rows(driver, "small")) == (kept, others)
        found = driver.create_output_table("out").read_key_values_to_list()
        assert found == [(key, n if n and n > 5 else None) for key, n in RECORDS if key is not None]


@pytest.mark.parametrize("how", [dict(), dict(function=doubled)])
def test_a_mapping_keeps_the_new_rows(how):
    def program(table):
        if how:
            table.map_values(how["function"], store="doubled")
        else:
            table.map_values(value=2 * col("n"), store="doubled")

    with driven(program) as (driver, pipe):
        pipe(RECORDS)
        found = {key: each if how else each["value"] for key, each in rows(driver, "doubled").items()}
        assert found == {"a": 4, "b": 18, "d": 40}
        pipe([("d", 13)])
        assert ("d" in rows(driver, "doubled")) == (not how), "None from a mapper deletes the row"


def test_a_column_called_store_is_an_expression():
    with driven(lambda table: table.map_values(store=col("n"), n="n").to_delta("out")) as (driver, pipe):
        pipe([("a", 6)])
        assert driver.create_output_table("out").read_rows() == [{"user": "a", "store": 6, "n": 6}]
    with (
        pytest.raises(TopologyError, match=r"column of that name.* store=col\('n'\)"),
        driven(lambda table: table.map_values(store="n", n="n")),
    ):
        pass


def test_a_kept_table_can_be_kept_again_suppressed_grouped_and_joined():
    def program(table):
        large = table.filter(col("n") > 5, store="large").map_values(half=col("n") // 2, store="halves")
        large.group_by(even=col("half") % 2 == 0).count("by_parity")
        limit = Suppressed.until_time_limit(timedelta(0), BufferConfig.unbounded())
        large.suppress(limit).to_stream().to_delta("out")
        table.outer_join(large).to_stream().to_delta("both")

    with driven(program) as (driver, pipe):
        pipe(RECORDS)
        assert rows(driver, "halves") == {"b": {"half": 4}, "d": {"half": 10}}
        assert {key.even: n for key, n in rows(driver, "by_parity").items()} == {False: 0, True: 2}
        newest = {row["user"]: (row["n"], row["half"]) for row in driver.create_output_table("both").read_rows()}
        assert newest == {"a": (2, None), "b": (9, 4), "c": (None, None), "d": (20, 10)}


def test_a_windowed_table_is_kept_by_key_and_window():
    minute = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
    builder = StreamsBuilder()
    counts = builder.stream("in", key=String("user"), value=Int64("n")).group_by_key().windowed_by(minute).count("all")
    kept = counts.filter(col("count") > 1, store="often")
    kept.suppress(Suppressed.until_window_closes(BufferConfig.unbounded())).to_delta("final")
    with TopologyTestDriver(Application("test", builder)) as driver:
        for second in (0, 10, 70, 130, 150):
            driver.create_input_topic("in").pipe_input("a", 1, timestamp_ms=second * 1_000)
        found = [(key.key, key.window_start.minute, n) for key, n in driver.get_key_value_store("often").all()]
        assert found == [("a", 0, 2), ("a", 2, 2)]
        assert [row["count"] for row in driver.create_output_table("final").read_rows()] == [2]
    node, store = keepers(builder.build().sub_topologies[0])["often"]
    with pytest.raises(NotMovedError, match="table of windows"):
        format_of(node, store, None)


def test_a_kept_table_moves_from_and_to_kafka_streams_as_a_table_does():
    builder = StreamsBuilder()
    builder.table("in", key=String("user"), value=Int64("n"), store="all").filter(col("n") > 5, store="large")
    (sub_topology,) = builder.build().sub_topologies
    rows = pl.DataFrame({"user": ["a"], "n": [7], "_ts": [5]})
    written = [
        format_of(*keepers(sub_topology)[store], None).encode(rows).select("key", "value").rows()
        for store in ("all", "large")
    ]
    assert written == [[(b"a", (7).to_bytes(8, "big"))]] * 2


def test_a_store_of_ones_own_keeps_the_rows():
    kept = Materialized("large", InMemory)
    with driven(lambda table: table.filter(col("n") > 5, store=kept).to_delta("out")) as (driver, pipe):
        pipe(RECORDS)
        assert rows(driver, "large") == {"b": 9, "d": 20}


@dataclass(frozen=True)
class Both:
    left: int | None
    right: int | None


def both(one: Event | None, other: Event | None) -> Both:
    return Both(one.amount if one else None, other.amount if other else None)


def table_of(stream, store, least) -> KTable:
    return stream.to_table(store).filter(col("amount") > least, store=f"{store}-kept")


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(records=two_topics.RECORDS, cuts=two_topics.CUTS)
def test_any_cut_into_batches_keeps_and_joins_what_a_model_does(records, cuts):
    sub_topology = two_topics.build(
        lambda b: (
            table_of(two_topics.left(b), "one", 2)
            .outer_join(table_of(two_topics.right(b), "two", 4), both)
            .to_stream()
            .to_delta("out")
        )
    )
    order = two_topics.picked(records, sub_topology.inputs)
    kept, expected = {"left": {}, "right": {}}, []
    for (side, key, time, value), _ in order:
        if key is None:
            continue
        before = kept[side].pop(key, None)
        amount = value and value[0]
        if amount is not None and amount > (2 if side == "left" else 4):
            kept[side][key] = (amount, time)
        now = kept[side].get(key)
        other = kept["right" if side == "left" else "left"].get(key)
        if before is None and now is None:
            continue  # the filter knows the old row, so it sends no tombstone of nothing
        numbers = (now, other) if side == "left" else (other, now)
        newest = time if other is None else max(time, other[1])
        gone = now is None and other is None
        expected.append((key, *(None if gone or each is None else each[0] for each in numbers), newest))
    found = two_topics.run(sub_topology, two_topics.batches(order, cuts))
    assert [
        (row["user"], row["left"], row["right"], round(row["_ts"].timestamp() * 1000))
        for row in found["facts"].get("out", [])
    ] == expected
    counted = {store: len(found["stores"].get(store, {})) for store in ("one-kept", "two-kept")}
    assert counted == {"one-kept": len(kept["left"]), "two-kept": len(kept["right"])}


@pytest.mark.parametrize("loses_disk", [False, True])
def test_kept_rows_can_be_queried_are_restored_and_begin_empty_when_added(tmp_path, loses_disk):
    def application(store):
        builder = StreamsBuilder()
        table = builder.table("in", key=String("user"), value=Int64("n"), store="all")
        table.filter(col("n") > 5, store=store).to_delta("out")
        return Application("test", builder, commit_interval=timedelta(milliseconds=1))

    def records(*pairs):
        return [(key.encode(), n.to_bytes(8, "big"), at) for at, (key, n) in enumerate(pairs)]

    place = Place(application(None), Topics({("in", 0): records(("a", 6), ("b", 9), ("c", 1))}), tmp_path)
    place.run()
    place.application = application("large")
    place.topics.rows["in", 0] += records(("c", 7), ("d", 8), ("b", 2))
    place.run()
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.topics.rows["in", 0] += records(("d", 3), ("e", 10))
    place.run()
    (tmp_path / "dir" / "state").mkdir(parents=True)
    (tmp_path / "dir" / "state" / "test").symlink_to(place.state_folder)
    reader = StateReader(tmp_path / "dir", place.application)
    assert reader.range("large").rows.select("user", "n").rows() == [("c", 7), ("e", 10)]
    assert sorted(read_table(place.warehouse / "test" / "out").select("user", "n").rows()) == [
        ("a", 6),
        ("c", 7),
        ("e", 10),
    ]
