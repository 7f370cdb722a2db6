"""Repartitions that several operations share, and those that may not have one name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from polars import col

from weir import Application, JoinWindows, Json, KStream, KTable, StreamsBuilder, String, TopologyError
from weir.testing import TopologyTestDriver

NEAR = JoinWindows.of_time_difference_with_no_grace(timedelta(seconds=10))


@dataclass(frozen=True)
class Click:
    user: str
    page: str


CLICKS = [("1", Click("ann", "/")), ("2", Click("bob", "/docs")), ("3", Click("ann", "/docs"))]
TOWNS = [("ann", "Oslo")]
KNOWN = [("ann", "/", "Oslo"), ("ann", "/docs", "Oslo")]
"""The clicks of users with a town."""
ALL = [*KNOWN, ("bob", "/docs", None)]
COUNTS = [("ann", 1), ("ann", 2), ("bob", 1)]
VISITS = [("ann", "/"), ("ann", "/docs"), ("bob", "/docs")]


def topology(program: Callable[[KStream, KTable], None]) -> Application:
    """``program`` of the clicks, under their users, and of the users' towns."""
    builder = StreamsBuilder()
    towns = builder.table("towns", key=String("user"), value=String("town"), store="towns")
    clicks = builder.stream("clicks", key=String("id"), value=Json(Click))
    program(clicks.map(key="user", value={"page": "page"}), towns)
    return Application("clicks", builder)


def written(application: Application) -> dict[str, Counter[tuple[Any, ...]]]:
    """By table, how often each row was written, without its time."""
    with TopologyTestDriver(application) as driver:
        driver.create_input_topic("towns").pipe_key_value_list(TOWNS)
        driver.create_input_topic("clicks").pipe_key_value_list(CLICKS)
        return {
            spec.name: Counter(tuple(row.values()) for row in driver.create_output_table(spec.name).read_rows())
            for spec in application.topology.table_specs()
        }


def unnamed_joins(clicks: KStream, towns: KTable) -> None:
    clicks.join(towns).to_delta("known")
    clicks.left_join(towns).to_delta("all")


def joins_of_one_name(clicks: KStream, towns: KTable) -> None:
    clicks.join(towns, name="r").to_delta("known")
    clicks.left_join(towns, name="r").to_delta("all")


def a_join_and_a_count_of_one_name(clicks: KStream, towns: KTable) -> None:
    clicks.group_by_key().count("r").to_delta("counts", emit="record")
    clicks.join(towns, name="r").to_delta("known")


def two_repartitions(clicks: KStream, towns: KTable) -> None:
    clicks.repartition("r").merge(clicks.repartition("r")).to_delta("twice")


def two_counted_repartitions(clicks: KStream, towns: KTable) -> None:
    clicks.repartition("r", partitions=3).to_delta("visits")
    clicks.repartition("r", partitions=3).group_by_key().count("n").to_delta("counts", emit="record")


def a_repartition_and_a_count_of_one_name(clicks: KStream, towns: KTable) -> None:
    clicks.group_by_key().count("r").to_delta("counts", emit="record")
    clicks.repartition("r").to_delta("visits")


def a_repartition_joined_with_itself(clicks: KStream, towns: KTable) -> None:
    clicks.repartition("r").join(clicks.repartition("r"), windows=NEAR, store="pairs").to_delta("pairs")


PAIRS = [("ann", one, other) for one in ("/", "/docs") for other in ("/", "/docs")] + [("bob", "/docs", "/docs")]


@pytest.mark.parametrize(
    ("program", "name", "tables"),
    [
        (unnamed_joins, "KSTREAM-MAP-0000000003", dict(known=KNOWN, all=ALL)),
        (joins_of_one_name, "r", dict(known=KNOWN, all=ALL)),
        (a_join_and_a_count_of_one_name, "r", dict(counts=COUNTS, known=KNOWN)),
        (two_repartitions, "r", dict(twice=VISITS * 2)),
        (two_counted_repartitions, "r", dict(visits=VISITS, counts=COUNTS)),
        (a_repartition_and_a_count_of_one_name, "r", dict(counts=COUNTS, visits=VISITS)),
        (a_repartition_joined_with_itself, "r", dict(pairs=PAIRS)),
    ],
)
def test_operations_share_the_repartition_of_one_stream_and_name(program, name, tables):
    application = topology(program)
    assert [edge.name for edge in application.topology.edges] == [f"{name}-repartition"]
    assert written(application) == {table: Counter(rows) for table, rows in tables.items()}


def names_differ(clicks: KStream, towns: KTable) -> None:
    clicks.group_by_key().count("a").to_delta("counts", emit="record")
    clicks.join(towns, name="b").to_delta("known")


def streams_differ(clicks: KStream, towns: KTable) -> None:
    clicks.join(towns).to_delta("known")
    clicks.filter(col("page") != "/").left_join(towns).to_delta("docs")


def sides_of_a_join(clicks: KStream, towns: KTable) -> None:
    clicks.join(clicks, windows=NEAR, store="pairs").to_delta("pairs")


@pytest.mark.parametrize(
    ("program", "names", "tables"),
    [
        (names_differ, ["a", "b"], dict(counts=COUNTS, known=KNOWN)),
        (
            streams_differ,
            ["KSTREAM-MAP-0000000003", "KSTREAM-FILTER-0000000009"],
            dict(known=KNOWN, docs=[("ann", "/docs", "Oslo"), ("bob", "/docs", None)]),
        ),
        (sides_of_a_join, ["pairs-left", "pairs-right"], dict(pairs=PAIRS)),
    ],
)
def test_other_names_and_other_streams_have_repartitions_of_their_own(program, names, tables):
    """Their names are those under which earlier versions stored data."""
    application = topology(program)
    assert [edge.name for edge in application.topology.edges] == [f"{name}-repartition" for name in names]
    assert written(application) == {table: Counter(rows) for table, rows in tables.items()}


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (lambda clicks, towns: (clicks.repartition("r"), clicks.filter(col("page") != "/").repartition("r")), "r"),
        (lambda clicks, towns: (clicks.repartition("r"), clicks.repartition("r", partitions=3)), "r"),
        (lambda clicks, towns: (clicks.repartition("r", partitions=2), clicks.group_by_key().count("r")), "r"),
        (lambda clicks, towns: (clicks.repartition("r"), clicks.select_key("page").join(towns, name="r")), "r"),
        (
            lambda clicks, towns: (
                clicks.join(clicks.filter(col("page") != "/"), windows=NEAR, store="x"),
                clicks.select_key("page").group_by_key().count("x-left"),
            ),
            "x-left",
        ),
        (lambda clicks, towns: (clicks.repartition("n"), towns.group_by(by="town").count("n")), "n"),
    ],
    ids=["other stream", "other width", "width of a count", "other key", "side of a join", "grouped table"],
)
def test_different_repartitions_of_one_name_are_refused(program, name):
    with pytest.raises(TopologyError, match=f"the repartition '{name}' is declared 2 times; .* or repartition once"):
        topology(program).topology  # noqa: B018
