"""Tables whose rows expire: by stream time or wall clock, with tombstones in the changelog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.pipelines.operators.stop_events import UntilTrue
from tests.pipelines.spark.inline import Place, Topics
from weir import Application, StreamsBuilder, String, TopologyError
from weir.state.commit.tables import read_rows, read_table
from weir.state.types import CHANGELOG_FOLDER
from weir.testing import TopologyTestDriver

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def application(ttl=MINUTE, ttl_by="stream_time", *, is_stream=False) -> Application:
    builder = StreamsBuilder()
    if is_stream:
        table = builder.stream("pages", key=String("user"), value=String("page")).to_table(
            "last_page", ttl=ttl, ttl_by=ttl_by
        )
    else:
        table = builder.table(
            "pages", key=String("user"), value=String("page"), store="last_page", ttl=ttl, ttl_by=ttl_by
        )
    table.to_delta("updates")
    return Application("ttl", builder, commit_interval=timedelta(milliseconds=1))


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_row_lives_for_its_ttl_of_stream_time_after_its_last_record(is_stream):
    with TopologyTestDriver(application(is_stream=is_stream)) as driver:
        topic, store = driver.create_input_topic("pages"), driver.get_key_value_store("last_page")
        topic.pipe_input("a", "x", timestamp=NOON)
        topic.pipe_input("b", "y", timestamp=NOON + MINUTE / 2)
        topic.pipe_input("a", "z", timestamp=NOON + MINUTE / 2)
        topic.pipe_input("c", "z", timestamp=NOON + MINUTE * 3 / 2 - timedelta(milliseconds=1))
        assert (store.get("a"), store.get("b")) == ("z", "y")
        topic.pipe_input("c", "z", timestamp=NOON + MINUTE * 3 / 2)
        assert (store.get("a"), store.get("b"), store.get("c")) == (None, None, "z")


def test_a_record_that_has_expired_already_is_counted_and_forwarded_but_not_kept():
    with TopologyTestDriver(application()) as driver:
        topic, out = driver.create_input_topic("pages"), driver.create_output_table("updates")
        topic.pipe_input("a", "x", timestamp=NOON)
        topic.pipe_input("b", "y", timestamp=NOON - MINUTE)
        assert driver.get_key_value_store("last_page").get("b") is None
        assert driver.counts["expired_records"] == 1
        assert [row["user"] for row in out.read_rows()] == ["a", "b"]


def test_a_deletion_in_one_batch_is_not_undone_by_an_expired_record_after_it(tmp_path):
    rows = [(b"a", b"x", 100_000), (b"a", None, 100_001), (b"a", b"old", 1)]
    place = Place(application(), Topics({("pages", 0): rows}), tmp_path)
    place.run()
    assert read_table(place.warehouse / "ttl" / CHANGELOG_FOLDER / "last_page").is_empty()


def test_by_the_wall_clock_event_time_does_not_matter():
    with TopologyTestDriver(application(ttl_by="wall_clock"), initial_wall_clock=NOON) as driver:
        topic, store = driver.create_input_topic("pages"), driver.get_key_value_store("last_page")
        topic.pipe_input("a", "x", timestamp=NOON)
        topic.pipe_input("b", "y", timestamp=NOON + timedelta(days=7))
        driver.advance_wall_clock_time(MINUTE - timedelta(milliseconds=1))
        assert (store.get("a"), store.get("b")) == ("x", "y")
        driver.advance_wall_clock_time(timedelta(milliseconds=1))
        assert (store.get("a"), store.get("b")) == (None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ttl", "ttl_by", "expired"),
    [(timedelta(seconds=1), "stream_time", {"a"}), (timedelta(milliseconds=300), "wall_clock", {"a", "b", "c"})],
)
def test_tombstones_reach_the_changelog_even_if_nothing_more_is_read(tmp_path, ttl, ttl_by, expired):
    """On wall-clock time a row's expiry is a punctuation, for which the driver makes a plan."""
    rows = [(b"a", b"x", 1_000), (b"b", b"y", 1_500), (b"c", b"z", 2_000)]
    place = Place(application(ttl, ttl_by), Topics({("pages", 0): rows}), tmp_path, max_records=1)
    changelog = place.warehouse / "ttl" / CHANGELOG_FOLDER / "last_page"

    def gone() -> set[str]:
        return set(read_rows(changelog).filter("_deleted")["user"]) if changelog.exists() else set()

    place.driver().run(UntilTrue(lambda: gone() == expired))
    assert set(read_table(changelog)["user"]) == {"a", "b", "c"} - expired


@pytest.mark.parametrize(
    ("ttl", "ttl_by", "words"),
    [(timedelta(0), "stream_time", "at least one millisecond"), (MINUTE, "event_time", "stream_time, wall_clock")],
)
def test_an_invalid_ttl_is_refused_when_the_topology_is_built(ttl, ttl_by, words):
    with pytest.raises(TopologyError, match=words):
        application(ttl, ttl_by)


def rows_of(*records: tuple[str, int]) -> list:
    return [(user.encode(), b"p", second * 1_000) for user, second in records]


TTLS = {
    "put in": [(None, [("u1", 0), ("u2", 0)]), (600, [("u9", 1_000)])],
    "taken out": [(600, [("u1", 0), ("u2", 0)]), (None, [("u9", 1_000)])],
    "taken out and put back": [
        (600, [("u1", 0), ("u2", 0)]),
        (None, [("u1", 500), ("u1", 900)]),
        (600, [("u9", 1_000)]),
    ],
    "longer": [(600, [("u1", 0), ("u2", 500)]), (900, [("u9", 1_000)])],
    "shorter": [(900, [("u1", 0), ("u2", 500)]), (600, [("u8", 800), ("u9", 1_000)])],
}


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize("name", TTLS)
def test_a_changed_ttl_counts_for_the_rows_that_are_there_whether_or_not_their_task_restores(tmp_path, name, is_lost):
    topics, newest = Topics({("pages", 0): []}), dict[str, int]()
    for ttl_s, records in TTLS[name]:
        topics.rows["pages", 0] += rows_of(*records)
        newest |= dict(records)
        place = Place(application(None if ttl_s is None else timedelta(seconds=ttl_s)), topics, tmp_path)
        for data in place.state_folder.glob("*/*/data.mdb") if is_lost else ():
            data.unlink()
        place.run()
    standing = read_table(place.warehouse / "ttl" / CHANGELOG_FOLDER / "last_page")
    now_s = max(newest.values())
    assert set(standing["user"]) == {user for user, at in newest.items() if ttl_s is None or now_s < at + ttl_s}
