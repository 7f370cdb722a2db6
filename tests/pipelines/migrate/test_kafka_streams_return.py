"""An application goes back to Kafka Streams: the bytes are those that Kafka Streams wrote itself, and again changes
nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from tests.pipelines.migrate.every_store import TOPICS, program
from tests.pipelines.migrate.kafka_streams_bytes import RECORDS, changelogs, cluster
from tests.pipelines.migrate.topics_in_memory import Cluster
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, BufferConfig, Json, StreamsBuilder, String, Suppressed, TimeWindows
from weir.pipelines.migrate import KafkaStreamsApp, MigrationError
from weir.pipelines.migrate.errors import NotMovedError
from weir.pipelines.migrate.kafka_streams_return import KafkaStreamsReturn
from weir.pipelines.migrate.stores import format_of, subscription_format
from weir.pipelines.topology.foreign_key import SubscriptionJoinNode
from weir.state.commit.protocol import newest_commit
from weir.state.stores.positions_file import read_offsets
from weir.state.types import BlobRef, StateId

COUNTS = dict.fromkeys(TOPICS, 1)
STEPS = ["topics created", *["records written"] * 12, "checkpoints written", "offsets set"]
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Taken over from Kafka Streams; nothing has been read since."""
    topics = Topics()
    for topic, key, value, time in RECORDS:
        topics.rows.setdefault((topic, 0), []).append((key.encode(), value and value.encode(), time))
    place = Place(program("moved"), topics, tmp_path_factory.mktemp("moved"), max_records=1)
    taken_over(cluster(), place.application).write(place.warehouse)
    return place


def taken_over(topics, application, id="app"):
    return KafkaStreamsApp(
        id=id, application=application, cluster=topics, reader=topics.reader, topic_counts=COUNTS
    ).migration()


def back(place, topics, id="back", **options):
    return KafkaStreamsReturn(
        id=id,
        application=place.application,
        commit=newest_commit(place.warehouse, "moved"),
        app_folder=place.warehouse / "moved",
        cluster=topics,
        reader=topics.reader,
        topic_counts=COUNTS,
        **options,
    )


def newest(rows, keeps_versions=False):
    """What a log of records holds after compaction."""
    found = {}
    for key, value, time in rows:
        found[(key, time) if keeps_versions else key] = (key, value, time)
    return sorted((row for row in found.values() if keeps_versions or row[1] is not None), key=str)


def written_by_kafka_streams(store):
    rows = [(each.key, each.value, each.timestamp_ms) for each in changelogs() if each.store == store]
    return newest(rows, keeps_versions=store == "tiers")


@pytest.fixture(scope="module")
def returned(place):
    topics = cluster()
    topics.offsets = {}
    back(place, topics).write(back(place, topics).plan(), topics)
    return topics


@pytest.mark.parametrize("store", ["windows", "totals", "tiers", "orders", "users", "near-left-shared-join-store"])
def test_stores_are_written_byte_for_byte_as_kafka_streams_wrote_them(store, returned):
    found = newest(returned.rows[f"back-{store}-changelog", 0], keeps_versions=store == "tiers")
    assert found == written_by_kafka_streams(store)
    assert len(found) >= 1


def test_sessions_are_written_with_their_bytes(returned):
    found = newest(returned.rows["back-visits-changelog", 0])
    wanted = [row for row in written_by_kafka_streams("visits") if int.from_bytes(row[0][-16:-8]) >= 11_500 - 6_000]
    assert [row[:2] for row in found] == [row[:2] for row in wanted]
    assert len(found) == 2


@pytest.mark.parametrize("store", ["near-this-join-store", "near-outer-other-join-store"])
def test_sides_of_a_join_differ_only_in_their_sequence_numbers(store, returned):
    found = newest(returned.rows[f"back-{store}-changelog", 0])
    wanted = written_by_kafka_streams(store)
    assert sorted((key[:-4], value, time) for key, value, time in found) == sorted(
        (key[:-4], value, time) for key, value, time in wanted
    )


def test_subscriptions_have_kafka_streams_hashes(returned):
    found = newest(returned.rows["back-buyers-subscription-store-changelog", 0])
    wanted = written_by_kafka_streams("buyers-subscription-store")
    assert [(key, value[0], value[2:]) for key, value, _ in found] == [
        (key, value[0], value[2:]) for key, value, _ in wanted
    ], "all but the instruction, which only matters on its way"


@pytest.mark.parametrize("store", ["finals-store", "slow-store"])
def test_buffers_have_the_newest_update_its_time_and_its_place(store, returned):
    def told(rows):
        """The key, the timestamp, the new value (8 bytes) and the place."""
        return [(key, value[:8], value[-16:-8], value[-8:]) for key, value, _ in rows]

    assert told(newest(returned.rows[f"back-{store}-changelog", 0])) == told(written_by_kafka_streams(store))
    assert returned.headers[f"back-{store}-changelog"] == (("v", b"\x03"),)


def test_topics_are_made_as_kafka_streams_makes_them(returned):
    assert returned.configs["back-totals-changelog"] == {"cleanup.policy": "compact"}
    assert returned.configs["back-windows-changelog"] == {
        "cleanup.policy": "compact,delete",
        "retention.ms": str(12_000 + DAY_MS),
    }
    assert returned.configs["back-visits-changelog"]["retention.ms"] == str(6_000 + DAY_MS)
    assert returned.configs["back-near-this-join-store-changelog"]["retention.ms"] == str(7_000 + DAY_MS)
    assert returned.configs["back-tiers-changelog"] == {
        "cleanup.policy": "compact",
        "min.compaction.lag.ms": str(30_000 + DAY_MS),
    }
    assert returned.offsets == {(topic, 0): sum(record[0] == topic for record in RECORDS) for topic in TOPICS}


def test_a_return_that_is_done_changes_nothing(place, returned):
    before = {partition: len(rows) for partition, rows in returned.rows.items()}
    again = back(place, returned).plan()
    assert again.is_done
    back(place, returned).write(again, returned)
    assert {partition: len(rows) for partition, rows in returned.rows.items()} == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_return_killed_after_any_step_is_finished_by_doing_it_again(step, place, returned, tmp_path):
    topics, done = cluster(), []
    topics.offsets = {}

    def die(name):
        done.append(name)
        if len(done) == step + 1:
            raise Killed

    first = back(place, topics, state_dir=tmp_path)
    with pytest.raises(Killed):
        first.write(first.plan(), topics, die)
    assert done == STEPS[: step + 1]
    assert bool(topics.offsets) == (step == len(STEPS) - 1), "the offsets come last"
    second = back(place, topics, state_dir=tmp_path)
    second.write(second.plan(), topics)
    own = {partition: rows for partition, rows in topics.rows.items() if partition[0].startswith("back-")}
    assert own == {partition: returned.rows[partition] for partition in own}
    assert topics.offsets == returned.offsets


def test_a_return_killed_within_a_topic_is_finished_by_doing_it_again(place, returned):
    topics = cluster()
    topics.offsets, taken = {}, []

    def half(topic, partition, records, headers=()):
        taken.append(topic)
        topics.__class__.write(topics, topic, partition, records.head(1), headers)
        if len(taken) == 3:
            raise Killed

    back(place, topics).plan()
    topics_writer = type("Half", (), {"write": staticmethod(half)})()
    with pytest.raises(Killed):
        back(place, topics).write(back(place, topics).plan(), topics_writer)
    back(place, topics).write(back(place, topics).plan(), topics)
    for partition, rows in returned.rows.items():
        if partition[0].startswith("back-"):
            assert sorted(topics.rows[partition], key=str) == sorted(rows, key=str)


def test_what_kafka_streams_left_is_overwritten_only_if_asked(place):
    topics = cluster()
    topics.rows["app-totals-changelog", 0].append((b"zoe", (9).to_bytes(8, "big"), 50))
    with pytest.raises(MigrationError, match=r"holds \d+ records.*give another APPLICATION_ID, or .*--replace"):
        back(place, topics, id="app").plan()
    found = back(place, topics, id="app").plan(replace=True)
    back(place, topics, id="app").write(found, topics)
    again = taken_over(topics, place.application)
    (totals,) = [each.rows for each in again.stores if each.store.name == "totals"]
    assert sorted(totals["user"].to_list()) == ["ann", "bob"]
    assert back(place, topics, id="app").plan().is_done


def test_other_offsets_of_the_group_are_overwritten_only_if_asked(place, returned):
    topics = cluster()
    topics.offsets = {("clicks", 0): 1}
    with pytest.raises(MigrationError, match=r"offset 1 of topic 'clicks'.*--replace"):
        back(place, topics).plan()
    back(place, topics).write(back(place, topics).plan(replace=True), topics)
    assert topics.offsets == returned.offsets


def test_versions_that_cannot_be_taken_back_are_refused(place):
    topics = cluster()
    topics.rows["app-tiers-changelog", 0].append((b"ann", b"lead", 8_500))
    with pytest.raises(MigrationError, match=r"'tiers' holds 1 versions.*give another APPLICATION_ID"):
        back(place, topics, id="app").plan(replace=True)
    assert back(place, topics, id="other").plan().topics


def test_a_running_application_is_not_returned_to(place):
    topics = cluster()
    topics.members = 1
    with pytest.raises(MigrationError, match=r"has 1 members.*stop it"):
        back(place, topics).plan()


def test_checkpoint_files_tell_kafka_streams_to_restore_and_hold_the_positions(place, tmp_path):
    topics = cluster()
    topics.offsets = {}
    one = back(place, topics, state_dir=tmp_path)
    one.write(one.plan(), topics)
    found = read_offsets(tmp_path / "1_0" / ".checkpoint")
    assert found == {("orders", 0): 4, ("back-orders-changelog", 0): None}
    assert read_offsets(tmp_path / "2_0" / ".checkpoint") == {
        ("users", 0): 2,
        ("back-users-changelog", 0): None,
        ("back-buyers-subscription-store-changelog", 0): None,
    }
    assert one.plan().is_done


LATER = (("clicks", "ann", "exit", 16_000), ("orders", "o3", None, 6_000), ("clicks", "zoe", "home", 17_000))


def test_rows_that_went_meanwhile_are_deleted_in_the_topics(place, tmp_path):
    topics = Topics()
    for topic, key, value, time in (*RECORDS, *LATER):
        topics.rows.setdefault((topic, 0), []).append((key.encode(), value and value.encode(), time))
    moved, own = Place(program("moved"), topics, tmp_path, max_records=1), cluster()
    taken_over(own, moved.application).write(moved.warehouse)
    assert moved.run().records_in == len(LATER)
    one = back(moved, own, id="app")
    one.write(one.plan(replace=True), own)
    assert [key for key, *_ in newest(own.rows["app-orders-changelog", 0])] == [b"o2"]
    assert [key for key, *_ in newest(own.rows["app-buyers-subscription-store-changelog", 0])] == [b"\0\0\0\x03anno2"]
    totals = {key: int.from_bytes(value) for key, value, _ in newest(own.rows["app-totals-changelog", 0])}
    assert totals == {b"ann": 4, b"bob": 2, b"zoe": 1}
    sessions = {
        (key[:-16], int.from_bytes(key[-8:]), int.from_bytes(key[-16:-8])): int.from_bytes(value)
        for key, value, _ in newest(own.rows["app-visits-changelog", 0])
    }
    assert sessions[b"ann", 11_500, 16_000] == 2
    assert (b"ann", 11_500, 11_500) not in sessions


PLACES = {"21": 0, "foobar": 0, "a-little-bit-long-string": 2}
"""Of three partitions, by the hashes in Kafka's own test of murmur2: -973932308, -790332482, -985981536."""
START_MS = 1_700_000_040_000
"""The start of a minute."""


def counting():
    """Counts by a new key, and final counts by minute, whose suppression Weir evaluates with the aggregation."""
    builder = StreamsBuilder()
    visits = builder.stream("visits", key=String("user"), value=String("country"))
    visits.group_by("country").count("by_country").to_delta("by_country")
    (
        visits.group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(0)))
        .count("by_minute")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("final"))
        .to_delta("final")
    )
    hopping = TimeWindows.of_size_and_grace(timedelta(minutes=1), timedelta(0)).advance_by(timedelta(seconds=20))
    (
        visits.group_by_key()
        .windowed_by(hopping)
        .count("by_hop")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()).with_name("hops"))
        .to_delta("hops")
    )
    return Application("counting", builder)


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """What Weir has counted by itself, and a cluster without a trace of Kafka Streams."""
    rows = [(b"ann", country.encode(), START_MS + number) for number, country in enumerate(PLACES)]
    rows.append((b"ann", b"21", START_MS + 60_000))
    topics = Topics({("visits", 0): rows, ("visits", 1): [], ("visits", 2): []})
    place = Place(counting(), topics, tmp_path_factory.mktemp("counted"), max_records=10)
    place.run()
    own = Cluster(rows=dict(topics.rows))
    return KafkaStreamsReturn(
        id="back",
        application=place.application,
        commit=newest_commit(place.warehouse, "counting"),
        app_folder=place.warehouse / "counting",
        cluster=own,
        reader=own.reader,
        topic_counts={"visits": 3},
    )


def test_keys_after_a_repartition_are_where_kafka_streams_looks_for_them(counted):
    (found,) = [topic for topic in counted.plan().topics if topic.store == "by_country"]
    places = {key.decode(): number for number, records in found.records.items() for key in records["key"]}
    assert places == PLACES


def test_a_buffer_that_weir_does_not_keep_is_written_from_the_open_windows(counted):
    (found,) = [topic for topic in counted.plan().topics if topic.topic == "back-final-store-changelog"]
    (record,) = found.records[0].rows()
    opened = START_MS + 60_000
    assert record[0] == b"ann" + opened.to_bytes(8, "big")
    assert record[1][:8] == opened.to_bytes(8, "big"), "the time of the newest click"
    assert (record[1][-16:-8], record[1][-8:]) == ((1).to_bytes(8, "big"), (opened + 60_000).to_bytes(8, "big"))


def test_windows_that_weir_keeps_by_slices_are_written_as_windows(counted):
    """The newest click is in three open ones; those of all others have closed."""
    topics = {topic.topic: topic.records[0].rows() for topic in counted.plan().topics if 0 in topic.records}
    starts = [START_MS + seconds * 1000 for seconds in (20, 40, 60)]
    held = sorted(topics["back-hops-store-changelog"])
    assert [record[0] for record in held] == [b"ann" + start.to_bytes(8, "big") for start in starts]
    assert [record[1][-16:-8] for record in held] == [(1).to_bytes(8, "big")] * 3
    assert [record[1][-8:] for record in held] == [(start + 60_000).to_bytes(8, "big") for start in starts]
    kept = sorted(topics["back-by_hop-changelog"])
    assert [record[0][:11] for record in kept] == [b"ann" + start.to_bytes(8, "big") for start in starts]
    assert [record[1][-8:] for record in kept] == [(1).to_bytes(8, "big")] * 3


def test_rows_on_their_way_are_refused_with_the_way_out(counted):
    ref = BlobRef(
        source="a_0", target="b_0", edge="e", state=StateId(1, 1), path="p", rows=1, size_bytes=1, first=(0, 0)
    )
    waiting = replace(counted, commit=replace(counted.commit, pending_blobs=(ref,)))
    with pytest.raises(MigrationError, match=r"rows on their way.*weir run MODULE:APP --until-caught-up"):
        waiting.plan()


def test_hashes_that_depend_on_the_writing_of_json_are_not_guessed():
    @dataclass(frozen=True)
    class Order:
        buyer: str
        cents: int

    builder = StreamsBuilder()
    orders = builder.table("orders", key=String("id"), value=Json(Order), store="orders")
    users = builder.table("users", key=String("user"), value=String("country"), store="users")
    orders.join(users, foreign_key="buyer", store="buyers").to_delta("buyers")
    nodes = [node for part in Application("json", builder).topology.sub_topologies for node in part.nodes]
    (node,) = [node for node in nodes if isinstance(node, SubscriptionJoinNode)]
    with pytest.raises(NotMovedError, match=r"'buyers-subscription-store' cannot be moved: .*hashes"):
        subscription_format(node, {})


def test_what_a_restore_would_bring_back_is_deleted_first(place, tmp_path):
    """A restored update takes its key's earlier place in the buffer, and a version lasts until the next one."""
    topics, later = Topics(), (("tiers", "ann", None, 20_000), ("tiers", "zoe", "tin", 90_000))
    for topic, key, value, time in (*RECORDS, *LATER, *later):
        topics.rows.setdefault((topic, 0), []).append((key.encode(), value and value.encode(), time))
    moved, own = Place(program("moved"), topics, tmp_path, max_records=1), cluster()
    taken_over(own, moved.application).write(moved.warehouse)
    moved.run()
    held = len(own.rows["app-slow-store-changelog", 0])
    versions = len(own.rows["app-tiers-changelog", 0])
    one = back(moved, own, id="app")
    one.write(one.plan(replace=True), own)
    of_ann = [value for key, value, _ in own.rows["app-slow-store-changelog", 0][held:] if key == b"ann"]
    assert [value is None for value in of_ann] == [True, False]
    added = own.rows["app-tiers-changelog", 0][versions:]
    assert added == [(b"ann", None, 9_001), (b"zoe", b"tin", 90_000)], "what ended ann's last version has expired"
    assert one.plan().is_done


def test_a_suppression_whose_updates_restart_the_wait_is_left_out():
    builder = StreamsBuilder()
    restarting = Suppressed.until_time_limit(
        timedelta(hours=1), BufferConfig.unbounded(), restart_on_update=True
    ).with_name("held")
    builder.table("stock", key=String("item"), value=String("pieces"), store="stock").suppress(restarting)
    node = next(node for node in builder.build().nodes if node.name == "held")
    with pytest.raises(NotMovedError, match=r"'held-store' cannot be moved: .*restart the wait"):
        format_of(node, node.store, None)
