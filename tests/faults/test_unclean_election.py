"""Two real brokers, of which the one that lags becomes the leader and takes records back that were read (KIP-320)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from tests.kafka_cluster import BROKERS, KafkaCluster, kafka_cluster
from tests.waiting import wait_for
from weir.infra.settings import Settings
from weir.state.commit.log import newest_commit
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.faults, pytest.mark.broker, pytest.mark.spark]

REFERENCE, TOPIC = "tests.integration.applications:visits", "visits"
FIRST, SECOND = BROKERS
LIMIT_S = 180.0


class Here:
    """The folder of an application that counts the visits of each user, and the brokers it reads from."""

    def __init__(self, settings: Settings, cluster: KafkaCluster, log) -> None:
        self.settings, self.cluster, self._log = settings, cluster, log

    def produce(self, user: str, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap_servers, "log_level": 0})
        for number in range(count):
            producer.produce(TOPIC, b"%d" % number, user)
        assert producer.flush(60) == 0

    @contextmanager
    def run(self, *flags: str):
        servers = ("--bootstrap-servers", self.cluster.bootstrap_servers, "--dir", str(self.settings.dir))
        command = [sys.executable, "-c", "from weir.pipelines.cli import main; main()", "run", REFERENCE]
        with self._log.open("wb") as log:
            process = subprocess.Popen([*command, *flags, *servers], stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def said(self) -> str:
        return " ".join(self._log.read_text(errors="replace").split())

    def totals(self) -> dict[str, int]:
        if newest_commit(self.settings.warehouse, "visits") is None:
            return {}
        rows = read_table(self.settings.warehouse / "visits" / "totals")
        return dict(rows.select("user", "n").iter_rows())

    def leave_behind(self, follower: int, leader: int) -> None:
        """From now on only the leader gets records."""
        self.cluster.kill(follower)
        wait_for(lambda: self.cluster.in_sync(TOPIC) == {leader}, "the follower is out", LIMIT_S, every_s=0.2)

    def elect(self, follower: int, leader: int) -> None:
        """The leader dies, and the one that lags takes its place."""
        self.cluster.kill(leader)
        self.cluster.start(follower)
        wait_for(lambda: self.cluster.leader(TOPIC) == follower, "the follower leads", LIMIT_S, every_s=0.2)


@pytest.fixture
def here(settings, tmp_path):
    with kafka_cluster(tmp_path / "cluster") as cluster:
        cluster.create_topic(TOPIC, FIRST, SECOND)
        yield Here(settings, cluster, tmp_path / "run.log")


def test_records_that_an_election_takes_back_stop_the_run_with_their_range_and_the_choices(here):
    read = {"ann": 100, "bob": 50}
    here.produce("ann", 100)
    with here.run() as process:
        wait_for(lambda: here.totals() == {"ann": 100}, "what there is is read", LIMIT_S)
        here.leave_behind(SECOND, FIRST)
        here.produce("bob", 50)
        wait_for(lambda: here.totals() == read, "what the leader alone has is read, too", LIMIT_S)
        here.elect(SECOND, FIRST)
        assert process.wait(LIMIT_S) == 1
    assert re.search(r"offset 150 of topic 'visits', partition 0.*\b100\b", here.said()), here.said()
    assert f"`weir run {REFERENCE} --accept-lost-records" in here.said()
    assert "`weir reset visits" in here.said()
    assert here.totals() == read
    with here.run("--until-caught-up") as process:
        assert process.wait(LIMIT_S) == 1, "it is refused until that is decided"

    here.produce("cas", 5)
    with here.run("--until-caught-up", "--accept-lost-records") as process:
        assert process.wait(LIMIT_S) == 0, here.said()
    assert here.totals() == {**read, "cas": 5}


def test_a_log_that_has_grown_beyond_what_was_read_is_not_taken_for_the_one_that_was_read(here):
    """The run was held up meanwhile: by offsets alone there is nothing to see."""
    here.produce("ann", 100)
    with here.run() as process:
        wait_for(lambda: here.totals() == {"ann": 100}, "what there is is read", LIMIT_S)
        here.leave_behind(SECOND, FIRST)
        here.produce("bob", 50)
        wait_for(lambda: here.totals() == {"ann": 100, "bob": 50}, "the rest, too", LIMIT_S)
        process.send_signal(signal.SIGSTOP)
        here.elect(SECOND, FIRST)
        here.produce("cas", 200)
        process.send_signal(signal.SIGCONT)
        assert process.wait(LIMIT_S) == 1
    assert re.search(r"offset 150 of topic 'visits', partition 0.*\b100\b", here.said()), here.said()
    assert here.totals() == {"ann": 100, "bob": 50}
