"""Repartitions through the driver: shared by several operations, and records without a key on the way through them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, JoinWindows, Json, StreamsBuilder, String
from weir.pipelines.serdes.partitioner import murmur2
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

CLICKS, TOWNS = 2, 3
"""Partitions of the two topics."""
NEAR = JoinWindows.of_time_difference_with_no_grace(timedelta(milliseconds=0))


@dataclass(frozen=True)
class Click:
    user: str | None
    page: str


def program() -> Application:
    builder = StreamsBuilder()
    towns = builder.table("towns", key=String("user"), value=String("town"), store="towns")
    clicks = builder.stream("clicks", key=String("id"), value=Json(Click)).map(key="user", value={"page": "page"})
    clicks.join(towns).to_delta("known")
    clicks.left_join(towns).to_delta("all")
    clicks.join(towns, name="r").to_delta("named")
    clicks.group_by_key().count("r").to_delta("counts")
    clicks.repartition("s").merge(clicks.repartition("s")).to_delta("twice")
    clicks.left_join(clicks, windows=NEAR, store="pairs").to_delta("pairs")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=20))


USERS = ["ann", "bob", "eve", None]
PAGES = [(number, partition, USERS[(number + partition) % 4]) for partition in range(CLICKS) for number in range(40)]
"""Clicks: number, partition and user."""


@pytest.fixture
def place(tmp_path) -> Place:
    topics = Topics({("towns", number): [] for number in range(TOWNS)})
    for partition in range(CLICKS):
        topics.rows["clicks", partition] = [
            (b"%d" % number, json.dumps({"user": user, "page": f"{number}-{at}"}).encode(), 10 + number)
            for number, at, user in PAGES
            if at == partition
        ]
    for name in (b"ann", b"bob"):
        topics.rows["towns", int(murmur2([name])[0] & 0x7FFFFFFF) % TOWNS].append((name, b"Oslo", 0))
    return Place(program(), topics, tmp_path, max_records=7)


def written(place: Place, table: str) -> Counter:
    rows = read_table(place.warehouse / "clicks" / table)
    return Counter(rows.select(column for column in rows.columns if not column.startswith("_")).iter_rows())


@pytest.mark.slow
def test_each_record_comes_through_a_shared_repartition_once_with_or_without_a_key(place):
    """The expected rows are counted from the clicks themselves."""
    summary = place.run()
    town = {"ann": "Oslo", "bob": "Oslo"}
    every = [(user, f"{number}-{partition}") for number, partition, user in PAGES]
    known = Counter((user, page, town[user]) for user, page in every if user in town)
    assert written(place, "known") == written(place, "named") == known
    assert written(place, "all") == Counter((user, page, town.get(user)) for user, page in every)
    assert written(place, "twice") == Counter(every * 2)
    assert written(place, "pairs") == Counter((user, page, page if user else None) for user, page in every)
    counts = read_table(place.warehouse / "clicks" / "counts").group_by("user").agg(pl.col("count").max())
    assert dict(counts.iter_rows()) == Counter(user for user, _ in every if user)
    without = sum(user is None for user, _ in every)
    assert summary.totals["null_keys"] == 3 * without, "by the inner join, before 'r', and before the right side"
    assert not newest_commit(place.warehouse, "clicks").pending_blobs


def test_a_row_without_a_key_goes_where_its_partition_leads():
    """Whatever epochs it travels in, its task is the same."""
    (edge,) = (edge for edge in program().topology.edges if edge.name.startswith("KSTREAM-MAP"))
    rows = pl.DataFrame({"user": ["ann", None, None, None], "_partition": pl.Series([0, 0, 1, 5], dtype=pl.Int32)})
    ann = int(murmur2([b"ann"])[0] & 0x7FFFFFFF) % TOWNS
    assert edge.partition_of(rows, TOWNS).to_list() == [ann, 0, 1, 2]


def test_a_global_table_takes_a_number_and_the_tasks_behind_it_go_on(tmp_path):
    """Sub-topologies 0 and 2 have tasks, and a second run finds their state."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("id"), value=Json(Click))
    towns = builder.global_table("towns", key=String("town_of"), value=String("town"), store="towns")
    clicks.join(towns, key="user").map_values(town="town").to_delta("towns_seen")
    clicks.group_by("user").count("visits").to_delta("counts")
    rows = [(b"1", b'{"user": "ann", "page": "/"}', 5), (b"2", b'{"user": "bob", "page": "/"}', 6)]
    topics = Topics({("clicks", 0): rows[:], ("clicks", 1): rows[:], ("towns", 0): [(b"ann", b"Oslo", 0)]})
    place = Place(Application("clicks", builder, commit_interval=timedelta(milliseconds=20)), topics, tmp_path)
    place.run()
    assert set(newest_commit(place.warehouse, "clicks").tasks) == {
        place.name_of(task) for task in ("0_0", "0_1", "2_0", "2_1")
    }
    place.topics.rows["clicks", 0] += rows
    place.run()
    assert written(place, "towns_seen") == {("1", "Oslo"): 3}
    assert {(user, 3) for user in ("ann", "bob")} <= set(written(place, "counts"))
