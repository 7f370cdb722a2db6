"""What stores without changelogs are computed again from: topics that are compacted, dead letters, brokers that are
away, and the progress of it. PROTOCOL 38."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Event

import pytest
from polars import col

from tests.pipelines.spark.inline import InlineRestores, Place, Topics
from tests.pipelines.spark.unlogged import Site, lose, more, under, visits
from weir import Application, Int64, Materialized, StateReader, StreamsBuilder, String, TopologyError
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark import restores
from weir.pipelines.spark.errors import CompactedTopicError
from weir.pipelines.spark.restore_jobs import _Teller
from weir.pipelines.tasks import rebuilding
from weir.state.commit.tables import read_table
from weir.state.engine.cache import TaskStoreCache

ROWS = 60


@pytest.fixture(autouse=True)
def _closed():
    yield
    TaskStoreCache.close_all()


# Compaction


def test_a_store_that_counts_records_of_a_compacted_topic_is_refused(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=None)
    site.topics.with_compaction = {"visits"}
    with pytest.raises(CompactedTopicError, match=r"store 'minutes' .* its topic 'visits' .* is compacted") as refused:
        site.run()
    assert 'add on_loss="empty" to the store if it may then begin empty, or leave logging=False out' in str(
        refused.value
    )
    for logging_ in (False, True):
        other = under(site, logging=logging_)
        other.run()
        assert other.held == other.expected()


def test_a_topic_that_is_compacted_from_some_time_on_is_noticed_when_the_store_is_lost(tmp_path):
    site = Site.of(tmp_path, ROWS, logging=None)
    site.run()
    lose(site, "0_1")
    more(site)
    driver = site.driver()
    begin = driver._restores.begin

    def compacted_by_now(receipts):
        site.topics.with_compaction = {"visits"}
        begin(receipts)

    driver._restores.begin = compacted_by_now
    with pytest.raises(CompactedTopicError):
        driver.run(Event(), until_caught_up=True)
    assert not site.restores.done


@dataclass
class Compacted(Topics):
    """A topic of which all but the newest record of each key may be gone; the offsets of the others stay."""

    is_compacted: bool = False

    def reader(self, topic, partition):
        reader = super().reader(topic, partition)
        if self.is_compacted:
            whole, rows = reader.read, self.rows[topic, partition]
            newest = {key: offset for offset, (key, _, _) in enumerate(rows)}

            def read(*args, **kwargs):
                found = whole(*args, **kwargs)
                kept = found.frame["offset"].is_in(list(newest.values()))
                return type(found)(
                    found.topic, found.partition, found.frame.filter(kept), found.next_offset, found.next_time_ms
                )

            reader.read = read
        return reader


def test_a_table_of_a_compacted_topic_is_computed_again(tmp_path):
    """The newest record of each key is the whole truth."""
    builder = StreamsBuilder()
    builder.table("visits", key=String("user"), value=Int64("pages"), store=Materialized("newest", logging=False))
    topics = Compacted({("visits", 0): visits(0, 3 * ROWS, 0)}, with_compaction={"visits"})
    place = Place(Application("visits", builder), topics, tmp_path, max_records=20)
    place.run()
    topics.is_compacted = True
    lose(place, "0_0")
    place.run()
    assert len(place.restores.done) == 1
    (place.folder / "state" / "visits").mkdir()
    for task in place.state_folder.glob("visits_*"):
        task.rename(place.folder / "state" / "visits" / task.name)
    TaskStoreCache.close_all()
    newest = {key.decode(): value for key, value, _ in topics.rows["visits", 0]}
    rows = StateReader(tmp_path, place.application).range("newest").rows
    assert dict(rows.select("user", "pages").iter_rows()) == {
        user: int.from_bytes(value, "big") for user, value in newest.items() if value is not None
    }


@pytest.mark.parametrize(
    ("declare", "options"),
    [
        (
            lambda builder, kept: (
                builder.stream("in", key=String("k"), value=Int64("n")).filter(col("n") > 1).to_table(kept)
            ),
            {},
        ),
        (
            lambda builder, kept: builder.table(
                "in", key=String("k"), value=Int64("n"), store=kept, ttl=timedelta(minutes=1)
            ),
            {},
        ),
        (
            lambda builder, kept: builder.table(
                "in", key=String("k"), value=Int64("n"), store=kept, history_retention=timedelta(minutes=1)
            ),
            {},
        ),
        (
            lambda builder, kept: builder.table("in", key=String("k"), value=Int64("n"), store=kept),
            {"on_error": "continue"},
        ),
    ],
)
def test_a_table_that_older_records_can_change_is_refused(tmp_path, declare, options):
    builder = StreamsBuilder()
    declare(builder, Materialized("kept", logging=False))
    topics = Topics({("in", 0): []}, with_compaction={"in"})
    with pytest.raises(CompactedTopicError, match="store 'kept'"):
        Place(Application("app", builder, **options), topics, tmp_path).run()


# Dead letters


def test_records_that_would_be_put_aside_and_replayed_are_refused_with_the_ways_out():
    def application(on_error, **options):
        builder = StreamsBuilder()
        builder.table("in", key=String("k"), value=Int64("n"), store=Materialized("kept", **options))
        return Application("app", builder, on_error=on_error)

    for on_error in ("dead_letter", lambda record: "fail"):
        with pytest.raises(TopologyError, match="computed again without what was put aside and then replayed") as error:
            application(on_error, logging=False)
        assert 'add on_loss="empty" to it, leave logging=False out, or give on_error as "fail" or "continue"' in str(
            error.value
        )
        application(on_error, logging=False, on_loss="empty")
        application(on_error)
    application("fail", logging=False)
    application("continue", logging=False)


def letters_site(tmp_path, on_error, **options) -> Place:
    builder = StreamsBuilder()
    pages = builder.stream("visits", key=String("user"), value=Int64("pages"))
    pages.group_by_key().count(Materialized("counts", **options)).to_delta("totals")
    topics = Topics({("visits", 0): [(b"ann", (1).to_bytes(8, "big"), 1_000), (b"ann", b"bad", 2_000)]})
    return Place(
        Application("visits", builder, on_error=on_error, commit_interval=timedelta(milliseconds=1)), topics, tmp_path
    )


def totals(place: Place) -> dict[str, int]:
    table = read_table(place.warehouse / "visits" / "totals").sort("_epoch", "_seq")
    return dict(table.select("user", "count").iter_rows())


def test_what_is_left_out_is_left_out_again(tmp_path):
    place = letters_site(tmp_path, "continue", logging=False)
    place.run()
    lose(place, "0_0")
    place.topics.rows["visits", 0].append((b"ann", (3).to_bytes(8, "big"), 3_000))
    place.run()
    assert len(place.restores.done) == 1
    assert totals(place) == {"ann": 2}


def test_letters_are_replayed_only_into_stores_that_keep_them_if_they_are_lost(tmp_path):
    place = letters_site(tmp_path, "dead_letter", logging=False, on_loss="empty")
    place.run()
    TaskStoreCache.close_all()
    topics = place.topics

    def replayed(**options) -> tuple[str, bool]:
        other = letters_site(tmp_path, "fail", **options)
        other.topics = topics
        other.desk.ask("replay", ids="[]")
        other.run()
        TaskStoreCache.close_all()
        return next(iter(other.desk.answers.values()))

    builder = StreamsBuilder()
    pages = builder.stream("visits", key=String("user"), value=Int64("pages"))
    pages.group_by_key().count(Materialized("counts", logging=False, on_loss="empty")).to_delta("totals")
    pages.group_by_key().count(Materialized("more", logging=False)).to_delta("more")
    refusing = Place(Application("visits", builder, commit_interval=timedelta(milliseconds=1)), topics, tmp_path)
    refusing.desk.ask("replay", ids="[]")
    topics.rows["visits", 0].append((b"ann", (3).to_bytes(8, "big"), 3_000))
    refusing.run()
    TaskStoreCache.close_all()
    answer, is_failed = refusing.desk.answers[1]
    assert is_failed
    assert "its store 'more' has no changelog" in answer
    assert 'declare the store with on_loss="empty", or leave logging=False out, start the program, and replay' in answer
    for options in ({"logging": False, "on_loss": "empty"}, {}):
        answer, is_failed = replayed(**options)
        assert not is_failed
        assert len(json.loads(answer)["ids"]) == 1  # it cannot be read this time either, and waits again


# Brokers that are away


@dataclass
class AwayTopics(Topics):
    """Brokers that do not answer the next questions for where topics begin."""

    unanswered: int = 0
    asked: list[int] = field(default_factory=list)

    def beginning_offsets(self, partitions):
        if self.unanswered:
            self.unanswered -= 1
            self.asked.append(self.unanswered)
            raise BrokerUnreachableError("nowhere:1", "no answer")
        return super().beginning_offsets(partitions)


@pytest.mark.parametrize("after", [0, 1])
def test_a_lost_store_waits_for_brokers_that_are_away(tmp_path, caplog, monkeypatch, after):
    """When it is to begin, and when all has been read."""
    monkeypatch.setattr(restores, "ASK_AGAIN_S", 0.01)
    site = Site.of(tmp_path, 2 * ROWS, logging=None)
    site.topics = AwayTopics(site.topics.rows)
    site.run()
    lose(site, "0_1")
    more(site)
    driver = site.driver()
    told, finished = [], InlineRestores.finished

    def away_at_the_end(each):
        ended = finished(each)
        if ended and after:
            site.topics.unanswered = 3
        return ended

    monkeypatch.setattr(InlineRestores, "finished", away_at_the_end)
    begin = driver._restores.begin

    def away_at_the_beginning(receipts):
        site.topics.unanswered = 0 if after else 3
        begin(receipts)
        told.append({str(task.id): task.progress for task in driver._coordinator.tasks.values()})

    driver._restores.begin = away_at_the_beginning
    with caplog.at_level(logging.WARNING):
        driver.run(Event(), until_caught_up=True)
    assert site.held == site.expected(since={1: 2 * ROWS}, of=["last"])
    assert site.topics.asked == [2, 1, 0]
    waited = [record.getMessage() for record in caplog.records if "trying again until stopped" in record.getMessage()]
    assert waited == [
        "task 0_1: to compute its stores again: "
        f"{BrokerUnreachableError('nowhere:1', 'no answer')}; trying again until stopped"
    ]
    if not after:
        assert told[0]["0_1"].startswith("waits for the brokers: no answer from Kafka at nowhere:1")
        assert told[0]["0_0"] == ""


# Progress


def test_the_records_read_are_told(tmp_path, monkeypatch, caplog):
    site = Site.of(tmp_path, 2 * ROWS, logging=None)
    site.run()
    lose(site, "0_1")
    told, tell = [], _Teller.__call__

    def telling(teller, progress):
        told.append(progress)
        tell(teller, progress)

    monkeypatch.setattr(_Teller, "__call__", telling)
    monkeypatch.setattr(rebuilding, "EPOCH_RECORDS", 50)
    monkeypatch.setattr(restores, "TELL_EVERY_S", 0.0)
    monkeypatch.setattr(
        InlineRestores, "progress", lambda each: {request.request.task: told[0] for request in each.done}
    )
    with caplog.at_level(logging.INFO):
        site.run()
    sums = [each for each in told if each.computed == "sums"]
    assert [each.rows for each in sums] == [50, 100, 120, 120]
    assert {each.records_total for each in sums} == {120}
    assert str(sums[0]).startswith("sums is computed again: 50 of 120 records (42 %), ")
    assert sums[1].rows_left == 20
    assert any(f"task 0_1: restores: {told[0]}" in record.getMessage() for record in caplog.records)
