"""A topic gets more partitions on a real broker, under a real run: it stops, and goes on with all its state."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register
from weir.pipelines.spark import driver
from weir.pipelines.spark.errors import PartitionCountError
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

REFERENCE, TOPIC = "tests.integration.applications:grown", "clicks-grown"


class Clicks:
    """The topic, and what was written to it."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.written = settings, list[tuple[str, str]]()

    def write(self, count: int) -> None:
        """A producer of its own, which knows the partitions that there are."""
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "partitioner": "murmur2_random"})
        for number in range(len(self.written), len(self.written) + count):
            self.written.append((f"user-{number % 40}", f"page-{number % 13}"))
            user, page = self.written[-1]
            producer.produce(TOPIC, page.encode(), user.encode())
        producer.flush()

    def counted(self, output: str) -> dict[str, int]:
        rows = read_table(self.settings.warehouse / "grown" / output)
        return dict(rows.select(output.removeprefix("by_"), "n").iter_rows())

    def is_counted(self) -> bool:
        folder = self.settings.warehouse / "grown" / "by_page"
        return folder.exists() and sum(self.counted("by_page").values()) == len(self.written)

    def assert_all_counted(self) -> None:
        assert self.counted("by_user") == Counter(user for user, _ in self.written)
        assert self.counted("by_page") == Counter(page for _, page in self.written)

    def run(self, **options):
        return run(REFERENCE, self.settings, bootstrap_servers=self.settings.bootstrap_servers, **options)

    def weir(self, *command: str) -> tuple[int, str]:
        found = CliRunner().invoke(weir, [*command, "--dir", str(self.settings.dir)])
        return found.exit_code, " ".join(found.output.split())


def test_a_run_stops_when_its_topic_grows_and_goes_on_with_all_its_state(
    settings, broker, kafka_admin, spark, monkeypatch
):
    monkeypatch.setattr(driver, "TOPICS_EVERY_S", 0.5)
    kafka_admin.create_topic(TOPIC, 2)
    clicks = Clicks(settings.model_copy(update={"bootstrap_servers": broker}))
    register(clicks.settings, "grown", REFERENCE)
    clicks.write(500)
    ended, stop = [], threading.Event()

    def endless() -> None:
        try:
            clicks.run(stop=stop, spark=spark)
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=endless)
    thread.start()
    try:
        wait_for(clicks.is_counted, "all is counted")
        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result()
        wait_for(lambda: ended, "the run has noticed")
    finally:
        stop.set()
        thread.join(60)
    (error,) = ended
    assert isinstance(error, PartitionCountError)
    assert "`weir repartition grown`" in str(error)
    clicks.write(300)
    code, text = clicks.weir("repartition", "grown", "--dry-run", "--bootstrap-servers", broker)
    assert (code, "nothing was changed (--dry-run)" in text) == (0, True), text
    code, text = clicks.weir("repartition", "grown", "--bootstrap-servers", broker)
    assert (code, "2 tasks become 6" in text) == (0, True), text
    summary = clicks.run(until_caught_up=True, spark=spark)
    assert summary.records_in == 300
    clicks.assert_all_counted()
    clicks.write(200)
    clicks.run(until_caught_up=True, spark=spark)
    clicks.assert_all_counted()
    code, text = clicks.weir("verify", "grown")
    assert code == 0, text
