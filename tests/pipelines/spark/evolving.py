"""A program that changes in all ways in which its stores go on, and a plain count over all of its records."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import polars as pl

from tests.pipelines.spark.inline import Place
from weir import (
    Application,
    BufferConfig,
    Count,
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
from weir.state.changelog.as_of import state_as_of
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Click:
    page: str
    ms: int


@dataclass(frozen=True)
class Extended:
    page: str
    ms: int
    country: str | None = None


@dataclass(frozen=True)
class Renamed:
    page: str
    ms: int


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
    output: str = "users_out"

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
        of_users.group_by_key().agg("users", **{name: every[name] for name in self.aggregates}).to_delta(self.output)
        windowed = (
            stream.group_by("page")
            .windowed_by(TimeWindows.of_size_and_grace(MINUTE, self.grace))
            .agg("pages", n=Count())
        )
        if self.is_final:
            windowed = windowed.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        windowed.to_stream().to_delta("pages_out")
        stream.to_table("newest").to_delta(f"newest_of_{self.value.__name__}")
        if self.more:
            stream.group_by_key().agg("more", last=Last("page")).to_delta("more_out")
        return Application("clicks", builder, commit_interval=timedelta(milliseconds=1))


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


CHANGES = {
    "the same": Changed(),
    "a nullable field": Changed(value=Extended),
    "another class": Changed(value=Renamed),
    "a store beside": Changed(more=True),
    "another grace": Changed(grace=2 * MINUTE),
    "no grace": Changed(grace=timedelta(0)),
    "added aggregates": Changed(aggregates=("n", "mean", "total", "most"), output="means_out"),
    "aggregates in another order": Changed(aggregates=("total", "n")),
    "operators before": Changed(filters=3),
    "a split": Changed(splits=True),
    "all": Changed(
        value=Extended,
        more=True,
        grace=2 * MINUTE,
        aggregates=("total", "n", "country"),
        filters=2,
        splits=True,
        output="countries_out",
    ),
}
