"""Runs with real Spark and a real broker whose warehouse is on a server that speaks S3: killed, and after their disk is
lost. The store's secret can be read nowhere."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping

import pytest
from confluent_kafka import Producer

from tests.traces import command_lines, texts_of
from tests.waiting import wait_for
from weir.state.commit.log import newest_commit
from weir.state.commit.record import TaskCommit
from weir.state.commit.tables import read_table
from weir.state.storage.places import folder_at, is_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TOPIC, PARTITIONS, USERS, PAGES = "clicks-distant", 2, 10, 7


def produce(broker: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 5})
    for number in range(first, last):
        user = number % USERS
        producer.produce(TOPIC, b"page-%d" % (number % PAGES), b"user-%d" % user, partition=user % PARTITIONS)
    producer.flush()


def test_a_run_that_is_killed_and_one_that_has_lost_its_disk_go_on_from_the_store(
    settings, broker, kafka_admin, s3_bucket, monkeypatch, capfd
):
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}/warehouse")
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    kafka_admin.create_topic(TOPIC, PARTITIONS)
    folder = folder_at(f"{s3_bucket}/warehouse") / "distant"

    def weir(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", "from weir.pipelines.cli import main; main()"]
        return [*command, *arguments, "--dir", str(settings.dir)]

    def run(*flags: str) -> list[str]:
        reference = "tests.integration.applications:distant"
        return weir("run", reference, "--bootstrap-servers", broker, *flags)

    def counted(table: str, key: str) -> Counter:
        rows = read_table(folder / table) if is_table(folder / table) else None
        return Counter() if rows is None else Counter(dict(rows.select(key, "n").iter_rows()))

    def committed() -> Mapping[str, TaskCommit]:
        return newest_commit(folder.parent, "distant").tasks

    def assert_counted(records: int) -> None:
        assert counted("by_user", "user") == Counter(f"user-{number % USERS}" for number in range(records))
        assert counted("by_page", "page") == Counter(f"page-{number % PAGES}" for number in range(records))

    with command_lines() as seen:
        produce(broker, 0, 1_000)
        killed = subprocess.Popen(run(), env=dict(os.environ))
        try:
            wait_for(lambda: counted("by_page", "page").total() == 1_000, "it has counted", 240)
            subprocess.run(weir("snapshot", "distant"), env=dict(os.environ), check=True, timeout=120)
            produce(broker, 1_000, 1_500)
            wait_for(lambda: counted("by_user", "user").total() > 1_000, "it goes on", 240)
            wait_for(lambda: all(task.snapshot for task in committed().values()), "snapshots are listed", 120)
        finally:
            os.kill(killed.pid, signal.SIGKILL)
            killed.wait()
        produce(broker, 1_500, 2_000)
        subprocess.run(run("--until-caught-up", "--take-over"), env=dict(os.environ), check=True, timeout=240)
        assert_counted(2_000)
        shutil.rmtree(settings.state_dir)
        produce(broker, 2_000, 2_500)
        subprocess.run(run("--until-caught-up"), env=dict(os.environ), check=True, timeout=240)
        assert_counted(2_500)
        assert not (settings.dir / "warehouse").exists()
        for command in (["verify", "distant"], ["show", "distant", "by_page"], ["compact", "distant"], ["status"]):
            subprocess.run(weir(*command), env=dict(os.environ), check=True, timeout=120)
    assert_counted(2_500)
    texts = [("terminal", "".join(capfd.readouterr())), *texts_of(settings.dir)]
    assert "by_page" in texts[0][1]
    assert {"distant.log", "spark.log"} <= {os.path.basename(path) for path, _ in texts}
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in seen)
    assert [line for line in seen if secret in line] == []
    assert [path for path, text in texts if secret in text] == []
