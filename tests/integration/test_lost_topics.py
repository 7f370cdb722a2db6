"""A topic that was recreated, another cluster, lost records, a lost warehouse: each way out that the refusal names is
a command that is run here, on a real broker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest
from confluent_kafka import Producer, TopicPartition
from typer.testing import CliRunner

from tests.kafka_server import kafka_server
from tests.waiting import wait_for
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app as weir
from weir.pipelines.spark import runner
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

REFERENCE, TOPIC, PARTITIONS = "tests.integration.applications:visits", "visits", 2


class Here:
    """A folder with an application, and the commands that are typed there."""

    def __init__(self, settings: Settings, servers: str) -> None:
        self.settings, self.servers, self.admin = settings, servers, KafkaAdmin(servers)
        self.make_anew()

    def weir(self, *arguments: str, servers: str | None = None) -> tuple[int, str]:
        """Exit code and output on one line."""
        brokers = () if arguments[0] == "reset" else ("--bootstrap-servers", servers or self.servers)
        result = CliRunner().invoke(weir, [*arguments, "--dir", str(self.settings.dir), *brokers])
        return result.exit_code, " ".join(result.output.split())

    def run(self, *flags: str, servers: str | None = None) -> tuple[int, str]:
        return self.weir("run", REFERENCE, "--until-caught-up", *flags, servers=servers)

    def reset(self) -> None:
        assert self.weir("reset", "visits", "--yes")[0] == 0

    def produce(self, user: str, count: int, servers: str | None = None) -> None:
        """``count`` records in each partition, the user's name with the partition's number as the key."""
        producer = Producer({"bootstrap.servers": servers or self.servers})
        for partition in range(PARTITIONS):
            for number in range(count):
                producer.produce(TOPIC, b"%d" % number, f"{user}{partition}".encode(), partition=partition)
        assert producer.flush(10) == 0

    def make_anew(self) -> None:
        if TOPIC in self.admin.topics():
            self.admin._client.delete_topics([TOPIC])[TOPIC].result(10)
        assert self.admin.create_topic(TOPIC, PARTITIONS)

    def totals(self) -> dict[str, int]:
        rows = read_table(self.settings.warehouse / "visits" / "totals")
        return dict(rows.select("user", "n").iter_rows())


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """A broker of these tests alone, which make their topic anew."""
    with kafka_server(tmp_path_factory.mktemp("kafka")) as servers:
        yield servers


@pytest.fixture
def here(settings, servers, spark, monkeypatch):
    """Where 100 visits of ``a0`` and ``a1`` were counted."""
    monkeypatch.setattr(runner, "spark_context", lambda *_: nullcontext(spark))
    here = Here(settings, servers)
    here.produce("a", 100)
    code, text = here.run()
    assert code == 0, text
    assert here.totals() == {"a0": 100, "a1": 100}
    return here


def test_a_topic_made_anew_is_refused_and_then_read_from_its_start_or_after_a_reset(here):
    here.make_anew()
    here.produce("b", 275)
    code, text = here.run()
    assert code == 1
    found = re.search(r"the topic was deleted and recreated \(its id was (\S+) and is (\S+) now\)", text)
    assert found is not None, text
    assert found[1] == newest_commit(here.settings.warehouse, "visits").topic_ids[TOPIC]
    assert found[2] == here.admin.topic_ids([TOPIC])[TOPIC]
    code, text = here.weir("plan", REFERENCE)
    assert (code, "recreated" in text, f"`weir run {REFERENCE} --accept-lost-records --dir " in text) == (3, True, True)
    shown = here.weir("plan", REFERENCE, "--json")[1]
    assert [each["resume"] for each in json.loads(shown)["lost_positions"]] == [0, 0]

    code, text = here.run("--accept-lost-records")
    assert (code, "550 records" in text) == (0, True), text
    assert here.totals() == {"a0": 100, "a1": 100, "b0": 275, "b1": 275}
    here.produce("b", 5)
    assert here.run("--accept-lost-records")[0] == 0
    assert here.totals() == {"a0": 100, "a1": 100, "b0": 280, "b1": 280}

    here.make_anew()
    here.produce("c", 10)
    assert here.run()[0] == 1
    here.reset()
    assert here.run()[0] == 0
    assert here.totals() == {"c0": 10, "c1": 10}


def test_a_topic_deleted_under_a_run_is_created_again_and_read_from_its_start(here, tmp_path):
    here.produce("b", 20)
    read = {"a0": 100, "a1": 100, "b0": 20, "b1": 20}
    command = ["run", REFERENCE, "--dir", str(here.settings.dir), "--bootstrap-servers", here.servers]
    with (tmp_path / "run.log").open("w+") as log:
        code = "from weir.pipelines.cli import main; main()"
        process = subprocess.Popen([sys.executable, "-c", code, *command], stdout=log, stderr=log)
        try:
            wait_for(lambda: here.totals() == read, "what there is is read")
            here.admin.delete_topic(TOPIC)
            assert process.wait(60) == 1
        finally:
            process.kill()
        log.seek(0)
        text = " ".join(log.read().split())
    assert re.search(
        r"offset 120 of topic 'visits', partition 0, but the topic was deleted \(and so in 1 other", text
    ), text
    create, accept = "kafka create visits --partitions 2", "--accept-lost-records"
    assert f"`weir {create}" in text
    assert f"`weir run {REFERENCE} {accept}" in text
    assert here.weir(*create.split())[0] == 0
    here.produce("c", 10)
    assert here.run(accept)[0] == 0
    assert here.totals() == {**read, "c0": 10, "c1": 10}


def test_another_cluster_with_a_topic_of_the_same_name_is_refused_and_the_right_one_is_read_on(here, tmp_path):
    with kafka_server(tmp_path / "elsewhere") as elsewhere:
        KafkaAdmin(elsewhere).create_topic(TOPIC, PARTITIONS)
        here.produce("b", 275, servers=elsewhere)
        code, text = here.run(servers=elsewhere)
        assert (code, "recreated" in text, "--bootstrap-servers" in text) == (1, True, True), text
    here.produce("a", 10)
    assert here.run()[0] == 0
    assert here.totals() == {"a0": 110, "a1": 110}


def test_records_removed_before_they_were_read_are_refused_and_then_passed_over(here):
    here.produce("b", 50)
    (deleted,) = here.admin._client.delete_records([TopicPartition(TOPIC, 1, 130)]).values()
    deleted.result(10)
    code, text = here.run()
    assert (code, "partition 1, which begins at 130" in text, "read on at offset 130" in text) == (1, True, True), text
    assert here.run("--accept-lost-records")[0] == 0
    assert here.totals() == {"a0": 100, "a1": 100, "b0": 50, "b1": 20}


@pytest.mark.parametrize("lost", ["", "_commits"])
def test_a_lost_warehouse_is_refused_until_it_is_back_or_the_application_is_reset(here, tmp_path, lost):
    folder = here.settings.warehouse / "visits" / lost
    shutil.copytree(folder, tmp_path / "copy")
    shutil.rmtree(folder)
    for _ in range(2):
        code, text = here.run()
        assert (code, "commit log" in text, "`weir reset visits --dir " in text) == (1, True, True), text
    code, text = here.weir("plan", REFERENCE)
    assert (code, "weir reset visits" in text) == (3, True), text
    shutil.copytree(tmp_path / "copy", folder)
    here.produce("a", 10)
    assert here.run()[0] == 0
    assert here.totals() == {"a0": 110, "a1": 110}
    shutil.rmtree(folder)
    assert here.run()[0] == 1
    here.reset()
    assert here.run()[0] == 0
    assert here.totals() == {"a0": 110, "a1": 110}
