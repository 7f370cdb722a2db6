"""Stores without changelogs that are lost are computed again from their topic. PROTOCOL 38."""

from __future__ import annotations

import logging
from datetime import timedelta
from random import Random

import pytest
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.unlogged import READ_AGAIN, Site, changes, killed_at, lose, more, under, visits
from weir import (
    Application,
    BufferConfig,
    Count,
    Int64,
    KeyValueStore,
    Materialized,
    Processor,
    SessionWindows,
    SlidingWindows,
    StateReader,
    StreamsBuilder,
    String,
    Sum,
    Suppressed,
    TimeWindows,
    TopologyError,
    WallclockTimestampExtractor,
)
from weir.pipelines.spark.errors import RangeLostError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache

ROWS = 60
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _closed():
    yield
    TaskStoreCache.close_all()


def test_lost_stores_are_computed_again_and_go_on(tmp_path, caplog):
    site = Site.of(tmp_path, 4 * ROWS, logging=None)
    site.run()
    before = read_table(site.warehouse / "visits" / "totals").height
    lose(site, "0_1")
    with caplog.at_level(logging.WARNING):
        site.run()
    assert site.held == site.expected(since={1: 4 * ROWS}, of=["last"])
    assert read_table(site.warehouse / "visits" / "totals").height == before  # nothing was forwarded
    warned = [record.getMessage() for record in caplog.records if "begins empty" in record.getMessage()]
    assert [message.split("'")[1] for message in warned] == ["last"]
    more(site)
    site.die()
    more(site)
    site.run()
    assert site.held == site.expected(since={1: 4 * ROWS}, of=["last"])
    assert not list(site.state_folder.glob("*/.rebuilding"))


@pytest.mark.parametrize("occurrence", [1, 3])
def test_a_process_killed_while_it_reads_again_begins_that_again(tmp_path, occurrence):
    site = Site.of(tmp_path, 2 * ROWS, logging=None)
    site.run()
    lose(site, "0_0")
    lose(site, "0_1")
    assert killed_at(site, None, READ_AGAIN, occurrence)
    site.run()
    assert site.held == site.expected(since={0: 2 * ROWS, 1: 2 * ROWS}, of=["last"])
    assert not list(site.state_folder.glob("*/.rebuilding"))


@pytest.mark.parametrize("step", ["state written", "pivot appended"])
def test_a_store_is_computed_again_up_to_the_commit_and_no_further(tmp_path, step):
    site = Site.of(tmp_path, 4 * ROWS, logging=None)
    assert killed_at(site, None, step, 4)
    committed = newest_commit(site.warehouse, "visits").tasks["visits_1"].positions["visits"][1]
    lose(site, "0_1")
    site.run()
    assert site.held == site.expected(since={1: committed}, of=["last"])


def test_when_retention_has_passed_the_range_the_run_stops_until_the_store_may_begin_empty(tmp_path):
    site = Site.of(tmp_path, 4 * ROWS, logging=None)
    site.run()
    site.topics.oldest["visits", 1] = 1
    site.run()  # it survived
    lose(site, "0_1")
    with pytest.raises(RangeLostError, match="begin at offset 0 of visits-1, and the topic now begins at 1") as refused:
        site.run()
    assert 'declare the store with on_loss="empty", and it begins empty' in str(refused.value)
    empty = under(site, logging=False)
    empty.run()
    assert empty.held == empty.expected(since={1: 4 * ROWS})


def test_a_store_that_had_a_changelog_before_is_not_computed_again(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=True)
    site.run()
    other = under(site, logging=None)
    notes = {each.store: each.notes for each in changes(other).stores}
    assert notes["sums"][-1] == "since it is not known where its rows begin, the run stops if it is lost"
    assert notes["always"] == ()
    other.run()
    assert other.held == other.expected()
    lose(other, "0_1")
    with pytest.raises(RangeLostError, match="where they begin is not known"):
        other.run()


def windows(final: bool) -> Application:
    builder = StreamsBuilder()
    counted = (
        builder.stream("visits", key=String("user"), value=Int64("pages"))
        .filter(col("pages") % 3 != 0)
        .group_by_key()
        .windowed_by(TimeWindows.of_size_and_grace(MINUTE, MINUTE))
        .count(Materialized("minutes", logging=False))
    )
    if final:
        counted = counted.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    counted.to_delta("counts")
    return Application("visits", builder, commit_interval=timedelta(milliseconds=1))


@pytest.mark.parametrize("final", [False, True])
def test_windows_need_the_records_from_the_oldest_open_one_on(tmp_path, final):
    """The results of a run that loses its store are those of one that does not."""
    topics = Topics({("visits", 0): visits(0, 10 * ROWS, 0)})
    lost, whole = (Place(windows(final), topics, tmp_path / name, max_records=20) for name in ("lost", "whole"))
    for place in (lost, whole):
        place.run()
    beginning = newest_commit(lost.warehouse, "visits").tasks["visits_0"].beginnings["minutes"]
    assert 6 * ROWS < beginning.offset < 10 * ROWS
    TaskStoreCache.close_all()
    topics.oldest["visits", 0] = beginning.offset
    lose(lost, "0_0")
    topics.rows["visits", 0] += visits(10 * ROWS, 14 * ROWS, 0)
    for place in (lost, whole):
        place.run()
    found, wanted = (
        read_table(place.warehouse / "visits" / "counts").drop("_epoch", "_seq").sort(pl_columns)
        for place in (lost, whole)
        for pl_columns in [["user", "window_start", "count"]]
    )
    assert found.equals(wanted)
    assert found.height > 40


def scattered(rng: Random, first: int, last: int) -> list:
    """Records about a second apart, most of them of two users, some of them out of order or late."""
    return [
        (
            b"user-%d" % rng.choice((0, 0, 0, 1, 1, 1, 2, 3, 4, 5)),
            number.to_bytes(8, "big"),
            1_000_000 + number * 1_000 + rng.randrange(1_500) - rng.choice((0, 0, 0, 4_000, 9_000, 20_000)),
        )
        for number in range(first, last)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("retention_s", [None, 40])
def test_sliding_windows_and_tables_that_expire_need_the_records_of_what_is_kept_alone(tmp_path, seed, retention_s):
    """The rows and the results of a run that loses its stores are those of one that does not."""

    def application(**options) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("visits", key=String("user"), value=Int64("pages"))
        windows = SlidingWindows.of_time_difference_and_grace(timedelta(seconds=5), timedelta(seconds=6))
        retention = None if retention_s is None else timedelta(seconds=retention_s)
        sums = stream.group_by_key().windowed_by(windows, retention=retention)
        sums.agg(Materialized("sliding", **options), pages=Sum("pages")).to_delta("sums")
        stream.to_table(Materialized("recent", **options), ttl=timedelta(seconds=30)).to_delta("newest")
        return Application("visits", builder, commit_interval=timedelta(milliseconds=1))

    rng = Random(seed)
    topics = Topics({("visits", 0): scattered(rng, 0, 4 * ROWS)})
    lost, whole = (
        Place(application(**options), topics, tmp_path / name, max_records=7)
        for name, options in (("lost", {"logging": False}), ("whole", {}))
    )
    for place in (lost, whole):
        place.run()
    beginnings = newest_commit(lost.warehouse, "visits").tasks["visits_0"].beginnings
    assert {name: beginning.offset > ROWS for name, beginning in beginnings.items()} == {
        "sliding": True,
        "sliding-unseen": True,
        "recent": True,
    }
    topics.oldest["visits", 0] = min(beginning.offset for beginning in beginnings.values())
    lose(lost, "0_0")
    topics.rows["visits", 0] += scattered(rng, 4 * ROWS, 4 * ROWS + 9)
    found, held = [], []
    for place in (lost, whole):
        place.run()
        tables = [read_table(place.warehouse / "visits" / name).drop("_epoch", "_seq") for name in ("sums", "newest")]
        found.append([sorted(rows.rows(), key=repr) for rows in tables])
        (place.folder / "state" / "visits").mkdir()
        for task in place.state_folder.glob("visits_*"):
            task.rename(place.folder / "state" / "visits" / task.name)
        TaskStoreCache.close_all()
        reader = StateReader(place.folder, place.application)
        held.append([reader.sessions("sliding", f"user-{number}").rows.rows() for number in range(2)])
        held[-1].append(reader.range("recent").rows.rows())
    assert found[0] == found[1]
    assert held[0] == held[1]
    assert any(held[0][:-1])
    assert len(held[0][-1]) > 3


def test_sessions_sliding_windows_and_tables_that_expire_are_computed_again(tmp_path):
    def application(**options) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("visits", key=String("user"), value=Int64("pages"))
        stream.group_by_key().windowed_by(SessionWindows.of_inactivity_gap_and_grace(timedelta(seconds=9), MINUTE)).agg(
            Materialized("sittings", **options), pages=Sum("pages"), visits=Count()
        )
        stream.group_by_key().windowed_by(
            SlidingWindows.of_time_difference_and_grace(timedelta(seconds=20), MINUTE)
        ).count(Materialized("sliding", **options))
        stream.to_table(Materialized("recent", **options), ttl=timedelta(seconds=40))
        return Application("visits", builder, commit_interval=timedelta(milliseconds=1))

    topics = Topics({("visits", 0): visits(0, 4 * ROWS, 0)})
    places = [
        Place(application(**options), topics, tmp_path / name, max_records=20)
        for name, options in (("lost", {"logging": False}), ("whole", {}))
    ]
    for place in places:
        place.run()
    lose(places[0], "0_0")
    topics.rows["visits", 0] += visits(4 * ROWS, 5 * ROWS, 0)
    held = []
    for place in places:
        place.run()
        (place.folder / "state" / "visits").mkdir()
        for task in place.state_folder.glob("visits_*"):
            task.rename(place.folder / "state" / "visits" / task.name)
        TaskStoreCache.close_all()
        reader = StateReader(place.folder, place.application)
        users = sorted({key.decode() for key, _, _ in topics.rows["visits", 0]})
        held.append(
            [
                reader.range("recent").rows.rows(),
                [reader.sessions("sittings", user).rows.rows() for user in users],
                [reader.sessions("sliding", user).rows.rows() for user in users],
            ]
        )
    assert held[0] == held[1]
    assert held[0][0]
    assert any(held[0][1])
    assert any(held[0][2])


class Keeping(Processor[str, int, None, None]):
    def process(self, record):
        pass


def refused(build, reason: str) -> None:
    """Without ``on_loss`` the program is refused for ``reason``; each way out is one."""

    def application(**options) -> Application:
        builder = StreamsBuilder()
        build(builder, options)
        return Application("app", builder)

    with pytest.raises(TopologyError, match=reason) as error:
        application(logging=False)
    assert 'add on_loss="empty" if it may then begin empty, or leave logging=False out' in str(error.value)
    application(logging=False, on_loss="empty")
    application()


def numbers(builder, topic="in", **options):
    return builder.stream(topic, key=String("user"), value=Int64("n"), **options)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (
            lambda builder, options: numbers(builder).group_by("n").count(Materialized("kept", **options)),
            "its records come over a repartition",
        ),
        (
            lambda builder, options: builder.table("in", key=String("user"), value=Int64("n"), store="rows").filter(
                col("n") > 1, store=Materialized("kept", **options)
            ),
            "it depends on KTABLE-SOURCE-.*, which is not computed from each record alone",
        ),
        (
            lambda builder, options: (
                numbers(builder)
                .join(builder.table("other", key=String("user"), value=Int64("m"), store="rows"))
                .group_by_key()
                .count(Materialized("kept", **options))
            ),
            "depends on .*, which is not computed from each record alone",
        ),
        (
            lambda builder, options: (
                numbers(builder).merge(numbers(builder, "other")).group_by_key().count(Materialized("kept", **options))
            ),
            "depends on .*, which is not computed from each record alone",
        ),
        (
            lambda builder, options: (
                numbers(builder, timestamp=WallclockTimestampExtractor())
                .group_by_key()
                .count(Materialized("kept", **options))
            ),
            "the times of its records are not in the records alone",
        ),
        (
            lambda builder, options: (
                numbers(builder, idle_after=MINUTE)
                .group_by_key()
                .windowed_by(TimeWindows.of_size_with_no_grace(MINUTE))
                .count(Materialized("kept", **options))
            ),
            "the wall clock moves its stream time",
        ),
        (
            lambda builder, options: builder.table(
                "in",
                key=String("user"),
                value=Int64("n"),
                store=Materialized("kept", **options),
                ttl=MINUTE,
                ttl_by="wall_clock",
            ),
            "its rows expire by the wall clock",
        ),
        (
            lambda builder, options: numbers(builder).process(
                Keeping, stores=[KeyValueStore("kept", str, int, **options)]
            ),
            "neither an aggregation nor a table",
        ),
    ],
)
def test_a_store_that_its_topic_does_not_give_again_is_refused(build, reason):
    refused(build, reason)


def test_records_that_other_operators_fail_on_would_count_in_a_store_that_is_computed_again():
    builder = StreamsBuilder()
    numbers(builder).group_by_key().count(Materialized("kept", logging=False))
    with pytest.raises(TopologyError, match="leave logging=False or on_processing_error out"):
        Application("app", builder, on_processing_error="continue")
    Application("app", builder)
