"""What a real broker does to a topic under a running driver, whose tasks run in this process."""

from __future__ import annotations

from datetime import timedelta
from threading import Event, Timer

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.integration.kafka_topics import KafkaTopics
from tests.pipelines.spark.inline import Place
from weir import Application, StreamsBuilder, String
from weir.pipelines.spark import driver as module
from weir.pipelines.spark.errors import OffsetsLostError
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.slow]

LIMIT_S = 20.0


class Visits:
    """A topic whose 100 records are committed, and 50 more; no commit is due for an hour."""

    def __init__(self, admin, name, folder):
        self.admin, self.name = admin, name
        builder = StreamsBuilder()
        builder.stream(name, key=String("user"), value=String("page")).group_by_key().count("visits").to_delta("visits")
        application = Application("visits", builder, commit_interval=timedelta(hours=1))
        self.place = Place(application, KafkaTopics(admin, (name,)), folder, max_records=30)
        self.produce("a", 100)
        self.place.run()
        self.produce("b", 50)

    def produce(self, user, count):
        producer = Producer({"bootstrap.servers": self.admin.bootstrap_servers})
        for number in range(count):
            producer.produce(self.name, b"%d" % number, user.encode())
        assert producer.flush(10) == 0

    def expire(self, offset):
        (deleted,) = self.admin._client.delete_records([TopicPartition(self.name, 0, offset)]).values()
        deleted.result(10)

    def make_anew(self):
        self.admin.delete_topic(self.name)
        assert self.admin.create_topic(self.name, 1)

    def counted(self):
        return dict(read_table(self.place.warehouse / "visits" / "visits").select("user", "count").iter_rows())

    def position(self):
        (task,) = newest_commit(self.place.warehouse, "visits").tasks.values()
        return task.positions[self.name][0]

    def run_until(self, change, *, at=150, paused=False):
        """Run until the topic changes, which it does when the driver is ``at`` an offset."""
        changed = []

        def watch(progress):
            (task,) = driver._coordinator.tasks.values()
            if not changed and task.positions[self.name][0] == at:
                changed.append(True)
                change()

        if paused:
            self.place.desk.ask("pause")
        driver, stop = self.place.driver(on_progress=watch), Event()
        limit = Timer(LIMIT_S, stop.set)
        limit.start()
        try:
            driver.run(stop)
        finally:
            limit.cancel()
            assert not stop.is_set(), "it has not noticed anything"


@pytest.fixture
def visits(kafka_admin, topic, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TOPICS_EVERY_S", 0.3)
    monkeypatch.setattr(module, "REPORT_EVERY_S", 0.05)
    monkeypatch.setattr(module, "REPORT_SHARE", 1_000.0)
    return Visits(kafka_admin, topic(), tmp_path)


def test_deleted_records_stop_a_run_that_had_not_read_them(visits):
    def expire():
        visits.produce("c", 80)
        visits.expire(180)
        visits.place.topics.reader(visits.name, 0)._seek(150)  # what was fetched ahead would still be read

    with pytest.raises(OffsetsLostError, match=r"offset 150 of .* begins at 180: .*\[150, 180\), were removed unread"):
        visits.run_until(expire)
    assert visits.position() == 150
    assert visits.counted() == {"a": 100, "b": 50}
    visits.place.run(accept_lost_records=True)
    assert visits.counted() == {"a": 100, "b": 50, "c": 50}


def test_deleted_records_stop_a_paused_run(visits):
    with pytest.raises(OffsetsLostError, match=r"offset 100 of .* begins at 120: .*\[100, 120\), were removed unread"):
        visits.run_until(lambda: visits.expire(120), at=100, paused=True)


def test_a_deleted_topic_stops_a_run_and_what_was_read_is_committed(visits):
    with pytest.raises(OffsetsLostError, match=r"offset 150 of .*, but the topic was deleted; run"):
        visits.run_until(lambda: visits.admin.delete_topic(visits.name))
    assert visits.position() == 150
    assert visits.counted() == {"a": 100, "b": 50}


def test_a_deleted_topic_stops_a_paused_run_with_what_was_not_read(visits):
    with pytest.raises(
        OffsetsLostError, match=r"offset 100 of .*, but the topic was deleted, and \[100, 150\) was not"
    ):
        visits.run_until(lambda: visits.admin.delete_topic(visits.name), at=100, paused=True)


@pytest.mark.parametrize("count", [40, 150, 300])
def test_a_topic_made_anew_stops_a_run_whatever_its_length(visits, count):
    def make_anew():
        visits.make_anew()
        visits.produce("c", count)

    with pytest.raises(OffsetsLostError, match=r"offset 150 of .*, but the topic was deleted and recreated \(its id"):
        visits.run_until(make_anew)
    assert visits.position() == 100
    assert "c" not in visits.counted()
