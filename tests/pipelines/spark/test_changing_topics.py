"""A topic whose log changes under a running driver: what was complete before is committed, and the run ends with what
is missing (PROTOCOL 28)."""

from __future__ import annotations

import pickle
import re
from datetime import timedelta
from threading import Event, Timer

import pytest

from tests.pipelines.spark.changes import PARTITIONS, cut, made_anew, positions
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, sales, totals
from weir import Application, Count, Json, StreamsBuilder, String
from weir.infra.kafka.admin import BrokerUnreachableError, UnknownTopicError
from weir.infra.kafka.log_ends import LogEnd
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.errors import (
    Loss,
    LostPosition,
    MatchedTopicGoneError,
    OffsetsLostError,
    RunError,
    TaskFailedError,
)
from weir.state.commit.protocol import newest_commit

LIMIT_S = 6.0
WAYS_OUT = (
    r"run `weir run MODULE:APP --bootstrap-servers HOST:PORT` with the brokers that have the old records, .*keeping "
    r"all state, with `weir run MODULE:APP --accept-lost-records`, or start over with `weir reset sales`"
)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where 100 records of each partition are committed, and 50 more are there; no commit is due for an hour."""
    monkeypatch.setattr(module, "BROKER_WAIT_S", 0.001)
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.05)
    topics = Topics(
        {(topic, partition): sales(100, partition) for topic, partition in PARTITIONS},
        ids={"sales": "first"},
        leaders={partition: [0] for partition in PARTITIONS},
    )
    place = Place(application(commit_interval=timedelta(hours=1)), topics, tmp_path, max_records=30)
    place.run()
    for topic, partition in PARTITIONS:
        topics.rows[topic, partition] += sales(50, partition)
    return place


def run(driver, **how):
    """A run that has to end by itself."""
    stop = Event()
    limit = Timer(LIMIT_S, stop.set)
    limit.start()
    try:
        return driver.run(stop, **how)
    finally:
        limit.cancel()
        assert not stop.is_set(), "it has not noticed anything"


def run_until(place: Place, change, *, at: dict[int, int], **how) -> None:
    """Run until the topics ``change``, once the driver's positions are ``at`` these and it asks for the ends."""
    driver = place.driver()
    ends, changed = place.topics.log_ends, []

    def changing(partitions):
        now = {
            task.id.partition: task.positions["sales"][task.id.partition] for task in driver._coordinator.tasks.values()
        }
        if now == at and not changed:
            changed.append(True)
            change()
        return ends(partitions)

    place.topics.log_ends = changing
    try:
        run(driver, **how)
    finally:
        assert changed, "it came so far"
        place.topics.log_ends = ends


def before_the_first_read(place: Place, change):
    """A driver; the topics ``change`` between its first plans and the reads of their tasks."""
    driver = place.driver()
    slots = driver._coordinator.slots
    carry_out, changed = slots.run, []

    def changing(plans):
        if not changed and any(plan.ranges for plan in plans):
            changed.append(True)
            change()
        return carry_out(plans)

    slots.run = changing
    return driver


ALL_READ = {0: 150, 1: 150}
CUT_AT_120 = (
    "but the brokers have lost its records from offset 120 on, and others have taken over; nothing from there on is "
    "committed: start it again with `weir run MODULE:APP`, and it reads what the brokers have now"
)


def expire(place: Place, partition: int, offset: int) -> None:
    """Retention, or somebody, removes the records before ``offset``; more have come."""
    place.topics.rows["sales", partition] += sales(80, partition)
    place.topics.oldest["sales", partition] = offset


def test_records_that_expire_unread_during_a_run_stop_it_and_what_was_read_is_committed(place):
    with pytest.raises(
        OffsetsLostError,
        match=r"offset 150 of topic 'sales', partition 1, which begins at 180: the records before that, \[150, 180\), "
        rf"were removed unread; {WAYS_OUT}",
    ):
        run_until(place, lambda: expire(place, 1, 180), at=ALL_READ)
    committed = positions(place)
    assert committed[1] == 150
    assert committed[0] >= 150
    assert totals(place) == expected_up_to(place, committed)


def expected_up_to(place: Place, offsets: dict[int, int]) -> dict[str, tuple[int, int]]:
    """The totals of the records before ``offsets``."""
    rows = {("sales", partition): place.topics.rows["sales", partition][:end] for partition, end in offsets.items()}
    return expected(Place(place.application, Topics(rows), place.folder))


@pytest.mark.parametrize("until_caught_up", [True, False])
def test_records_that_expire_between_planning_and_reading_stop_the_run(place, until_caught_up):
    driver = before_the_first_read(place, lambda: expire(place, 1, 120))
    with pytest.raises(OffsetsLostError, match=r"offset 100 of .*partition 1, .*\[100, 120\), were removed"):
        run(driver, until_caught_up=until_caught_up)
    committed = positions(place)
    assert committed == {0: 130, 1: 100}, "the other task's part of the epoch is kept"
    assert totals(place) == expected_up_to(place, committed)


def test_records_that_expire_while_a_run_is_paused_stop_it(place):
    place.desk.ask("pause")
    with pytest.raises(OffsetsLostError, match=r"offset 100 of .*partition 1, .*\[100, 120\), were removed"):
        run_until(place, lambda: expire(place, 1, 120), at={0: 100, 1: 100})


def test_a_cut_below_what_was_read_stops_a_run_and_the_next_start_reads_on_where_the_logs_part(place):
    """Records of the lost leader are not committed: the last commit is older than the cut, so nothing is lost."""
    with pytest.raises(
        OffsetsLostError,
        match=rf"offset 150 of topic 'sales', partition 1, {CUT_AT_120}",
    ):
        run_until(place, lambda: cut(place, 120), at=ALL_READ)
    assert positions(place) == {0: 100, 1: 100}
    place.run()
    assert positions(place) == {0: 150, 1: 220}
    assert totals(place) == expected(place)


@pytest.mark.parametrize("until_caught_up", [True, False])
@pytest.mark.parametrize("interval", [timedelta(milliseconds=1), timedelta(hours=1)])
def test_a_cut_between_planning_and_reading_commits_no_record_of_the_other_log(place, until_caught_up, interval):
    """The task reads the new leader's records as if they were those whose end was told."""
    place.application = application(commit_interval=interval)
    driver = before_the_first_read(place, lambda: cut(place, 120))
    with pytest.raises(OffsetsLostError, match=rf"partition 1, {CUT_AT_120}"):
        run(driver, until_caught_up=until_caught_up)
    assert positions(place) == {0: 100, 1: 100}
    place.run(accept_lost_records=True)
    assert positions(place) == {0: 150, 1: 220}
    assert totals(place) == expected(place)


def test_a_cut_that_the_driver_hears_of_while_a_task_reads_is_compared_with_what_that_has_read(place):
    """The position from which it reads is above no cut; that at which it ends is."""

    def cut_and_told():
        cut(place, 120)
        driver._topics.ends()

    driver = before_the_first_read(place, cut_and_told)
    with pytest.raises(OffsetsLostError, match=rf"partition 1, {CUT_AT_120}"):
        run(driver, until_caught_up=True)
    assert positions(place) == {0: 100, 1: 100}


def test_another_leader_with_what_was_read_holds_no_commit_up_and_is_asked_about_it_once(place, monkeypatch):
    place.application = application(commit_interval=timedelta(milliseconds=1))
    truncations, asked = place.topics.truncations, []

    def asking(positions):
        asked.append(dict(positions))
        return truncations(positions)

    monkeypatch.setattr(place.topics, "truncations", asking)
    driver = before_the_first_read(place, lambda: place.topics.leaders["sales", 1].append(150))
    assert run(driver, until_caught_up=True).commits > 1
    assert asked == [{("sales", 1): LogEnd(130, 0)}]
    assert positions(place) == ALL_READ
    assert totals(place) == expected(place)


def test_a_cut_below_what_was_committed_stops_a_run_and_what_was_read_of_others_is_committed(place):
    del place.topics.rows["sales", 1][100:]
    with pytest.raises(OffsetsLostError, match=r"offset 100 of .*partition 1, .* from offset 60 on, of which \[60"):
        run_until(place, lambda: cut(place, 60), at={0: 150, 1: 100})
    assert positions(place) == {0: 150, 1: 100}


def test_a_log_that_ends_below_the_position_stops_a_run_with_what_is_missing(place):
    place.topics.leaders.clear()

    def shorten():
        del place.topics.rows["sales", 1][40:]

    del place.topics.rows["sales", 1][100:]
    with pytest.raises(OffsetsLostError, match=r"which ends at 40: the topic was recreated or has lost \[40, 100\)"):
        run_until(place, shorten, at={0: 150, 1: 100})
    assert positions(place) == {0: 150, 1: 100}


def test_a_run_until_caught_up_ends_where_records_were_taken_back_that_it_had_not_read(place):
    def taken_back():
        del place.topics.rows["sales", 1][120:]

    assert run(before_the_first_read(place, taken_back), until_caught_up=True).reason == "caught_up"
    assert positions(place) == {0: 150, 1: 120}
    assert totals(place) == expected(place)


@pytest.mark.parametrize("until_caught_up", [True, False])
def test_a_topic_that_is_deleted_during_a_run_stops_it(place, until_caught_up):
    driver = before_the_first_read(place, lambda: place.topics.delete("sales"))
    with pytest.raises(
        OffsetsLostError,
        match=r"offset 100 of topic 'sales', partition 0, but the topic was deleted, and \[100, 150\) was not read "
        r"\(and so in 1 other partition\); .*create it again with `weir kafka create sales --partitions 2` and read "
        r"the new topic from its start, keeping all state, with `weir run MODULE:APP --accept-lost-records`, or start",
    ):
        run(driver, until_caught_up=until_caught_up)


def test_what_was_read_of_a_topic_that_is_deleted_is_committed(place):
    whole = expected(place)
    with pytest.raises(OffsetsLostError, match=r"offset 150 of .*partition 0, but the topic was deleted \("):
        run_until(place, lambda: place.topics.delete("sales"), at=ALL_READ)
    assert positions(place) == ALL_READ
    assert totals(place) == whole


def test_a_broker_that_does_not_know_a_topic_that_the_others_have_is_asked_again(place):
    ends, asked = place.topics.log_ends, []

    def not_known_yet(partitions):
        asked.append(partitions)
        if 2 < len(asked) < 5:
            raise UnknownTopicError("sales", "nowhere:1")
        return ends(partitions)

    place.topics.log_ends = not_known_yet
    stop = Event()
    Timer(1.0, stop.set).start()
    assert place.driver().run(stop).reason == "stopped"
    assert len(asked) > 5
    assert totals(place) == expected(place)


@pytest.mark.parametrize(("count", "partitions"), [(40, 2), (150, 2), (550, 2), (10, 1)])
def test_a_topic_made_anew_while_nothing_arrives_stops_a_run_whatever_its_length(place, count, partitions):
    """With as many records as before nothing is to be read, and there is no lag."""
    with pytest.raises(
        OffsetsLostError,
        match=r"offset 150 of .*partition 0, but the topic was deleted and recreated \(its ",
    ):
        run_until(place, lambda: made_anew(place, count, partitions), at=ALL_READ)
    assert positions(place) == {0: 100, 1: 100}, "nobody knows which topic the last records were of"


@pytest.mark.parametrize("question", ["log_ends", "beginning_offsets"])
def test_a_topic_made_anew_between_two_questions_of_the_start_is_another_topic(place, monkeypatch, question):
    answer, asked = getattr(place.topics, question), []

    def changing(partitions):
        if not asked:
            asked.append(partitions)
            made_anew(place, 40)
        return answer(partitions)

    monkeypatch.setattr(place.topics, question, changing)
    with pytest.raises(OffsetsLostError, match="deleted and recreated") as refused:
        run(place.driver())
    assert [each.resume for each in refused.value.lost] == [0, 0]


def test_what_was_read_of_other_topics_is_committed_when_one_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.05)
    builder = StreamsBuilder()
    builder.stream("sales", key=String("shop"), value=Json(Sale)).group_by_key().agg("sums", sales=Count()).to_delta(
        "a"
    )
    builder.stream("visits", key=String("shop"), value=Json(Sale)).group_by_key().agg("seen", n=Count()).to_delta("b")
    topics = Topics(
        {("sales", 0): sales(20, 0), ("sales", 1): sales(20, 1), ("visits", 0): sales(20, 0)},
        ids={"sales": "first", "visits": "first"},
    )
    place = Place(Application("sales", builder, commit_interval=timedelta(hours=1)), topics, tmp_path)
    place.run()
    topics.rows["visits", 0] += sales(30, 0)
    driver, answer = place.driver(), topics.log_ends

    def changing(partitions):
        if any(task.positions.get("visits", {}).get(0) == 50 for task in driver._coordinator.tasks.values()):
            topics.ids["sales"] = "second"
        return answer(partitions)

    topics.log_ends = changing
    with pytest.raises(OffsetsLostError, match="topic 'sales', partition 0, but the topic was deleted and recreated"):
        run(driver)
    newest = newest_commit(place.warehouse, "sales")
    assert {topic: offsets for task in newest.tasks.values() for topic, offsets in task.positions.items()}[
        "visits"
    ] == {0: 50}
    assert newest.topic_ids["sales"] == "first", "so that the next start refuses it"


def test_a_topic_of_a_pattern_that_is_deleted_during_a_run_stops_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.05)
    builder = StreamsBuilder()
    stream = builder.stream(re.compile("sales-.*"), key=String("shop"), value=Json(Sale))
    stream.group_by_key().agg("sums", sales=Count()).to_delta("totals")
    topics = Topics({("sales-a", 0): sales(20, 0), ("sales-b", 0): sales(20, 0)})
    place = Place(Application("sales", builder, commit_interval=timedelta(hours=1)), topics, tmp_path)
    driver, answer = place.driver(), topics.log_ends

    def changing(partitions):
        if driver._coordinator.has_uncommitted:
            topics.rows.pop(("sales-b", 0), None)
        return answer(partitions)

    topics.log_ends = changing
    with pytest.raises(MatchedTopicGoneError, match=r"has read topic 'sales-b', .*--accept-lost-records"):
        run(driver)
    assert newest_commit(place.warehouse, "sales").tasks, "what was read is committed"


def test_the_topic_of_a_global_table_that_is_deleted_during_a_run_stops_it(tmp_path):
    builder = StreamsBuilder()
    rates = builder.global_table("rates", key=String("shop"), value=Json(Sale), store="rates")
    builder.stream("sales", key=String("shop"), value=Json(Sale)).join(rates, key="shop").to_delta("rated")
    topics = Topics({("sales", 0): sales(20, 0), ("rates", 0): sales(5, 0)}, ids={"sales": "a", "rates": "b"})
    place = Place(Application("sales", builder, commit_interval=timedelta(hours=1)), topics, tmp_path)
    with pytest.raises(UnknownTopicError, match="topic 'rates' does not exist"):
        run_until(place, lambda: topics.delete("rates"), at={0: 20})
    assert positions(place) == {0: 20}


def test_a_task_that_fails_for_another_reason_says_so_also_while_brokers_are_away(place, monkeypatch):
    driver = place.driver()

    def away(topics):
        raise BrokerUnreachableError("nowhere:1", "no answer")

    slots = driver._coordinator.slots
    carry_out = slots.run

    def failing(plans):
        monkeypatch.setattr(place.topics, "topic_ids", away)
        slots.runner._reader = None
        return carry_out(plans)

    slots.run = failing
    with pytest.raises(TaskFailedError, match="not callable"):
        run(driver)


def test_a_lost_position_is_the_same_in_another_process():
    lost = LostPosition(topic="t", partition=0, position=5, loss=Loss.DELETED, found="", resume=0, end=9)
    error = pickle.loads(pickle.dumps(OffsetsLostError("app", [lost])))
    assert isinstance(error, RunError)
    assert "deleted, and [5, 9) was not read; run" in str(error)
