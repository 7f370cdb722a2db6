"""A topic that no longer holds what the positions belong to: refused, and what each way out does (PROTOCOL 28)."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, replace
from threading import Event

import pytest

from tests.pipelines.spark.changes import PARTITIONS, cut, made_anew, positions
from tests.pipelines.spark.inline import Place, Topics
from tests.pipelines.spark.sales import Sale, application, expected, sales, totals
from weir import Application, Json, StreamsBuilder, String
from weir.infra.kafka.admin import BrokerUnreachableError
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.errors import GlobalTopicReplacedError, Loss, LostPosition, OffsetsLostError
from weir.state.commit.audit import newest_commits, offset_breaks
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table


@dataclass(frozen=True)
class Rate:
    rate: int


ACCEPTED = "read on at offset .*keeping all state, with `weir run MODULE:APP --accept-lost-records`"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where 100 records of each partition have been read."""
    monkeypatch.setattr(module, "BROKER_WAIT_S", 0.001)
    monkeypatch.setattr(module, "QUIET_REPORT_EVERY_S", 0.5)
    topics = Topics(
        {(topic, partition): sales(100, partition) for topic, partition in PARTITIONS},
        ids={"sales": "first"},
        leaders={partition: [0] for partition in PARTITIONS},
    )
    place = Place(application(), topics, tmp_path, max_records=30)
    place.run()
    return place


def test_a_commit_keeps_topic_ids_and_leader_epochs(place):
    newest = newest_commit(place.warehouse, "sales")
    assert newest.topic_ids == {"sales": "first"}
    assert [task.leader_epochs for task in newest.tasks.values()] == [{"sales": {0: 0}}, {"sales": {1: 0}}]


@pytest.mark.parametrize("count", [40, 100, 550])
def test_a_topic_that_was_made_anew_stops_the_start_whatever_its_length(place, count):
    before = newest_commit(place.warehouse, "sales")
    made_anew(place, count)
    with pytest.raises(
        OffsetsLostError,
        match=r"offset 100 of topic 'sales', partition 0, but the topic was deleted and recreated \(its id was first "
        r"and is second now\) \(and so in 1 other partition\); run `weir run MODULE:APP --bootstrap-servers "
        r"HOST:PORT` with the brokers that have the old records, read the new topic from its start, keeping all state, "
        r"with `weir run MODULE:APP --accept-lost-records`, or "
        r"start over with `weir reset sales`",
    ):
        place.run()
    assert newest_commit(place.warehouse, "sales") == before


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 40, 550])
def test_an_accepted_new_topic_is_read_from_its_start_and_the_state_is_kept(place, count):
    old = totals(place)
    made_anew(place, count)
    assert place.run(accept_lost_records=True).records_in == 2 * count
    assert totals(place) == ({**old, "new-0": (count, count), "new-1": (count, count)} if count else old)
    assert positions(place) == {0: count, 1: count}
    assert newest_commit(place.warehouse, "sales").topic_ids == {"sales": "second"}
    assert not [found for found in offset_breaks(newest_commits(place.warehouse, "sales", 99)) if found.is_wrong]
    assert place.run(accept_lost_records=True).records_in == 0, "it is accepted once, whatever the next start says"


def test_the_old_topic_is_read_on_when_it_is_back(place):
    old = place.topics
    place.topics = replace(old, rows=dict(old.rows), ids=dict(old.ids))
    made_anew(place, 550)
    with pytest.raises(OffsetsLostError):
        place.run()
    place.topics = old
    old.rows["sales", 0] += sales(30, 0)
    assert place.run().records_in == 30
    assert totals(place) == expected(place)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["pivot appended", "table appended", "settled"])
def test_a_crash_while_a_loss_is_accepted_leaves_it_accepted_or_not(place, step):
    made_anew(place, 40)
    steps = []

    def crash(name):
        steps.append(name)
        if name == step:
            raise RuntimeError(step)

    old = totals(place)
    with pytest.raises(RuntimeError, match=step):
        place.run(on_step=crash, accept_lost_records=True)
    place.run(accept_lost_records=True)
    assert totals(place) == {**old, "new-0": (40, 40), "new-1": (40, 40)}


def test_a_topic_made_anew_during_a_run_stops_it_and_nothing_of_it_is_committed(place):
    before = newest_commit(place.warehouse, "sales")
    for topic, partition in PARTITIONS:
        place.topics.rows[topic, partition] += sales(200, partition)
    reader, reads = place.topics.reader, []

    def made_anew_while_it_is_read(topic, partition):
        reads.append(topic)
        if len(reads) == 1:
            made_anew(place, 550)
        return reader(topic, partition)

    place.topics.reader = made_anew_while_it_is_read
    with pytest.raises(OffsetsLostError, match="recreated"):
        place.run()
    assert newest_commit(place.warehouse, "sales").tasks == before.tasks
    assert not any(shop.startswith("new") for shop in totals(place))


def test_a_swap_is_not_committed_with_what_was_read_of_a_topic_made_anew(place):
    driver = place.driver()
    driver._topics.begin(accept_lost_records=False)
    made_anew(place, 550)
    asked = place.desk.ask("swap", backfill="none")
    driver._answer_requests()
    answer, failed = place.desk.answers[asked]
    assert failed
    assert "recreated" in answer


def test_a_topic_that_shrinks_during_an_idle_run_stops_it(place):
    """Without another id: its position would lie beyond the end, and nothing would ever be read."""
    answers = []

    def shrink(progress):
        answers.append(progress.state)
        if len(answers) == 2:
            del place.topics.rows["sales", 0][40:]
        if len(answers) == 8:
            stop.set()

    stop = Event()
    with pytest.raises(OffsetsLostError, match="offset 100 of topic 'sales', partition 0, which ends at 40"):
        place.driver(on_progress=shrink).run(stop)


def test_a_log_that_was_cut_below_the_position_and_has_grown_stops_the_start(place):
    cut(place, 60)
    with pytest.raises(
        OffsetsLostError,
        match=f"offset 100 of topic 'sales', partition 1, but .* lost its records from offset 60.*{ACCEPTED}",
    ):
        place.run()


@pytest.mark.slow
def test_an_accepted_cut_is_read_on_from_where_the_logs_part(place):
    old = totals(place)
    cut(place, 60)
    assert place.run(accept_lost_records=True).records_in == 100
    assert totals(place) == {**old, "other": (700, 100)}
    assert positions(place) == {0: 100, 1: 160}
    assert place.run().records_in == 0


def test_a_log_that_is_cut_during_a_run_stops_it(place):
    stop, reports = Event(), []

    def cut_once(progress):
        reports.append(progress.state)
        if len(reports) == 2:
            cut(place, 60)
        if len(reports) == 8:
            stop.set()

    with pytest.raises(OffsetsLostError, match="lost its records from offset 60"):
        place.driver(on_progress=cut_once).run(stop)


def test_another_leader_with_the_same_log_changes_nothing(place):
    for partition in PARTITIONS:
        place.topics.leaders[partition] += [100, 100]
    place.topics.rows["sales", 1] += sales(20, 1)
    assert place.run().records_in == 20
    newest = newest_commit(place.warehouse, "sales")
    assert [task.leader_epochs for task in newest.tasks.values()] == [{"sales": {0: 2}}, {"sales": {1: 2}}]
    assert totals(place) == expected(place)


def test_records_removed_before_they_were_read_stop_the_start(place):
    place.topics.rows["sales", 1] += sales(50, 1)
    place.topics.oldest["sales", 1] = 130
    with pytest.raises(
        OffsetsLostError,
        match=f"offset 100 of topic 'sales', partition 1, which begins at 130: .*removed unread.*{ACCEPTED}",
    ):
        place.run()


@pytest.mark.slow
def test_records_removed_before_they_were_read_are_passed_over_when_that_is_accepted(place):
    place.topics.rows["sales", 1] += sales(50, 1)
    place.topics.oldest["sales", 1] = 130
    assert place.run(accept_lost_records=True).records_in == 20
    kept = replace(place.topics, rows={at: list(rows) for at, rows in place.topics.rows.items()})
    del kept.rows["sales", 1][100:130]
    assert totals(place) == expected(replace(place, topics=kept))
    assert len(place.restores.done) == 1, "the other task goes on as it is"


def test_rows_and_brokers_without_ids_refuse_nothing_and_the_next_commit_adds_them(place):
    place.topics.ids, place.topics.leaders = {}, {}
    place.topics.rows["sales", 0] += sales(10, 0)
    assert place.run().records_in == 10, "brokers without ids"
    assert newest_commit(place.warehouse, "sales").topic_ids == {"sales": "first"}, "what is known stays known"
    other = Place(application(), Topics(dict(place.topics.rows)), place.folder / "other")
    other.run()
    assert newest_commit(other.warehouse, "sales").topic_ids == {}
    other.topics.ids, other.topics.leaders = {"sales": "x"}, {partition: [0, 50] for partition in PARTITIONS}
    other.topics.rows["sales", 0] += sales(10, 0)
    assert other.run().records_in == 10
    newest = newest_commit(other.warehouse, "sales")
    assert newest.topic_ids == {"sales": "x"}
    assert [task.leader_epochs for task in newest.tasks.values()] == [{"sales": {0: 1}}, {"sales": {1: 1}}]


def test_a_short_topic_that_may_be_another_one_is_not_read_on(place):
    """Without ids nobody knows whether it was recreated, and so whether to read it from its start or its end."""
    place.topics.ids, place.topics.leaders = {}, {}
    del place.topics.rows["sales", 1][40:]
    with pytest.raises(OffsetsLostError, match="ends at 40: the topic was recreated or has lost") as refused:
        place.run(accept_lost_records=True)
    assert "--accept-lost-records" not in str(refused.value)


@pytest.mark.parametrize("question", ["log_ends", "topic_ids"])
def test_a_commit_of_what_was_read_waits_for_brokers_that_are_away(place, monkeypatch, question):
    """They may be away because another leader takes over, without what was read."""
    answer, asked, messages = getattr(place.topics, question), [], []
    for topic, partition in PARTITIONS:
        place.topics.rows[topic, partition] += sales(30, partition)

    def away_for_a_while(wanted):
        if driver._coordinator.has_uncommitted:
            asked.append(totals(place))
            if len(asked) < 4:
                raise BrokerUnreachableError("nowhere:1", "no answer")
        return answer(wanted)

    monkeypatch.setattr(place.topics, question, away_for_a_while)
    before = totals(place)
    driver = place.driver(on_progress=lambda progress: messages.append(progress.message))
    assert driver.run(Event(), until_caught_up=True).records_in == 60
    assert asked[:4] == [before] * 4
    assert any("nowhere:1" in message for message in messages)
    assert totals(place) == expected(place)


@pytest.mark.parametrize("how", ["signal", "request"])
def test_what_was_read_before_brokers_went_away_is_read_again_after_a_stop(place, monkeypatch, how):
    answer, before, stop = place.topics.topic_ids, totals(place), Event()
    for topic, partition in PARTITIONS:
        place.topics.rows[topic, partition] += sales(30, partition)

    def away(topics):
        if not driver._coordinator.has_uncommitted:
            return answer(topics)
        if how == "signal":
            stop.set()
        elif not place.desk.asked:
            place.desk.ask("stop")
        raise BrokerUnreachableError("nowhere:1", "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(place.topics, "topic_ids", away)
        driver = place.driver()
        assert driver.run(stop, until_caught_up=True).reason == "stopped"
    assert not place.desk.requests()
    assert totals(place) == before
    place.run()
    assert totals(place) == expected(place)


def test_a_commit_without_anything_read_waits_for_no_broker(place, monkeypatch):
    driver = place.driver()
    driver._topics.begin(accept_lost_records=False)

    def away(topics):
        raise BrokerUnreachableError("nowhere:1", "no answer")

    monkeypatch.setattr(place.topics, "topic_ids", away)
    driver._commit("a test")
    assert newest_commit(place.warehouse, "sales").reason == "a test"


def test_brokers_that_are_away_at_the_start_are_waited_for(place, monkeypatch):
    answer, asked = place.topics.topic_ids, []

    def away_at_first(topics):
        asked.append(topics)
        if len(asked) < 4:
            raise BrokerUnreachableError("nowhere:1", "no answer")
        return answer(topics)

    monkeypatch.setattr(place.topics, "topic_ids", away_at_first)
    made_anew(place, 40)
    with pytest.raises(OffsetsLostError):
        place.run()


def test_the_topic_of_a_global_table_may_change_between_runs_but_not_during_one(tmp_path):
    builder = StreamsBuilder()
    rates = builder.global_table("rates", key=String("shop"), value=Json(Rate), store="rates")
    builder.stream("sales", key=String("shop"), value=Json(Sale)).join(rates, key="shop").to_delta("rated")
    topics = Topics(
        {("sales", 0): sales(20, 0), ("rates", 0): [(b"shop-0", b'{"rate": 2}', 0)]}, ids={"sales": "a", "rates": "b"}
    )
    place = Place(Application("sales", builder), topics, tmp_path, max_records=5)
    place.run()
    assert newest_commit(place.warehouse, "sales").topic_ids == {"sales": "a"}
    topics.ids["rates"] = "c"
    topics.rows["sales", 0] += sales(20, 0)
    assert place.run().records_in == 20
    topics.rows["sales", 0] += sales(20, 0)
    reader = topics.reader

    def made_anew(topic, partition):
        topics.ids["rates"] = "d"
        return reader(topic, partition)

    topics.reader = made_anew
    with pytest.raises(GlobalTopicReplacedError, match=r"table of topic 'rates', .*its id was c and is d now"):
        place.run()
    topics.reader = reader
    topics.rows["rates", 0] = [(b"shop-0", b'{"rate": 3}', 0)]
    place.run()
    rated = read_table(place.warehouse / "sales" / "rated").filter(shop="shop-0")
    amounts = [json.loads(value)["amount"] for key, value, _ in topics.rows["sales", 0] if key == b"shop-0"]
    assert sorted(rated.select("amount", "rate").rows()) == sorted(
        (amount, 2 if number < 8 else 3) for number, amount in enumerate(amounts)
    ), "of the new topic from the last commit on"


def test_the_error_is_the_same_in_another_process():
    lost = LostPosition(topic="t", partition=0, position=5, loss=Loss.SHORT, found="3", resume=3)
    error = OffsetsLostError("app", [lost])
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    other = GlobalTopicReplacedError("app", "rates", "its id was a and is b now")
    assert "a new start reads it from its beginning" in str(pickle.loads(pickle.dumps(other)))
