"""Runs on a real broker and real Spark: restores, brokers that die, readers in other processes, clean stops."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import islice

import psutil
import pytest
from confluent_kafka import Producer

from infra.control.database import LeaseHeldError
from infra.kafka.admin import KafkaAdmin, UnknownTopicError
from infra.kafka.broker import broker_for
from infra.settings import Settings
from pipelines.spark.runner import run
from state.commit.tables import read_table
from state.engine.instances import current_instance
from state.engine.task_store import open_reader
from state.types import IsolationLevel, TaskId
from tests.faults.applications import PARTITIONS, TOPIC, app, records

pytestmark = [pytest.mark.broker, pytest.mark.spark]

REFERENCE = "tests.faults.applications:app"


def produce(bootstrap_servers: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5})
    for partition, key, value, timestamp_ms in islice(records(last), first, last):
        producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
        producer.poll(0)
    producer.flush()


def events_counted(settings: Settings) -> int:
    return read_table(settings.warehouse / "faulty" / "user_sums")["events"].sum()


@pytest.fixture
def embedded(tmp_path):
    """Settings of a folder, its embedded broker's address, and the topic in it with 2,000 records."""
    settings = Settings(dir=tmp_path / "weir", slots=2)
    with broker_for(settings) as bootstrap_servers:
        KafkaAdmin(bootstrap_servers).create_topic(TOPIC, PARTITIONS)
        produce(bootstrap_servers, 0, 2_000)
        yield settings, bootstrap_servers


def until(condition, what: str, limit_s: float = 60.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {limit_s:.0f} s"
        time.sleep(0.1)


def test_lost_and_distrusted_tasks_restore_by_spark_jobs_and_end_like_the_others(embedded, spark):
    settings, bootstrap_servers = embedded
    run(REFERENCE, settings, bootstrap_servers=bootstrap_servers, until_caught_up=True, spark=spark)
    lost, distrusted = (settings.state_dir / "faulty" / app.topology.task_name(task)
                        for task in (TaskId(1, 2), TaskId(0, 0)))
    folders = [current_instance(task) for task in (lost, distrusted)]
    shutil.rmtree(folders[0])
    (folders[1] / "instance.json").unlink()
    produce(bootstrap_servers, 2_000, 3_000)
    run(REFERENCE, settings, bootstrap_servers=bootstrap_servers, until_caught_up=True, spark=spark)
    assert events_counted(settings) == 3_000
    kinds = read_table(settings.warehouse / "faulty" / "kind_sums")
    assert kinds["events"].sum() == sum(b'"amount": -' not in value for _, _, value, _ in records(3_000))
    assert not {current_instance(task) for task in (lost, distrusted)} & set(folders)
    assert not (lost / "quarantine").exists()
    assert "instance.json cannot be read" in (distrusted / "quarantine" / folders[1].name / "reason.txt").read_text()


def test_a_broker_that_dies_in_mid_run_is_waited_for_and_nothing_is_lost(embedded, spark):
    settings, bootstrap_servers = embedded
    stop, messages = threading.Event(), []
    thread = threading.Thread(target=run, args=(REFERENCE, settings), kwargs={
        "bootstrap_servers": bootstrap_servers, "stop": stop, "spark": spark,
        "on_progress": lambda progress: messages.append(progress.message)})
    thread.start()
    try:
        until(lambda: (settings.warehouse / "faulty" / "user_sums").exists() and events_counted(settings) == 2_000,
              "catching up")
        kill_broker(settings)
        until(lambda: any("no answer from Kafka" in message for message in messages), "the message")
        until(lambda: KafkaAdmin(bootstrap_servers, time_limit_s=2).partition_counts([TOPIC]) == {TOPIC: PARTITIONS}
              if answers(bootstrap_servers) else False, "the broker's return")
        produce(bootstrap_servers, 2_000, 3_000)
        until(lambda: events_counted(settings) == 3_000, "going on")
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def answers(bootstrap_servers: str) -> bool:
    try:
        KafkaAdmin(bootstrap_servers, time_limit_s=2).check_reachable()
    except Exception:
        return False
    return True


def kill_broker(settings: Settings) -> None:
    """SIGKILL for the Java process of the folder's broker."""
    (broker,) = [process for process in psutil.process_iter(["cmdline"])
                 if "kafka.Kafka" in (cmdline := " ".join(process.info["cmdline"] or ()))
                 and str(settings.kafka_dir) in cmdline]
    broker.kill()


def test_readers_in_other_processes_see_committed_state_only_and_never_wait(embedded, spark):
    """A committed total never goes back and never shows what a commit does not hold."""
    settings, bootstrap_servers = embedded
    stop = threading.Event()
    thread = threading.Thread(target=run, args=(REFERENCE, settings), kwargs={
        "bootstrap_servers": bootstrap_servers, "stop": stop, "spark": spark})
    thread.start()
    try:
        task = settings.state_dir / "faulty" / app.topology.task_name(TaskId(0, 1))
        until(lambda: current_instance(task) is not None, "the first epoch")
        reader = subprocess.Popen([sys.executable, "-m", "tests.integration.read_as_fast_as_possible",
                                   str(current_instance(task)), "8"], stdout=subprocess.PIPE, text=True)
        for first in range(2_000, 6_000, 100):
            produce(bootstrap_servers, first, first + 100)
        answer, _ = reader.communicate(timeout=60)
        assert reader.returncode == 0, answer
        reads, states = map(int, answer.split())
        assert reads > 1_000
        assert states > 3
    finally:
        stop.set()
        thread.join(60)
    with open_reader(current_instance(task), IsolationLevel.READ_COMMITTED) as committed:
        stored = list(committed.scan("sums"))
    with open_reader(current_instance(task), IsolationLevel.READ_UNCOMMITTED) as newest:
        assert list(newest.scan("sums")) == stored, "after a clean stop nothing is uncommitted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_epoch_commits_and_exits_zero_within_ten_seconds(embedded, number):
    settings, bootstrap_servers = embedded
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "run", REFERENCE,
               "--dir", str(settings.dir), "--bootstrap-servers", bootstrap_servers]
    weir = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=dict(os.environ))
    until(lambda: (settings.warehouse / "faulty" / "user_sums").exists() and events_counted(settings) == 2_000,
          "catching up")
    children = psutil.Process(weir.pid).children(recursive=True)
    weir.send_signal(number)
    started = time.monotonic()
    _, errors = weir.communicate(timeout=30)
    assert weir.returncode == 0, errors.decode()
    assert time.monotonic() - started < 10
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_driver_that_is_taken_over_is_fenced_writes_nothing_more_and_says_so(embedded, spark):
    settings, bootstrap_servers = embedded
    command = [sys.executable, "-c", "from pipelines.cli import main; main()", "run", REFERENCE,
               "--dir", str(settings.dir), "--bootstrap-servers", bootstrap_servers]
    older = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: (settings.warehouse / "faulty" / "user_sums").exists() and events_counted(settings) == 2_000,
          "catching up")
    with pytest.raises(LeaseHeldError, match=f"process {older.pid}"):
        run(REFERENCE, settings, bootstrap_servers=bootstrap_servers, until_caught_up=True, spark=spark)
    stop, claimed = threading.Event(), threading.Event()
    newer = threading.Thread(target=run, args=(REFERENCE, settings), kwargs={
        "bootstrap_servers": bootstrap_servers, "take_over": True, "stop": stop, "spark": spark,
        "on_progress": lambda progress: claimed.set() if progress.generation == 2 else None})
    newer.start()
    try:
        assert claimed.wait(60)
        produce(bootstrap_servers, 2_000, 3_000)
        _, errors = older.communicate(timeout=60)
        assert older.returncode == 1
        assert "a newer driver has taken over" in errors
        until(lambda: events_counted(settings) == 3_000, "the new driver's commits")
    finally:
        stop.set()
        newer.join(60)



def test_brokers_that_are_away_at_the_start_are_waited_for(tmp_path, spark):
    theirs = Settings(dir=tmp_path / "theirs")
    with broker_for(theirs) as bootstrap_servers:
        KafkaAdmin(bootstrap_servers).create_topic(TOPIC, PARTITIONS)
        produce(bootstrap_servers, 0, 2_000)
    until(lambda: not answers(bootstrap_servers), "the broker's end")
    settings, messages = Settings(dir=tmp_path / "weir", slots=2, bootstrap_servers=bootstrap_servers), []
    thread = threading.Thread(target=run, args=(REFERENCE, settings), kwargs={
        "bootstrap_servers": bootstrap_servers, "until_caught_up": True, "spark": spark,
        "on_progress": lambda progress: messages.append(progress.message)})
    thread.start()
    until(lambda: any("no answer from Kafka" in message for message in messages), "the message")
    with broker_for(theirs) as again:
        assert again == bootstrap_servers
        thread.join(60)
    assert not thread.is_alive()
    assert events_counted(settings) == 2_000


def test_an_unknown_topic_is_named_before_spark_starts(tmp_path, broker):
    settings = Settings(dir=tmp_path / "weir", slots=2, bootstrap_servers=broker)
    with pytest.raises(UnknownTopicError, match=r"topic 'nowhere' does not exist at .*; create it"):
        run("tests.integration.applications:reads_nowhere", settings, bootstrap_servers=broker)
    assert not settings.warehouse.exists(), "nothing was claimed"
