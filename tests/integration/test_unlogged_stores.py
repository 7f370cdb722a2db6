"""Stores without changelogs and in memory on a real broker and real Spark: kill -9, a lost folder, records that have
expired, and a machine that has restarted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from tests.integration.applications import computed_again, in_memory
from tests.waiting import wait_for
from weir import StateReader
from weir.pipelines.spark.errors import RangeLostError
from weir.pipelines.spark.runner import run
from weir.state.commit.tables import read_table
from weir.state.engine.in_memory import free, is_in_memory
from weir.state.engine.instances import current_instance

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOPIC, PARTITIONS, USERS = "clicks-unlogged", 2, 10
REFERENCE = "tests.integration.applications:{}"


def produce(broker: str, first: int, last: int, topic: str = TOPIC) -> None:
    """A click by each user in turn; users with even numbers click in partition 0."""
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
    for number in range(first, last):
        user = number % USERS
        producer.produce(topic, b"/", b"user-%d" % user, partition=user % PARTITIONS)
    producer.flush()


def counted(settings, application=computed_again) -> dict[str, int]:
    rows = StateReader(settings.dir, application).range("clicks").rows
    return dict(rows.select("user", "n").iter_rows())


def clicks(first: int, last: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for number in range(first, last):
        user = f"user-{number % USERS}"
        found[user] = found.get(user, 0) + 1
    return found


def killed_once_it_has_counted(name: str, settings, broker: str, records: int) -> None:
    """A run in a process of its own that dies by SIGKILL with its workers."""
    command = "from weir.pipelines.cli import main; main()"
    arguments = ["run", REFERENCE.format(name), "--dir", str(settings.dir), "--bootstrap-servers", broker]
    killed = subprocess.Popen([sys.executable, "-c", command, *arguments], env=dict(os.environ))
    totals = settings.warehouse / "unlogged" / "totals"
    try:
        wait_for(
            lambda: DeltaTable.is_deltatable(totals) and read_table(totals)["n"].sum() == records, "it has counted", 240
        )
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()


def test_a_lost_store_is_computed_again_by_spark_and_begins_empty_once_its_records_have_expired(
    settings, broker, kafka_admin, spark
):
    kafka_admin.create_topic(TOPIC, PARTITIONS)
    produce(broker, 0, 2_000)
    settings = settings.model_copy(update={"bootstrap_servers": broker})
    totals = settings.warehouse / "unlogged" / "totals"
    killed_once_it_has_counted("computed_again", settings, broker, 2_000)
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


def test_stores_in_memory_go_on_after_kill_9_and_come_back_after_a_restart(settings, broker, kafka_admin, spark):
    topic = "clicks-in-memory"
    kafka_admin.create_topic(topic, PARTITIONS)
    produce(broker, 0, 2_000, topic)
    settings = settings.model_copy(update={"bootstrap_servers": broker})
    killed_once_it_has_counted("in_memory_unlogged", settings, broker, 2_000)
    state = settings.state_dir / "unlogged"
    tasks = [state / f"{topic}_{partition}" for partition in range(PARTITIONS)]
    try:
        counts = {}
        for name, is_emptied in [
            ("in_memory_unlogged", False),
            ("in_memory_unlogged", True),
            ("in_memory", False),
            ("in_memory", True),
        ]:
            before = [current_instance(task) for task in tasks]
            assert all(map(is_in_memory, before))
            if is_emptied:  # as a restart of the machine or its container does it
                for instance in before:
                    shutil.rmtree((instance / "data.mdb").readlink().parent)
            first = 2_000 + 200 * len(counts)
            produce(broker, first, first + 200, topic)
            run(
                REFERENCE.format(name),
                settings,
                bootstrap_servers=broker,
                until_caught_up=True,
                take_over=True,
                spark=spark,
            )
            counts[name, is_emptied] = counted(settings, in_memory)
            assert counts[name, is_emptied] == clicks(0, first + 200)
            assert ([current_instance(task) for task in tasks] == before) is not is_emptied
    finally:
        free(state)
