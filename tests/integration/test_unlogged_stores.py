"""Stores without changelogs on a real broker and real Spark: kill -9, a lost folder, and records that have expired."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.applications import computed_again
from tests.waiting import wait_for
from weir import StateReader
from weir.pipelines.spark.errors import RangeLostError
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table
from weir.state.engine.instances import current_instance

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOPIC, PARTITIONS, USERS = "clicks-unlogged", 2, 10
REFERENCE = "tests.integration.applications:{}"


def produce(broker: str, first: int, last: int) -> None:
    """A click by each user in turn; users with even numbers click in partition 0."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
    for number in range(first, last):
        user = number % USERS
        producer.produce(TOPIC, b"/", b"user-%d" % user, partition=user % PARTITIONS)
    producer.flush()


def counted(settings) -> dict[str, int]:
    rows = StateReader(settings.dir, computed_again).range("clicks").rows
    return dict(rows.select("user", "n").iter_rows())


def clicks(first: int, last: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in range(first, last):
        user = f"user-{number % USERS}"
        found[user] = found.get(user, 0) + 1
    return found


def test_a_lost_store_is_computed_again_by_spark_and_begins_empty_once_its_records_have_expired(
    settings, broker, kafka_admin, spark
):
    kafka_admin.create_topic(TOPIC, PARTITIONS)
    produce(broker, 0, 2_000)
    settings = settings.model_copy(update={"bootstrap_servers": broker})
    command = "from weir.pipelines.cli import main; main()"
    arguments = ["run", REFERENCE.format("computed_again"), "--dir", str(settings.dir), "--bootstrap-servers", broker]
    killed = subprocess.Popen([sys.executable, "-c", command, *arguments], env=dict(os.environ))
    totals = settings.warehouse / "unlogged" / "totals"
    try:
        wait_for(lambda: totals.exists() and read_table(totals)["n"].sum() == 2_000, "it has counted", 240)
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
    lost, kept = (settings.state_dir / "unlogged" / f"{TOPIC}_{partition}" for partition in (0, 1))
    instances = current_instance(lost), current_instance(kept)
    shutil.rmtree(lost)
    produce(broker, 2_000, 3_000)

    def again(name: str) -> None:
        run(
            REFERENCE.format(name),
            settings,
            bootstrap_servers=broker,
            until_caught_up=True,
            take_over=True,
            spark=spark,
        )

    again("computed_again")
    assert counted(settings) == clicks(0, 3_000)
    assert {row["user"]: row["n"] for row in read_table(totals).to_dicts()} == clicks(0, 3_000)
    assert (current_instance(lost) != instances[0], current_instance(kept) == instances[1]) == (True, True)
    assert not (settings.warehouse / "unlogged" / "_changelog" / "clicks").exists()

    admin = AdminClient({"bootstrap.servers": broker})
    for deleted in admin.delete_records([TopicPartition(TOPIC, 0, 100)]).values():
        deleted.result(30)
    again("computed_again")  # it has survived
    shutil.rmtree(lost)
    with pytest.raises(RangeLostError, match="the topic now begins at 100"):
        again("computed_again")
    produce(broker, 3_000, 3_500)
    again("begins_empty")
    whole, since = clicks(0, 3_500), clicks(3_000, 3_500)
    assert counted(settings) == {user: (whole if int(user[-1]) % 2 else since)[user] for user in whole}
