"""Headers in runs: random programs against a plain model, restarts, and programs that begin or cease to ask."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import polars as pl
import pytest
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, FixedKeyProcessor, Int64, StreamsBuilder, String
from weir.infra.kafka.reader import PartitionReader
from weir.state.commit.tables import read_table
from weir.testing import TopologyTestDriver

PARTITIONS = 2


class Stamp(FixedKeyProcessor[Any, int, int]):
    """Forwards records with odd values twice, once with another header."""

    def init(self, context):
        self.context = context

    def process(self, record):
        self.context.forward(record)
        if record.value % 2:
            self.context.forward(record.with_headers((*record.headers, ("odd", b"%d" % record.value))))


def twice(value: int) -> list[int]:
    return [value, value + 1]


def stamped(record):
    key, value, headers = record
    return [record, (key, value, [*headers, ("odd", b"%d" % value)])] if value % 2 else [record]


STEPS = {
    "filter": (
        lambda stream: stream.filter(lambda key, value: value % 3 != 0),
        lambda record: [record] if record[1] % 3 else [],
    ),
    "filter by columns": (
        lambda stream: stream.filter_not(col("user") == "c"),
        lambda record: [record] if record[0] != "c" else [],
    ),
    "stamp": (lambda stream: stream.process_values(Stamp), stamped),
    "flat_map_values": (
        lambda stream: stream.flat_map_values(twice),
        lambda record: [(record[0], record[1] + more, record[2]) for more in (0, 1)],
    ),
    "select_key": (
        lambda stream: stream.select_key(user=col("user").str.to_uppercase()),
        lambda record: [(record[0].upper(), *record[1:])],
    ),
    "repartition": (lambda stream: stream.repartition("moved"), lambda record: [record]),
    "split and merge": (
        lambda stream: (lambda parts: parts["s-a"].merge(parts["s-b"]))(
            stream.split(name="s-").branch(col("user") == "a", name="a").default_branch(name="b")
        ),
        lambda record: [record],
    ),
}
"""Each step on a stream of (user, number), and on a plain record of key, value, headers."""


def sent(chance, count):
    """Records of each key in one partition; values count up, so that order shows."""
    rows = {("orders", number): [] for number in range(PARTITIONS)}
    for number in range(count):
        key = chance.choice("abcd")
        headers = [
            (chance.choice(["trace", "tenant", "\u0105"]), chance.choice([None, b"", b"\x00\xff", b"%d" % number]))
            for _ in range(chance.choice([0, 0, 1, 3]))
        ]
        rows["orders", "abcd".index(key) % PARTITIONS].append(
            (key.encode(), number.to_bytes(8, "big"), 1_000 + number, headers)
        )
    return rows


def expected_of(rows, steps):
    found = defaultdict(list)
    for partition in rows.values():
        for key, value, _, headers in partition:
            records = [(key.decode(), int.from_bytes(value, "big"), headers)]
            for step in steps:
                records = [made for record in records for made in STEPS[step][1](record)]
            for key, value, headers in records:
                found[key].append((value, headers))
    return found


def by_key(table, value):
    found = defaultdict(list)
    for row in table.sort("_ts", maintain_order=True).iter_rows(named=True):
        found[row["user"]].append((row[value], [(each["key"], each["value"]) for each in row["_headers"]]))
    return found


@pytest.mark.parametrize("seed", range(12))
def test_random_chains_keep_headers_as_a_plain_model_says(tmp_path, seed):
    """With several epochs, and a restart in between that reads on; rows of one record may change places."""
    chance = random.Random(seed)
    steps = chance.choices([step for step in STEPS if step != "repartition"], k=chance.randint(1, 4))
    steps = list(dict.fromkeys(steps))
    steps.insert(chance.randint(0, len(steps)), "repartition")
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=String("user"), value=Int64("number"), headers=True)
    for step in steps:
        stream = STEPS[step][0](stream)
    stream.to_delta("out", headers=True)
    rows = sent(chance, 150)
    first = {at: partition[: len(partition) // 2] for at, partition in rows.items()}
    topics = Topics(first, with_headers={"orders"})
    place = Place(Application("headers", builder), topics, tmp_path, max_records=chance.choice([7, 40]))
    place.run()
    topics.rows.update(rows)
    place.run()
    table = read_table(place.warehouse / "headers" / "out")
    value = next(name for name in table.columns if name in ("number", "value"))
    order = lambda records: sorted(records, key=repr)
    found, expected = by_key(table, value), expected_of(rows, steps)
    assert {key: order(records) for key, records in found.items()} == {
        key: order(records) for key, records in expected.items()
    }, steps


def program(*, headers):
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=String("user"), value=Int64("number"), headers=headers)
    moved = stream.filter(lambda key, value: 1 // (value - 500) <= 1).repartition("moved")
    if headers:
        moved.to_delta("out", headers=True)
    moved.to("copied")
    return Application("headers", builder, on_processing_error="dead_letter")


def test_a_program_may_begin_and_cease_to_ask_for_headers(tmp_path):
    """In the outbox, what was read without them has none."""
    record = lambda number: (b"ann", number.to_bytes(8, "big"), 1_000 + number, [("n", b"%d" % number)])
    topics = Topics({("orders", 0): []})
    for number, headers in enumerate((False, True, False, True)):
        topics.rows["orders", 0].append(record(number))
        topics.with_headers = {"orders"} if headers else set()
        Place(program(headers=headers), topics, tmp_path).run()
    folder = tmp_path / "warehouse" / "headers"
    table = read_table(folder / "out").sort("number")
    pairs = lambda cell: None if cell is None else [(each["key"], each["value"]) for each in cell]
    assert [pairs(each) for each in table["_headers"].to_list()] == [[("n", b"1")], [("n", b"3")]]
    (outbox,) = (folder / "_outbox").iterdir()
    files = pl.concat([pl.read_parquet(each) for each in outbox.glob("*.parquet")], how="diagonal").sort("time_ms")
    assert [pairs(each) for each in files["headers"].to_list()] == [None, [("n", b"1")], None, [("n", b"3")]]


def test_dead_letters_have_headers_whether_the_program_asks_for_them_or_not(tmp_path):
    record = lambda number: (b"ann", (500).to_bytes(8, "big"), 1_000 + number, [("n", b"%d" % number)])
    topics = Topics({("orders", 0): []})
    for number, headers in enumerate((False, True)):
        topics.rows["orders", 0].append(record(number))
        topics.with_headers = {"orders"} if headers else set()
        Place(program(headers=headers), topics, tmp_path).run()
    letters = read_table(tmp_path / "warehouse" / "headers" / "_dead_letters").sort("offset")
    assert letters["headers"].to_list() == [[{"key": "n", "value": b"%d" % number}] for number in range(2)]


def test_of_records_read_without_headers_only_dead_letters_are_read_again_and_go_on_without_them(tmp_path, monkeypatch):
    """Whether they cannot be read or an operator fails on them; behind a repartition there are none."""
    builder = StreamsBuilder()
    stream = builder.stream("orders", key=String("user"), value=Int64("number"))
    kept = stream.filter(lambda key, value: 1 // (value - 500) <= 1)
    kept.repartition("moved").filter(lambda key, value: 1 // (value - 600) <= 1).to_delta("out")
    application = Application("headers", builder, on_error="dead_letter", on_processing_error="dead_letter")
    values = {2: b"no number", 7: (500).to_bytes(8, "big"), 8: (500).to_bytes(8, "big"), 11: (600).to_bytes(8, "big")}
    rows = [
        (b"ann", values.get(number, number.to_bytes(8, "big")), number, [("n", b"%d" % number)] * (number != 8))
        for number in range(20)
    ]
    topics = Topics({("orders", 0): rows})
    asked, headers_of = [], PartitionReader.headers
    monkeypatch.setattr(
        PartitionReader, "headers", lambda reader, offsets: asked.extend(offsets) or headers_of(reader, offsets)
    )
    Place(application, topics, tmp_path).run()
    letters = read_table(tmp_path / "warehouse" / "headers" / "_dead_letters").sort("timestamp")
    assert letters.select("topic", "headers").rows() == [
        ("orders", [{"key": "n", "value": b"2"}]),
        ("orders", [{"key": "n", "value": b"7"}]),
        ("orders", []),
        ("moved-repartition", None),
    ]
    assert sorted(set(asked)) == [2, 7, 8]
    assert read_table(tmp_path / "warehouse" / "headers" / "out").height == 16


def test_a_function_that_decides_about_records_sees_their_headers(tmp_path):
    """In a run and in the test driver, also of a program that does not ask for them."""
    seen = []

    def decide(record):
        seen.append((record.stage, record.headers))
        return "continue"

    def application():
        builder = StreamsBuilder()
        stream = builder.stream("orders", key=String("user"), value=Int64("number"))
        stream.filter(lambda key, value: 1 // (value - 500) <= 1).to_delta("out")
        return Application("headers", builder, on_error=decide, on_processing_error=decide)

    rows = [
        (b"ann", value, number, [("n", b"%d" % number)])
        for number, value in enumerate([b"no number", (1).to_bytes(8, "big"), (500).to_bytes(8, "big")])
    ]
    expected = [("deserialization", (("n", b"0"),)), ("processing", (("n", b"2"),))]
    Place(application(), Topics({("orders", 0): rows}), tmp_path).run()
    assert seen == expected
    seen.clear()
    with TopologyTestDriver(application()) as driver:
        for key, value, time_ms, headers in rows:
            driver.create_input_topic("orders").pipe_input(key, value, timestamp_ms=time_ms, headers=headers)
    assert seen == expected
