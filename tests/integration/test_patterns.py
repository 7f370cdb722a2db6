"""Topics by pattern on a real broker and real Spark: topics that appear, are gone, or are read again."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.spark import driver, runner
from weir.pipelines.spark.errors import MatchedTopicGoneError, NoMatchingTopicError
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

REFERENCE = "tests.integration.applications:by_pattern"
NAMED = "tests.integration.applications:by_pattern_named"


class Visits:
    """The topics, and what was written to them."""

    def __init__(self, settings: Settings, admin: KafkaAdmin) -> None:
        self.settings, self._admin, self.written = settings, admin, Counter()
        self._producer = Producer({"bootstrap.servers": settings.bootstrap_servers, "linger.ms": 5})

    def write(self, topic: str, count: int) -> None:
        self._admin.create_topic(topic, 2)
        for number in range(count):
            user, page = f"user-{number % 7}", f"{topic}/{len(self.written)}"
            self._producer.produce(topic, page.encode(), user.encode())
            self.written[user, page] += 1
        self._producer.flush()

    def delete(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def read(self) -> Counter:
        folder = self.settings.warehouse / "by-pattern" / "visits"
        return (
            Counter(read_table(folder).select("user", "page").iter_rows())
            if DeltaTable.is_deltatable(folder)
            else Counter()
        )

    def named(self) -> Counter:
        """What was read, if each visit has the newest name of its user."""
        rows = read_table(self.settings.warehouse / "by-pattern" / "named").select("user", "page", "name")
        return Counter(
            (user, page)
            for user, page, name in rows.iter_rows()
            if name == (None if user == "user-6" else user.replace("user", "new"))
        )

    def counted(self) -> dict[str, int]:
        rows = read_table(self.settings.warehouse / "by-pattern" / "visits_of").sort("_epoch", "_seq")
        return dict(rows.select("user", "count").iter_rows())

    def assert_all_counted(self) -> None:
        assert self.read() == self.written
        assert self.counted() == Counter(user for user, _ in self.written.elements())

    def name(self, version: str) -> None:
        """Give each user but the last another name."""
        self._admin.create_topic("names-of-users", 2)
        for number in range(6):
            self._producer.produce("names-of-users", f"{version}-{number}".encode(), f"user-{number}".encode())
        self._producer.flush()

    def run(self, reference=REFERENCE, **options):
        return run(reference, self.settings, bootstrap_servers=self.settings.bootstrap_servers, **options)

    @property
    def place(self) -> list[str]:
        """The options of ``weir`` that name it."""
        return ["--bootstrap-servers", self.settings.bootstrap_servers, "--dir", str(self.settings.dir)]

    def weir(self, *command: str) -> str:
        found = CliRunner().invoke(weir, [*command, *self.place])
        assert found.exit_code == 0, found.output
        return found.output


@pytest.fixture
def visits(settings, broker, kafka_admin):
    there = Visits(settings.model_copy(update={"bootstrap_servers": broker}), kafka_admin)
    yield there
    for topic in kafka_admin.topics():
        if topic.startswith(("matched-", "names-of-")):
            kafka_admin.delete_topic(topic)


def test_topics_that_appear_are_read_without_a_restart_by_hand(visits, spark, monkeypatch):
    monkeypatch.setattr(driver, "TOPICS_EVERY_S", 0.5)
    monkeypatch.setattr(runner, "TOPICS_EVERY_S", 0.1)
    with pytest.raises(NoMatchingTopicError, match=r"match 'matched-\.\*', and there is none; create one"):
        visits.run(until_caught_up=True, spark=spark)
    stop, told, summaries = threading.Event(), [], []
    thread = threading.Thread(
        target=lambda: summaries.append(
            visits.run(stop=stop, spark=spark, on_progress=lambda progress: told.append(progress))
        )
    )
    thread.start()
    try:
        wait_for(lambda: any("there is none" in each.message for each in told), "it waits for a topic")
        visits.weir("kafka", "create", "matched-m", "--partitions", "2")
        assert "matched-m" in visits.weir("kafka", "list")
        visits.write("matched-m", 300)
        wait_for(lambda: visits.read() == visits.written, "the first topic is read")
        visits.write("matched-b", 300)
        visits.write("matched-z", 300)
        visits.write("matched-m", 50)
        wait_for(lambda: visits.read() == visits.written, "those that came later are read")
    finally:
        stop.set()
        thread.join(60)
    visits.assert_all_counted()
    (summary,) = summaries
    assert (summary.records_in, summary.reason) == (950, "stopped")
    assert max(each.generation for each in told) == summary.generation > 1

    visits.write("matched-a", 100)
    assert "matched-a" in visits.weir("plan", REFERENCE), "what the next start would read"
    visits.run(until_caught_up=True, spark=spark)
    visits.assert_all_counted()


def test_a_backfill_of_everything_reads_the_topics_that_were_read_and_a_global_table_as_it_is(visits, spark):
    for topic in ("matched-b", "matched-a"):
        visits.write(topic, 200)
        visits.run(until_caught_up=True, spark=spark)
    visits.write("matched-c", 100)
    visits.name("old")
    visits.name("new")
    command = ["backfill", "run", NAMED, "--everything", "--swap", "--yes", "--set", "slots=2", *visits.place]
    done = subprocess.run(
        [sys.executable, "-c", "from weir.pipelines.cli import main; main()", *command],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "400 records in" in done.stdout
    assert "the rows of global tables (topics names-of-users) are those of" in done.stdout
    assert visits.named() == visits.read()
    visits.run(NAMED, until_caught_up=True, spark=spark)
    visits.assert_all_counted()
    assert visits.named() == visits.written


def test_a_topic_that_is_deleted_is_refused_until_its_loss_is_accepted(visits, spark):
    for topic in ("matched-a", "matched-b"):
        visits.write(topic, 50)
    visits.run(until_caught_up=True, spark=spark)
    visits.delete("matched-a")
    visits.write("matched-b", 50)
    with pytest.raises(MatchedTopicGoneError, match="has read topic 'matched-a'"):
        visits.run(until_caught_up=True, spark=spark)
    visits.run(until_caught_up=True, accept_lost_records=True, spark=spark)
    visits.assert_all_counted()
    visits.run(until_caught_up=True, spark=spark)
    visits.assert_all_counted()
