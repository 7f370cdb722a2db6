"""Programs change between runs and their stores go on: compared with a plain count over all records."""

from __future__ import annotations

import json
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from tests.pipelines.spark.inline import Place, Topics
from weir import (
    Application,
    BufferConfig,
    Count,
    Int32,
    Int64,
    Json,
    Last,
    Max,
    Mean,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.topology.changes import Fate
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows, read_table

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Click:
    page: str
    ms: int


Extended = make_dataclass(
    "Extended", [("page", str), ("ms", int), ("country", str | None, None)], frozen=True, module=__name__
)


def clicks(first: int, count: int, **more: Any) -> list:
    """Records of twenty users, one second apart."""
    return [
        (
            b"user-%d" % (number % 20),
            json.dumps({"page": f"page-{number % 3}", "ms": number, **more}).encode(),
            number * 1_000,
        )
        for number in range(first, first + count)
    ]


@dataclass
class Changed:
    """A program, with all that may change over the same stores."""

    value: type = Click
    more: bool = False
    """Whether there is a store beside the others."""
    aggregates: tuple[str, ...] = ("n", "total")
    grace: timedelta = MINUTE
    is_final: bool = False
    filters: int = 0
    """Operators before the others, which move their numbers."""
    splits: bool = False
    """Whether the users' store moves to a sub-topology of its own."""
    table: bool = True

    def application(self) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("clicks", key=String("user"), value=Json(self.value))
        for _ in range(self.filters):
            stream = stream.filter(lambda key, value: True)
        every = {
            "n": Count(),
            "total": Sum("ms"),
            "mean": Mean("ms"),
            "most": Max("ms"),
            "country": Last("country") if self.value is Extended else Last("page"),
        }
        of_users = stream.repartition(name="users") if self.splits else stream
        of_users.group_by_key().agg("users", **{name: every[name] for name in self.aggregates}).to_delta("users_out")
        windowed = (
            stream.group_by("page")
            .windowed_by(TimeWindows.of_size_and_grace(MINUTE, self.grace))
            .agg("pages", n=Count())
        )
        if self.is_final:
            windowed = windowed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        windowed.to_stream().to_delta("pages_out")
        if self.table:
            stream.to_table(name="newest").to_delta("newest_out")
        if self.more:
            stream.group_by_key().agg("more", last=Last("page")).to_delta("more_out")
        return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


@pytest.fixture
def place(tmp_path):
    return Place(Changed().application(), Topics({("clicks", 0): clicks(0, 300)}), tmp_path, max_records=70)


def users(place: Place) -> dict[str, tuple[int, int]]:
    rows = store(place, "users")
    return {user: (n, total) for user, n, total in rows.select("user", "n", "total").iter_rows()}


def store(place: Place, name: str) -> pl.DataFrame:
    committed = newest_commit(place.warehouse, "clicks")
    (spec,) = (
        each
        for sub_topology in place.application.topology.sub_topologies
        for each in sub_topology.stores
        if each.name == name
    )
    return state_as_of(place.warehouse / "clicks", spec, committed.epoch)


def counted(place: Place) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for key, value, _ in place.topics.rows["clicks", 0]:
        n, total = found.get(key.decode(), (0, 0))
        found[key.decode()] = (n + 1, total + json.loads(value)["ms"])
    return found


def pages(place: Place) -> dict[tuple[str, int], int]:
    """Records by page and minute, from the newest update of each window."""
    rows = read_rows(place.warehouse / "clicks" / "pages_out").sort("_epoch", "_seq")
    return {
        (page, start.timestamp() // 60): n for page, start, n in rows.select("page", "window_start", "n").iter_rows()
    }


def pages_counted(place: Place) -> dict[tuple[str, int], int]:
    found: dict[tuple[str, int], int] = {}
    for _, value, time_ms in place.topics.rows["clicks", 0]:
        at = json.loads(value)["page"], time_ms // 60_000
        found[at] = found.get(at, 0) + 1
    return found


def fates(place: Place) -> dict[str, Fate]:
    return {each.store: each.fate for each in place.change().stores}


CHANGES = {
    "the same": Changed(),
    "a nullable field": Changed(value=Extended),
    "another class": Changed(value=make_dataclass("Renamed", [("page", str), ("ms", int)], frozen=True)),
    "a store beside": Changed(more=True),
    "another grace": Changed(grace=2 * MINUTE),
    "no grace": Changed(grace=timedelta(0)),
    "added aggregates": Changed(aggregates=("n", "mean", "total", "most")),
    "operators before": Changed(filters=3),
    "a split": Changed(splits=True),
    "all": Changed(
        value=Extended, more=True, grace=2 * MINUTE, aggregates=("total", "n", "country"), filters=2, splits=True
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("loses_disk", [False, True])
def test_stores_go_on_under_a_changed_program(place, name, loses_disk):
    place.run()
    place.application = CHANGES[name].application()
    place.topics.rows["clicks", 0] += clicks(300, 250)
    if loses_disk:
        for data in place.state_folder.glob("*/*/data.mdb"):
            data.unlink()
    place.run()
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)
    assert store(place, "newest").height == 20
    place.topics.rows["clicks", 0] += clicks(550, 50)
    place.run()
    assert users(place) == counted(place)
    assert pages(place) == pages_counted(place)


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ("the same", "all")])
def test_the_old_program_may_come_back(place, name):
    place.run()
    for number, program in enumerate((CHANGES[name], Changed(), CHANGES[name])):
        place.application = program.application()
        place.topics.rows["clicks", 0] += clicks(300 + number * 100, 100)
        place.run()
        assert users(place) == counted(place)
        assert pages(place) == pages_counted(place)
