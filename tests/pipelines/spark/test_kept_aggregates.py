"""What aggregates keep: moved to another task, looked up, restored from changelogs, and under a changed program."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BottomK,
    Collect,
    First,
    Json,
    Last,
    MaxBy,
    Mean,
    MinBy,
    StateReader,
    StdDev,
    StreamsBuilder,
    String,
    StringAgg,
    TopK,
    ValueCounts,
    Variance,
)
from weir.pipelines.topology.changes import compare
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table


@dataclass(frozen=True)
class Click:
    page: str
    who: str
    ms: int


AGGREGATES = dict(
    earliest=First("who", by_time=True),
    latest=Last("ms", by_time=True),
    fastest=MinBy("who", by="ms"),
    slowest=MaxBy("who", by="ms"),
    greatest=TopK("ms", 2),
    first_users=BottomK("who", 2, by="ms"),
    path=StringAgg("who", " ", max_chars=25),
    users=ValueCounts("who", limit=3),
    spread=Variance("ms"),
    deviation=StdDev("ms", ddof=0),
)


class Site(Place):
    """Where queries look for its stores."""

    @property
    def state_folder(self):
        return self.folder / "state" / "clicks"


def application(**aggregates) -> Application:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    clicks.group_by("page").agg("pages", **aggregates).to_delta("pages")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


def records(first: int, count: int) -> list:
    """Of two pages and three users, one millisecond back in every two."""
    return [
        (
            b"user-%d" % (number % 3),
            json.dumps({"page": f"page-{number % 2}", "who": f"user-{number % 3}", "ms": number * 7 % 100}).encode(),
            number * 10 - 15 * (number % 4 == 2),
        )
        for number in range(first, first + count)
    ]


def expected(taken: list, page: str) -> dict:
    clicks = [(user.decode(), json.loads(value), time) for user, value, time in taken]
    clicks = [(user, value["ms"], time) for user, value, time in clicks if value["page"] == page]
    users, numbers = [user for user, _, _ in clicks], [ms for _, ms, _ in clicks]
    mean = sum(numbers) / len(numbers)
    squares = sum((number - mean) ** 2 for number in numbers)
    by_ms = sorted(clicks, key=lambda click: click[1])
    return dict(
        earliest=min(clicks, key=lambda click: click[2])[0],
        latest=max(reversed(clicks), key=lambda click: click[2])[1],
        fastest=by_ms[0][0],
        slowest=max(clicks, key=lambda click: click[1])[0],
        greatest=sorted(numbers, reverse=True)[:2],
        first_users=[user for user, _, _ in by_ms[:2]],
        path=" ".join(users)[:25],
        users=[dict(key=user, value=users.count(user)) for user in sorted(set(users))],
        spread=pytest.approx(squares / (len(numbers) - 1)),
        deviation=pytest.approx((squares / len(numbers)) ** 0.5),
    )


@pytest.mark.parametrize("loses_disk", [False, True])
def test_they_are_moved_looked_up_restored_and_written(tmp_path, loses_disk):
    """One partition, so that the repartition keeps the order in which the model takes the records."""
    place = Site(application(**AGGREGATES), Topics({("clicks", 0): records(1, 60)}), tmp_path, max_records=20)
    place.run()
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.topics.rows["clicks", 0] += records(61, 31)
    place.run()
    table = read_table(place.warehouse / "clicks" / "pages")
    for page in ("page-0", "page-1"):
        wanted = expected(place.topics.rows["clicks", 0], page)
        answer = StateReader(place.folder, place.application).get("pages", page).rows
        for rows in (answer, table.filter(pl.col("page") == page)):
            assert rows.select(list(AGGREGATES)).to_dicts() == [wanted]
    lists = {"greatest": pl.Int64(), "first_users": pl.String()}
    types = {name: pl.List(inner) for name, inner in lists.items()}
    types |= dict(latest=pl.Int64(), spread=pl.Float64(), deviation=pl.Float64())
    types |= dict(users=pl.List(pl.Struct({"key": pl.String(), "value": pl.Int64()})))
    assert {name: table.schema[name] for name in AGGREGATES} == {name: pl.String() for name in AGGREGATES} | types


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (First("who"), First("who", by_time=True)),
        (MaxBy("who", by="ms"), Last("who", by_time=True)),
        (MaxBy("who", by="ms"), MaxBy("who", by="page")),
        (Mean("ms"), Variance("ms")),
        (Collect("who", 9), StringAgg("who", ",", max_chars=9)),
        (TopK("ms", 2), TopK("ms", 2, by="ms")),
        (StringAgg("who", ",", max_chars=9), ValueCounts("who", limit=9)),
    ],
    ids=lambda aggregate: type(aggregate).__name__,
)
def test_a_row_is_not_taken_for_one_that_keeps_something_else(tmp_path, before, now):
    place = Place(application(it=before), Topics({("clicks", 0): records(1, 10)}), tmp_path)
    place.run()
    change = compare(newest_commit(place.warehouse, "clicks"), application(it=now).topology, {0: 1, 1: 1})
    assert change.loses_state, change.stores
