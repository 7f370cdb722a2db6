"""Runs on a real broker and real Spark: restores, brokers that die, readers in other processes, clean stops."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain
from urllib.request import urlopen

import polars as pl
import psutil
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typer.testing import CliRunner

from tests.faults.applications import PARTITIONS, START_MS, TOPIC, app, records
from tests.faults.outcome import assert_same, outcome
from tests.integration.place import Place, events_counted, produce
from tests.waiting import wait_for
from weir.infra.control.database import LeaseHeldError
from weir.infra.kafka.admin import KafkaAdmin, UnknownTopicError
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.operations.registry import register
from weir.pipelines.spark.profile import EPOCHS, SHARES
from weir.pipelines.spark.runner import run
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_table
from weir.state.engine.instances import current_instance
from weir.state.engine.views import open_reader
from weir.state.types import IsolationLevel, TaskId

pytestmark = [pytest.mark.broker, pytest.mark.spark]

REFERENCE, SERVERS = "tests.faults.applications:app", "bootstrap.servers"


@pytest.fixture
def place(settings, broker, kafka_admin) -> Callable[[str], Place]:
    """``place(name)`` is the place of an application, on the shared broker."""
    return lambda name: Place(name, settings.model_copy(update={"bootstrap_servers": broker}), kafka_admin)


@pytest.fixture
def own_broker(tmp_path):
    """Settings of a folder, and what a client of its embedded broker needs, which no other test uses."""
    settings = Settings(dir=tmp_path / "weir", slots=2)
    with broker_for(settings) as (servers, settings):
        yield settings, {**settings.kafka, SERVERS: servers}


@pytest.fixture
def embedded(own_broker):
    """``own_broker`` with 2,000 records in the topic."""
    _, kafka = own_broker
    KafkaAdmin(kafka[SERVERS], kafka).create_topic(TOPIC, PARTITIONS)
    produce(kafka, 0, 2_000)
    return own_broker


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def require_profile(folder, there):
    """That the tables of a profiled run are about all its tasks, with shares that add up, and that there is a flame
    graph of the driver and of each slot."""
    epochs = pl.read_csv(folder / EPOCHS, schema_overrides={"task": pl.String})
    assert set(epochs["task"]) == {f"{index}_{partition}" for index in (0, 1) for partition in range(PARTITIONS)}
    assert epochs.filter(pl.col("task").str.starts_with("0_"))["records"].sum() == 2_000
    assert epochs.filter(abs(pl.sum_horizontal(SHARES) - 1) > 0.01).is_empty()
    assert epochs.filter(pl.col("spark") <= 0).is_empty(), "plans and receipts travel"
    assert all(epochs[share].sum() > 0 for share in SHARES)
    graphs = {path.name: path.read_text() for path in folder.glob("*.html")}
    slots = [f"generation-1-slot-{slot}.html" for slot in range(there.settings.slots)]
    assert sorted(graphs) == ["driver.html", *slots]
    assert "run_epoch" in graphs["driver.html"]
    assert all("_carry_out" in graphs[slot] for slot in slots)


def test_lost_and_untrusted_tasks_are_restored_by_spark_jobs_and_end_like_the_others(place, spark, tmp_path):
    there = place("restored")
    profile = tmp_path / "profile"
    there.run(until_caught_up=True, spark=spark, profile=profile)
    require_profile(profile, there)
    lost, distrusted = (there.state_of(task) for task in (TaskId(1, 2), TaskId(0, 0)))
    folders = [current_instance(task) for task in (lost, distrusted)]
    shutil.rmtree(folders[0])
    (folders[1] / "instance.json").unlink()
    there.produce(2_000, 3_000)
    pages = []
    port = free_port()

    def scrape(progress):
        if progress.readings:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                pages.append(response.read().decode())

    there.settings = there.settings.model_copy(update={"metrics_port": port})
    there.run(until_caught_up=True, spark=spark, on_progress=scrape)
    assert any('stream_task_metrics_restore_total{application_id="faulty",task_id="1_2"}' in page for page in pages)
    for name in ("thread_metrics_records_lag", "thread_metrics_uncommitted_bytes"):
        assert f'kafka_streams_stream_{name}{{application_id="faulty"}} 0.0' in pages[-1].splitlines()
    assert 'stream_task_metrics_records_lag{application_id="faulty",task_id="0_1"} 0.0' in pages[-1]
    assert "stream_state_metrics_map_size_bytes" in pages[-1]
    assert 'store_id="' not in pages[-1], "what each store does is measured at debug"
    (status,) = json.loads(CliRunner().invoke(weir, ["status", "--json", "--dir", str(there.settings.dir)]).stdout)[
        "applications"
    ]
    told = {(reading["name"], reading["tags"].get("task-id")): reading["value"] for reading in status["metrics"]}
    assert told["restore-total", "0_0"] > 0
    assert told["process-total", None] >= 1_000
    assert there.has_counted(3_000)
    kinds = read_table(there.warehouse / "kind_sums")
    assert kinds["events"].sum() == sum(b'"amount": -' not in value for _, _, value, _ in records(3_000))
    assert not {current_instance(task) for task in (lost, distrusted)} & set(folders)
    assert not (lost / "quarantine").exists()
    assert "instance.json cannot be read" in (distrusted / "quarantine" / folders[1].name / "reason.txt").read_text()


def test_a_run_waits_for_a_broker_that_dies_and_loses_nothing(embedded, spark):
    settings, kafka = embedded
    stop, messages = threading.Event(), []
    thread = threading.Thread(
        target=run,
        args=(REFERENCE, settings),
        kwargs={
            "bootstrap_servers": kafka[SERVERS],
            "stop": stop,
            "spark": spark,
            "on_progress": lambda progress: messages.append(progress.message),
        },
    )
    thread.start()
    try:
        wait_for(lambda: events_counted(settings) == 2_000, "it has caught up")
        kill_broker(settings)
        wait_for(lambda: any("no answer from Kafka" in message for message in messages), "it is told")
        wait_for(
            lambda: (
                KafkaAdmin(kafka[SERVERS], kafka, time_limit_s=2).partition_counts([TOPIC]) == {TOPIC: PARTITIONS}
                if answers(kafka)
                else False
            ),
            "the broker is back",
        )
        produce(kafka, 2_000, 3_000)
        wait_for(lambda: events_counted(settings) == 3_000, "it has read on")
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def answers(kafka: dict[str, str]) -> bool:
    try:
        KafkaAdmin(kafka[SERVERS], kafka, time_limit_s=2).check_reachable()
    except Exception:
        return False
    return True


def kill_broker(settings: Settings) -> None:
    """Kill the Java process of the folder's broker with SIGKILL."""
    (broker,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "kafka.Kafka" in (cmdline := " ".join(process.info["cmdline"] or ())) and str(settings.kafka_dir) in cmdline
    ]
    broker.kill()


def test_readers_in_other_processes_see_committed_state_only_and_never_wait(place, spark):
    """A committed total never goes back and never includes what no commit holds."""
    there, stop = place("read"), threading.Event()
    thread = threading.Thread(target=there.run, kwargs={"stop": stop, "spark": spark})
    thread.start()
    try:
        task = there.state_of(TaskId(0, 1))
        wait_for(lambda: current_instance(task) is not None, "the first epoch is there")
        reader = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.read_as_fast_as_possible", str(current_instance(task)), "8"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for first in range(2_000, 6_000, 100):
            there.produce(first, first + 100)
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


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_finishes_the_epoch_commits_and_exits_zero_within_ten_seconds(place, number):
    there = place("stopped")
    weir = there.start()
    wait_for(lambda: there.has_counted(2_000), "it has caught up")
    children = psutil.Process(weir.pid).children(recursive=True)
    weir.send_signal(number)
    started = time.monotonic()
    _, errors = weir.communicate(timeout=30)
    assert weir.returncode == 0, errors
    assert time.monotonic() - started < 10
    _, alive = psutil.wait_procs(children, timeout=10)
    assert not alive


def test_a_driver_that_is_overtaken_is_fenced_writes_nothing_more_and_says_so(place, spark):
    there = place("overtaken")
    older = there.start()
    wait_for(lambda: there.has_counted(2_000), "it has caught up")
    with pytest.raises(LeaseHeldError, match=f"process {older.pid}"):
        there.run(until_caught_up=True, spark=spark)
    stop, claimed = threading.Event(), threading.Event()
    newer = threading.Thread(
        target=there.run,
        kwargs={
            "take_over": True,
            "stop": stop,
            "spark": spark,
            "on_progress": lambda progress: claimed.set() if progress.generation == 2 else None,
        },
    )
    newer.start()
    try:
        assert claimed.wait(60)
        there.produce(2_000, 3_000)
        _, errors = older.communicate(timeout=60)
        assert older.returncode == 1
        assert "a newer driver has taken over" in errors
        wait_for(lambda: there.has_counted(3_000), "the new driver has committed")
    finally:
        stop.set()
        newer.join(60)


def test_a_run_waits_for_brokers_that_are_away_at_the_start(tmp_path, spark):
    theirs = Settings(dir=tmp_path / "theirs")
    with broker_for(theirs) as (servers, theirs):
        kafka = {**theirs.kafka, SERVERS: servers}
        KafkaAdmin(servers, kafka).create_topic(TOPIC, PARTITIONS)
        produce(kafka, 0, 2_000)
    wait_for(lambda: not answers(kafka), "the broker has ended")
    settings = Settings(dir=tmp_path / "weir", slots=2, bootstrap_servers=servers, kafka=theirs.kafka)
    messages = []
    thread = threading.Thread(
        target=run,
        args=(REFERENCE, settings),
        kwargs={
            "bootstrap_servers": servers,
            "until_caught_up": True,
            "spark": spark,
            "on_progress": lambda progress: messages.append(progress.message),
        },
    )
    thread.start()
    wait_for(lambda: any("no answer from Kafka" in message for message in messages), "it is told")
    with broker_for(theirs) as (again, _):
        assert again == servers
        thread.join(60)
    assert not thread.is_alive()
    assert events_counted(settings) == 2_000


def test_an_unknown_topic_is_named_before_spark_starts(tmp_path, broker):
    settings = Settings(dir=tmp_path / "weir", slots=2, bootstrap_servers=broker)
    with pytest.raises(UnknownTopicError, match=r"topic 'nowhere' does not exist at .*; create it"):
        run("tests.integration.applications:reads_nowhere", settings, bootstrap_servers=broker)
    assert not settings.warehouse.exists(), "nothing was claimed"


def test_after_a_reset_that_asked_first_a_run_starts_from_nothing_and_gives_the_same_tables(place, spark):
    there = place("reset")
    folders = there.warehouse, there.state
    register(there.settings, "faulty", there.reference)
    there.run(until_caught_up=True, spark=spark)
    before = outcome(*folders)
    reset = partial(CliRunner().invoke, weir, ["reset", "faulty", "--dir", str(there.settings.dir)])

    declined = reset(input="n\n")
    assert declined.exit_code == 1
    assert f"Delete faulty's tables in {folders[0]}" in declined.stderr
    assert_same(outcome(*folders), before)

    assert reset(input="y\n").exit_code == 0
    assert not any(folder.exists() for folder in folders)
    again = there.run(until_caught_up=True, spark=spark)
    assert (again.generation, again.records_in) == (1, 2_000)
    assert_same(outcome(*folders), before)


def test_a_compacted_topic_is_read_across_its_gaps_and_each_remaining_record_once(own_broker, spark):
    """2,000 records of 40 keys: all but the last of each key are cleaned away, far more than an epoch reads."""
    settings, kafka = own_broker
    look_for_work_often(kafka)
    KafkaAdmin(kafka[SERVERS], kafka).create_topic(
        TOPIC, PARTITIONS, {"cleanup.policy": "compact", "segment.ms": "100000", "min.cleanable.dirty.ratio": "0.01"}
    )
    produce(kafka, 0, 2_000)
    producer = Producer(kafka)
    for partition in range(PARTITIONS):  # an hour later: this begins a segment, since the newest one is never cleaned
        producer.produce(
            TOPIC,
            b'{"amount": 1, "kind": "kind-0"}',
            f"user-{partition}",
            partition=partition,
            timestamp=START_MS + 3_600_000,
        )
    producer.flush()
    kept = {}

    def is_cleaned() -> bool:
        kept.update({partition: records_left(kafka, partition) for partition in range(PARTITIONS)})
        return all(left[0].offset() > 100 for left in kept.values())

    wait_for(is_cleaned, "it is cleaned")
    stop = threading.Event()
    limit = threading.Timer(60, stop.set)
    limit.start()
    few = settings.model_copy(update={"max_epoch_records": 8 * 40})
    summary = run(REFERENCE, few, bootstrap_servers=kafka[SERVERS], until_caught_up=True, spark=spark, stop=stop)
    limit.cancel()
    assert summary.reason == "caught_up", "a gap must not hold it up"
    assert summary.records_in == sum(map(len, kept.values())) < 100
    sums = Counter()
    for record in chain.from_iterable(kept.values()):
        sums[record.key().decode()] += json.loads(record.value())["amount"]
    found = read_table(settings.warehouse / "faulty" / "user_sums")
    assert dict(found.select("user", "total").iter_rows()) == sums
    commit = newest_commit(settings.warehouse, "faulty")
    reached = {
        partition: commit.tasks[app.topology.task_name(TaskId(0, partition))].positions[TOPIC][partition]
        for partition in range(PARTITIONS)
    }
    assert reached == {partition: left[-1].offset() + 1 for partition, left in kept.items()}


def look_for_work_often(kafka: dict[str, str]) -> None:
    """Settings of the broker's cleaner, which otherwise rests for 15 s."""
    entry = ConfigEntry("log.cleaner.backoff.ms", "100", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient(kafka)
    admin.incremental_alter_configs([resource])[resource].result(10)


def records_left(kafka: dict[str, str], partition: int) -> list[Message]:
    """All records that a partition holds now, read by a plain consumer."""
    consumer = Consumer({**kafka, "group.id": "plain", "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, partition, OFFSET_BEGINNING)])
    found = []
    while (message := consumer.poll(10)) is not None and message.error() is None:
        found.append(message)
    consumer.close()
    assert message is not None, "the partition's end was not reached"
    return found
