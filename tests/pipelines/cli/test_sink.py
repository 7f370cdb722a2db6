"""``weir sink`` and what ``weir status`` says of sinks, with a real run whose topic refuses a record for a while."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner

from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.pipelines.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.broker]

PROGRAM = """
from weir import Application, StreamsBuilder, String

builder = StreamsBuilder()
builder.stream({source!r}, key=String("user"), value=String("order")).to({target!r}, name="orders")
app = Application("shop", builder)
"""
WEIR = [sys.executable, "-c", "from weir.pipelines.cli.app import main; main()"]
LIMIT_S = 60.0
LOOK_EVERY_S = 0.3


def wait(is_so, what):
    wait_for(is_so, what, LIMIT_S, every_s=LOOK_EVERY_S)


def flat(text):
    return " ".join(text.split())


class Shop:
    """A folder with a program whose sink is a topic, and its run."""

    def __init__(self, folder, broker, source, target):
        self.folder, self.broker, self.source, self.target = folder, broker, source, target
        (folder / "shop.py").write_text(PROGRAM.format(source=source, target=target))
        self.run: subprocess.Popen | None = None

    def produce(self, *orders):
        producer = Producer({"bootstrap.servers": self.broker})
        for order in orders:
            producer.produce(self.source, order, "ann", timestamp=1_000)
        producer.flush()

    def start(self):
        self.run = subprocess.Popen(
            [*WEIR, "run", "shop:app"], cwd=self.folder, env={**os.environ, "WEIR_BOOTSTRAP_SERVERS": self.broker}
        )

    def stop(self):
        if self.run is not None:
            self.run.send_signal(signal.SIGINT)
            assert self.run.wait(LIMIT_S) in (0, -signal.SIGINT)
            self.run = None

    def weir(self, *arguments):
        return CliRunner().invoke(app, list(arguments))

    def done(self, *arguments):
        result = self.weir(*arguments)
        assert result.exit_code == 0, result.output
        return flat(result.stdout)

    def sink(self):
        result = self.weir("sink", "list", "shop", "--json")
        found = json.loads(result.stdout) if result.exit_code == 0 else []  # at first, nothing has run
        return found[0] if found else {"awaits": None, "refused_rows": None}

    def published(self):
        lines = self.weir("kafka", "consume", self.target, "--json").stdout.splitlines()
        return [json.loads(line)["value"] for line in lines]

    def take(self, size):
        """Let the topic take records of this size."""
        entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.target, incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": self.broker})
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(10)


@pytest.fixture
def shop(tmp_path, broker, topic, kafka_admin: KafkaAdmin, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIR_BOOTSTRAP_SERVERS", broker)
    target = topic()
    made = Shop(tmp_path, broker, topic(), target)
    yield made
    if made.run is not None:
        made.run.kill()
        made.run.wait()


def test_a_refused_record_waits_goes_aside_and_is_sent_again_or_deleted(shop):
    large = ["".join(random.Random(seed).choices("abcdefghijklmnop0123456789", k=9_000)) for seed in range(2)]
    shop.take(4_000)
    shop.produce("first", large[0], "second")
    shop.start()
    wait(lambda: shop.sink()["awaits"] == "skip", "the sink waits for a decision")

    said = shop.done("status", "shop")
    assert "sink orders (topic: " in said
    assert "too large" in said
    assert "see `weir sink skip shop orders`" in said
    assert "2 rows wait" in said
    assert "no sink 'ordres'; it has orders" in flat(shop.weir("sink", "skip", "shop", "ordres").output)
    refused = flat(shop.weir("sink", "resume", "shop", "orders").output)
    assert "weir: shop: the sink 'orders' has nothing to resume; it waits for somebody to skip" in refused

    assert "the row is put aside" in shop.done("sink", "skip", "shop", "orders")
    wait(lambda: shop.published() == ["first", "second"], "the row after it is published")
    wait(lambda: shop.sink()["refused_rows"] == 1, "one row is aside")
    place = "refused: row 1 of epoch"
    said = shop.done("status", "shop")
    assert "1 refused row aside" in said
    assert place in said
    assert f"orders: {place}" in shop.done("sink", "list", "shop")

    again = shop.weir("sink", "retry", "shop", "orders")
    assert "shop: sink orders: 0 refused rows delivered, 1 still refused: row 1 of epoch" in flat(again.stdout)
    assert "too large" in again.stdout
    assert again.exit_code == 1

    shop.take(1_000_000)
    assert "shop: sink orders: 1 refused row delivered" in shop.done("sink", "retry", "shop", "orders")
    assert shop.published() == ["first", "second", large[0]]
    assert shop.sink()["refused_rows"] == 0
    assert "no rows of the sink 'orders' are aside" in flat(shop.weir("sink", "retry", "shop", "orders").output)

    shop.take(4_000)
    shop.produce(large[1], "third")
    wait(lambda: shop.sink()["awaits"] == "skip", "the sink waits again")
    shop.done("sink", "skip", "shop", "orders")
    wait(lambda: shop.published()[-1] == "third", "the last row is published")
    assert "deleted 1 refused row of the sink orders" in shop.done("sink", "discard", "shop", "orders", "--yes")
    assert shop.published() == ["first", "second", large[0], "third"]

    wait(lambda: shop.sink()["refused_rows"] == 0, "the sink has noticed")
    shop.stop()
    assert "all is published" in shop.done("sink", "list", "shop")
    assert "shop is not running; start it with `weir run shop:app`" in flat(
        shop.weir("sink", "retry", "shop", "orders").output
    )


def test_a_target_made_anew_gets_the_rows_that_wait_once_somebody_says_so(shop, kafka_admin):
    shop.produce("first")
    shop.start()
    wait(lambda: shop.published() == ["first"], "the row is published")
    shop.stop()
    kafka_admin.delete_topic(shop.target)
    wait(lambda: shop.target not in kafka_admin.topics(), "the topic is gone")
    kafka_admin.create_topic(shop.target, 1)
    shop.produce("second")
    shop.start()
    wait(lambda: shop.sink()["awaits"] == "resume", "the sink waits for a decision")
    wait(lambda: shop.sink()["waiting_rows"] == 1, "the row is committed")
    assert "was the topic or table made anew" in shop.done("status", "shop")
    assert shop.published() == []
    assert "publishing goes on with the rows that wait (1)" in shop.done("sink", "resume", "shop", "orders")
    wait(lambda: shop.published() == ["second"], "what waits is published")
    shop.stop()
