"""Sub-topologies, descriptions, fingerprints, output schemas and partition counts."""

import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from polars import col

from weir import (
    BufferConfig,
    CoPartitioningError,
    Count,
    Delimited,
    Int32,
    Json,
    Mean,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
    TopologyError,
)
from weir.pipelines.serdes.partitioner import murmur2
from weir.pipelines.topology import Topology
from weir.state.types import StoreKind, TaskId

UTC_MS = pl.Datetime("ms", "UTC")


@dataclass(frozen=True)
class Click:
    page: str
    ms: int | None


def program(size: timedelta = timedelta(hours=1), store: str = "pages") -> Topology:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click))
    (
        clicks.group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(size))
        .agg("hourly", mean=Mean("ms"))
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("final")
    )
    pages = clicks.filter(lambda key, click: True).group_by("page").agg(store, n=Count())
    pages.to_delta("page_totals")
    pages.to_stream().group_by(size="n").count("sizes").to_delta("size_totals")
    return builder.build()


def test_a_fused_suppression_is_described_but_keeps_no_store():
    topology = program()
    assert "KTABLE-SUPPRESS-0000000002 (stores: [KTABLE-SUPPRESS-STATE-STORE-0000000003])" in topology.describe()
    assert [store.name for store in topology.sub_topologies[0].stores] == ["hourly"]


def test_sub_topologies_meet_in_edges():
    topology = program()
    assert [sub.name for sub in topology.sub_topologies] == ["clicks", "pages-repartition", "sizes-repartition"]
    assert [(edge.name, edge.source, edge.target) for edge in topology.edges] == [
        ("pages-repartition", 0, 1),
        ("sizes-repartition", 1, 2),
    ]
    assert [edge.name for edge in topology.sub_topologies[1].edges_in] == ["pages-repartition"]
    assert [edge.name for edge in topology.sub_topologies[1].edges_out] == ["sizes-repartition"]
    assert dict(topology.edges[0].schema) == {
        "page": pl.String,
        "ms": pl.Int64,
        "_ts": pl.Int64,
        "_partition": pl.Int32,
        "_offset": pl.Int64,
        "_deleted": pl.Boolean,
    }
    assert topology.topics() == ("clicks",)


def test_output_tables_have_key_window_value_and_reserved_columns():
    final, pages, sizes = program().table_specs()
    assert dict(final.schema) == {
        "user": pl.String,
        "window_start": UTC_MS,
        "window_end": UTC_MS,
        "mean": pl.Float64,
        "_ts": UTC_MS,
        "_epoch": pl.Int64,
        "_seq": pl.Int64,
        "_deleted": pl.Boolean,
    }
    assert (final.keys, pages.keys, sizes.keys) == ((), ("page",), ("size",))


def test_a_mean_is_kept_as_sum_and_count_and_read_finished():
    topology = program()
    (store,) = topology.sub_topologies[0].stores
    assert dict(store.value) == {"mean__sum": pl.Int64, "mean__count": pl.Int64}
    assert store.kind is StoreKind.WINDOW
    rows = pl.DataFrame({"user": ["a", "b"], "mean__sum": [3, 0], "mean__count": [2, 0], "_ts": [1, 2]})
    assert topology.finish("hourly", rows).to_dict(as_series=False) == {
        "user": ["a", "b"],
        "mean": [1.5, None],
        "_ts": [1, 2],
    }
    with pytest.raises(KeyError):
        topology.finish("nope", rows)


def test_there_are_as_many_tasks_after_a_repartition_as_before_it():
    assert program().partition_counts({"clicks": 4}) == {0: 4, 1: 4, 2: 4}


def test_several_topics_are_one_source():
    builder = StreamsBuilder()
    clicks = builder.stream(["clicks", "views"], key=String("user"), value=Json(Click))
    clicks.filter(lambda key, click: True).to_delta("all")
    topology = builder.build()
    assert (topology.topics(), topology.partition_counts({"clicks": 4, "views": 6})) == (("clicks", "views"), {0: 6})


def test_a_stream_has_at_least_one_topic_and_reads_each_once():
    with pytest.raises(TopologyError, match="name at least one"):
        StreamsBuilder().stream([], key=String("user"), value=Json(Click))
    builder = StreamsBuilder()
    builder.stream(["clicks", "clicks"], key=String("user"), value=Json(Click))
    with pytest.raises(TopologyError, match="'clicks' is declared 2 times"):
        builder.build()


def merged() -> Topology:
    builder = StreamsBuilder()
    clicks, views = (builder.stream(topic, key=String("user"), value=Json(Click)) for topic in ("clicks", "views"))
    clicks.merge(views).filter(lambda key, click: True).to_delta("all")
    return builder.build()


def test_merged_topics_meet_in_one_sub_topology_and_need_no_equal_partition_counts():
    topology = merged()
    assert [sub.name for sub in topology.sub_topologies] == ["clicks"]
    assert topology.partition_counts({"clicks": 4, "views": 6}) == {0: 6}


def test_the_fingerprint_follows_the_structure():
    assert program().fingerprint == program().fingerprint
    others = {program(size=timedelta(minutes=1)).fingerprint, program(store="other").fingerprint}
    assert len({program().fingerprint, *others}) == 3


@pytest.mark.slow
def test_the_fingerprint_is_the_same_in_another_process():
    root = Path(__file__).resolve().parents[3]
    code = "from tests.pipelines.topology.test_topology import program; print(program().fingerprint)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == program().fingerprint


def test_stored_names_follow_what_is_read_first_and_not_the_rest_of_the_program():
    """Folders, changelog rows and blobs carry them (PROTOCOL 23)."""

    def names(*, flipped=False, column="text"):
        builder = StreamsBuilder()
        topics = [("clicks", Json(Click)), ("views", String(column))]
        for topic, serde in reversed(topics) if flipped else topics:
            builder.stream(topic, key=String("user"), value=serde).group_by_key().count(f"{topic}_count")
        return {sub_topology.name: sub_topology.stored_name for sub_topology in builder.build().sub_topologies}

    assert names() == names(flipped=True)
    assert names(column="other") == names() == {"clicks": "clicks", "views": "views"}


def test_a_tasks_stored_name_leads_back_to_the_task():
    topology = program()
    task = TaskId(1, 3)
    assert topology.task_name(task) == f"{topology.sub_topologies[1].stored_name}_3"
    assert topology.task_of(topology.task_name(task)) == task
    with pytest.raises(KeyError):
        topology.task_of("other_3")


def test_edges_spread_rows_by_kafkas_partitioner():
    edge = program().edges[0]
    rows = pl.DataFrame({"page": ["abc", "foobar", "abc"]})
    assert edge.partition_of(rows, 4).to_list() == [479470107 % 4, (-790332482 & 0x7FFFFFFF) % 4, 479470107 % 4]


def test_topics_that_lead_into_one_store_need_equal_partition_counts():
    """Otherwise a key would have a row in two tasks; what keeps no state reads topics of any widths."""
    counts = {"clicks": 2, "views": 3}

    def program(keep) -> Topology:
        builder = StreamsBuilder()
        keep(builder.stream(["clicks", "views"], key=String("user"), value=Json(Click)))
        return builder.build()

    assert program(lambda stream: stream.to_delta("all")).partition_counts(counts) == {0: 3}
    repartitioned = program(lambda stream: stream.repartition("both").group_by_key().agg("n", n=Count()))
    assert repartitioned.partition_counts(counts) == {0: 3, 1: 3}
    with pytest.raises(CoPartitioningError, match="clicks has 2, views has 3"):
        program(lambda stream: stream.group_by_key().agg("n", n=Count())).partition_counts(counts)


@dataclass(frozen=True)
class Page:
    number: int


@dataclass(frozen=True)
class Time:
    ms: int | None


@pytest.mark.parametrize(
    ("key", "dtype", "written"),
    [
        (Int32("number"), pl.Int32, lambda number: number.to_bytes(4)),
        (Json(Page), pl.Int64, b'{"number":%d}'.__mod__),
        (Delimited(Page, "."), pl.Int64, b"%d".__mod__),
    ],
    ids=["Int32", "Json", "Delimited"],
)
@pytest.mark.parametrize(
    "meets", ["join", "table join", "cogroup", "before a merge under a new key", "by way of another edge"]
)
def test_an_edge_places_keys_as_the_producers_of_the_topic_that_it_meets_do(key, dtype, written, meets):
    """If Weir and the producers placed keys differently, a join would silently find nothing."""
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=String("user"), value=Json(Click)).select_key(number=col("ms").cast(dtype))
    pages = builder.stream("pages", key=key, value=Json(Click))
    match meets:
        case "join":
            clicks.join(pages.to_table("titles")).to_delta("out")
        case "table join":
            clicks.to_table("newest").join(pages.to_table("titles")).to_delta("out")
        case "cogroup":
            both = clicks.group_by_key().cogroup(n=Count()).cogroup(pages.group_by_key(), m=Count())
            both.agg("both").to_delta("out")
        case "before a merge under a new key":
            titled = clicks.join(pages.to_table("titles")).select_key(user="page").map_values(ms="ms")
            titled.merge(builder.stream("by_user", key=String("user"), value=Json(Time))).to_delta("out")
        case _:
            more = builder.stream("more", key=String("user"), value=Json(Click))
            more = more.select_key(number=col("ms").cast(dtype))
            newest = clicks.to_table("newest")
            newest.join(pages.to_table("titles")).to_delta("out")
            newest.join(more.to_table("newer")).to_delta("more_out")
    edges = builder.build().edges
    assert edges
    for edge in edges:
        rows = pl.DataFrame({"number": [1, 2, 3, 70_000]}, schema={"number": dtype})
        assert edge.partition_of(rows, 7).to_list() == [
            int(murmur2([written(number)])[0] & 0x7FFFFFFF) % 7 for number in (1, 2, 3, 70_000)
        ]


def test_topics_that_are_written_are_named_without_those_that_records_name():
    builder = StreamsBuilder()
    orders = builder.stream("orders", key=String("user"), value=String("item"))
    orders.to("copies")
    orders.to(pl.format("orders-of-{}", pl.col("user")), name="by-user")
    assert builder.build().topics_written == ["copies"]
