"""Migrating a Kafka Streams application from a cluster in memory: its formats, and when it is refused."""

from __future__ import annotations

import struct
from datetime import timedelta

import polars as pl
import pytest
from polars import col

from tests.pipelines.migrate.topics_in_memory import Cluster
from weir import (
    Application,
    BufferConfig,
    Count,
    Max,
    SlidingWindows,
    StreamsBuilder,
    String,
    Suppressed,
    TimeWindows,
)
from weir.pipelines.migrate import KafkaStreamsApp, MigrationError, StoreSerdes
from weir.pipelines.migrate import changelog_topics as module
from weir.pipelines.serdes.scalar import Int64
from weir.state.types import TaskId

MINUTE = 60_000


def window_key(key: bytes, start_ms: int) -> bytes:
    return key + struct.pack(">qi", start_ms, 0)


def long(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def application() -> Application:
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=String("country"))
    by_user = visits.group_by_key().count("by_user")
    by_user.to_delta("by_user")
    by_user.filter(col("count") > 2).map_values(many=col("count") * 10).to_delta("many")
    (
        visits.group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(seconds=10)))
        .count("by_minute")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_delta("by_minute")
    )
    visits.group_by("country").count("by_country").to_delta("by_country")
    return Application("visits", builder)


@pytest.fixture
def cluster():
    found = Cluster(offsets={("visits", 0): 3, ("visits", 1): 0, ("ks-by_country-repartition", 0): 1})
    for topic in (
        "visits",
        "ks-by_user-changelog",
        "ks-by_minute-changelog",
        "ks-by_country-changelog",
        "ks-by_country-repartition",
    ):
        for partition in (0, 1):
            found.rows[topic, partition] = []
    found.rows["visits", 0] = [(b"ann", b"nz", 5), (b"ann", b"nz", 6), (b"bob", b"at", 7), (b"bob", b"at", 8)]
    found.rows["ks-by_country-repartition", 0] = [(b"nz", b"nz", 5)]
    found.rows["ks-by_user-changelog", 0] = [
        (b"ann", long(1), 5),
        (b"bob", long(1), 7),
        (b"ann", long(3), 6),
        (b"eve", long(9), 6),
        (b"eve", None, 7),
    ]
    found.rows["ks-by_minute-changelog", 0] = [
        (window_key(b"ann", 0), long(4), 59_000),
        (window_key(b"ann", MINUTE), long(5), MINUTE + 9_999),
    ]
    found.rows["ks-by_country-changelog", 1] = [(b"nz", long(2), 6), (b"at", long(1), 7)]
    return found


def app(cluster, program=None, **options):
    program = program or application()
    return KafkaStreamsApp(
        id="ks",
        application=program,
        cluster=cluster,
        reader=cluster.reader,
        topic_counts=cluster.partition_counts(program.topology.topics()),
        **options,
    )


def rows_of(migration, store):
    return {each.task: each.rows.rows() for each in migration.stores if each.store.name == store and each.rows.height}


def test_the_newest_row_of_each_key_is_taken_and_deleted_keys_are_not(cluster, monkeypatch):
    monkeypatch.setattr(module, "HELD_ROWS", 2)
    migration = app(cluster).migration()
    assert migration.positions == {("visits", 0): 3, ("visits", 1): 0}
    assert migration.topic_ids == {"visits": "id of visits"}
    assert sorted(rows_of(migration, "by_user")[TaskId(0, 0)]) == [("ann", 3, 6), ("bob", 1, 7)]


def test_a_migration_waits_for_what_the_last_transaction_wrote(cluster, monkeypatch):
    """A broker answers a commit before it has marked all of its records: until then they cannot be read."""
    monkeypatch.setattr(module, "TRANSACTION_LOOK_S", 0)
    wanted = rows_of(app(cluster).migration(), "by_user")
    cluster.open_looks = 9
    assert rows_of(app(cluster).migration(), "by_user") == wanted
    monkeypatch.setattr(module, "TRANSACTION_LIMIT_S", 0)
    cluster.open_looks = 99
    with pytest.raises(
        MigrationError, match=r"ks-by_country-repartition', partition 0 .*transaction.* stop what writes"
    ):
        app(cluster).migration()


def test_windows_that_can_still_change_are_migrated_together_with_stream_time(cluster):
    """At 69,999 ms the window from 0, with 10 s of grace, is a millisecond from closing."""
    still_open = app(cluster).migration()
    assert still_open.clocks == {TaskId(0, 0): {"by_minute": MINUTE + 9_999}}
    assert [row[-2] for row in rows_of(still_open, "by_minute")[TaskId(0, 0)]] == [4, 5]
    cluster.rows["ks-by_minute-changelog", 0].append((window_key(b"bob", MINUTE), long(1), MINUTE + 10_000))
    closed = app(cluster).migration()
    ((start, end, *_),) = {row[1:3] for row in rows_of(closed, "by_minute")[TaskId(0, 0)]}
    assert (start.timestamp(), end.timestamp()) == (60, 120)


def test_rows_after_a_repartition_go_to_the_task_that_owns_their_key(cluster):
    program = application()
    found = rows_of(app(cluster, program).migration(), "by_country")
    (edge,) = program.topology.edges
    for task, rows in found.items():
        for country, *_ in rows:
            assert task == TaskId(1, edge.partition_of(pl.DataFrame({"country": [country]}), 2)[0])
    assert sorted(row[0] for rows in found.values() for row in rows) == ["at", "nz"]


def test_tables_of_updates_get_what_their_stores_hold(cluster):
    outputs = {}
    for table, rows in app(cluster).migration().outputs:
        outputs.setdefault(table.name, []).extend(rows.rows(named=True))
    assert sorted((row["user"], row["count"]) for row in outputs["by_user"]) == [("ann", 3), ("bob", 1)]
    assert [(row["user"], row["many"], row["_deleted"]) for row in outputs["many"]] == [("ann", 30, False)]
    assert sorted((row["country"], row["count"]) for row in outputs["by_country"]) == [("at", 1), ("nz", 2)]
    assert "by_minute" not in outputs, "final results are facts, and Kafka Streams has emitted its own"


def test_values_after_a_timestamp_are_read_with_it(cluster):
    cluster.rows["ks-by_user-changelog", 0] = [(b"ann", long(1234) + long(7), 99)]
    serdes = {"by_user": StoreSerdes(key=String("user"), value=Int64("count"), has_timestamps=True)}
    assert rows_of(app(cluster, serdes=serdes).migration(), "by_user") == {TaskId(0, 0): [("ann", 7, 1234)]}


def test_a_table_may_be_read_from_its_source_topic_up_to_the_position(cluster):
    builder = StreamsBuilder()
    builder.table("visits", store="homes", key=String("user"), value=String("country")).to_delta("homes")
    program = Application("homes", builder)
    with pytest.raises(MigrationError, match=r"no changelog topic 'ks-homes-changelog'.*--changelog homes=TOPIC"):
        app(cluster, program).migration()
    found = rows_of(app(cluster, program, changelogs={"homes": "visits"}).migration(), "homes")
    assert sorted(found[TaskId(0, 0)]) == [("ann", "nz", 6), ("bob", "at", 7)], (
        "records after the position are left out"
    )


@pytest.mark.parametrize("topic", ["KSTREAM-TOTABLE-0000000002-repartition", "newest-repartition"])
def test_records_that_wait_before_a_table_are_found_whether_kafka_streams_made_the_topics_name_up_or_not(
    topic, cluster
):
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=String("country"))
    visits.select_key("country").to_table("newest")
    cluster.rows |= {("ks-newest-changelog", partition): [] for partition in (0, 1)}
    cluster.rows[f"ks-{topic}", 0] = [(b"nz", b"nz", 5)]
    with pytest.raises(MigrationError, match=f"records in its repartition topic 'ks-{topic}'"):
        app(cluster, Application("visits", builder)).migration()


def test_what_cannot_be_migrated_is_refused_with_the_way_out(cluster):
    def refused(reason, **options):
        with pytest.raises(MigrationError, match=reason):
            app(cluster, **options).migration()

    cluster.members = 2
    refused("has 2 members.*stop it")
    cluster.members = 0
    cluster.rows["ks-by_country-repartition", 1].append((b"at", b"at", 9))
    refused("records in its repartition topic 'ks-by_country-repartition'.*catch up")
    cluster.rows["ks-by_country-repartition", 1].clear()
    cluster.rows["ks-by_user-changelog", 2] = []
    refused("'ks-by_user-changelog' has 3 partitions.*2 tasks")
    del cluster.rows["ks-by_user-changelog", 2]
    cluster.rows["ks-by_user-changelog", 0].append((b"ann", b"three", 6))
    refused("'ks-by_user-changelog', partition 0, store 'by_user': its value at offset 5 .*8 bytes")
    cluster.rows["ks-by_user-changelog", 0].pop()
    cluster.rows["ks-by_minute-changelog", 1].append((b"short", long(1), 6))
    refused("'ks-by_minute-changelog', partition 1, offset 0: b'short' is too short for a key of a window store")


def test_an_application_that_is_started_while_it_is_read_is_refused(cluster):
    read = cluster.reader

    def start(topic, partition):
        cluster.offsets = {**cluster.offsets, ("visits", 0): 4}
        return read(topic, partition)

    with pytest.raises(MigrationError, match=r"'ks' was started.*stop it"):
        KafkaStreamsApp(
            id="ks", application=application(), cluster=cluster, reader=start, topic_counts={"visits": 2}
        ).migration()


def test_serdes_that_the_program_does_not_suggest_have_to_be_given(cluster):
    builder = StreamsBuilder()
    (
        builder.stream("visits", key=String("user"), value=String("country"))
        .group_by_key()
        .agg("by_user", visits=Count(), last=Max("country"))
        .to_delta("by_user")
    )
    with pytest.raises(MigrationError, match=r"the value of store 'by_user' \(visits, last\).*--serdes by_user="):
        app(cluster, Application("two", builder)).migration()


def test_a_store_that_kafka_streams_has_nothing_for_is_left_out_with_the_reason(cluster):
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=String("country"))
    visits.group_by_key().count("by_user").to_delta("by_user")
    sliding = SlidingWindows.of_time_difference_and_grace(timedelta(minutes=1), timedelta(0))
    visits.group_by_key().windowed_by(sliding).count("sliding").to_delta("sliding")
    migration = app(cluster, Application("visits", builder)).migration()
    assert migration.left_out == dict.fromkeys(
        ("sliding", "sliding-unseen"), "Weir keeps more for such windows than Kafka Streams does"
    )
    assert {each.store.name for each in migration.stores} == {"by_user"}
