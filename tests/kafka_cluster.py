"""Two Kafka brokers and their controller, each a process that tests may kill and start again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_server import CLUSTER, free_ports
from tests.waiting import wait_for
from weir.infra.jars import jars
from weir.infra.java import java_executable, shared_classes
from weir.infra.process import end_with_parent

CONTROLLER, BROKERS = 1, (2, 3)
START_LIMIT_S = 120.0


class KafkaCluster:
    """Nodes by number: 1 is the controller, 2 and 3 are brokers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = dict(zip((CONTROLLER, *BROKERS), (*free_ports(), free_ports()[0]), strict=True))
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap_servers = ",".join(f"127.0.0.1:{self._ports[broker]}" for broker in BROKERS)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def start(self, *nodes: int) -> None:
        """Start these, and wait until the brokers among them lead or follow."""
        for node in nodes:
            properties = self._folder / f"{node}.properties"
            if not properties.exists():
                properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties(node).items()))
                self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)).wait()
            self._running[node] = self._java("kafka.Kafka", str(properties))
        for node in {*nodes} & {*BROKERS}:
            wait_for(lambda node=node: node in self._alive(), f"broker {node} is there", START_LIMIT_S, every_s=0.2)

    def kill(self, node: int) -> None:
        """SIGKILL."""
        process = self._running.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def create_topic(self, name: str, leader: int, follower: int) -> None:
        """One partition on both brokers, where either may become the leader with whatever it has."""
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        topic = NewTopic(name, 1, replica_assignment=[[leader, follower]], config=config)
        self.admin.create_topics([topic])[name].result(30)
        wait_for(lambda: self.in_sync(name) == {leader, follower}, "both have the topic", START_LIMIT_S, every_s=0.2)

    def leader(self, topic: str) -> int | None:
        found = self._partition(topic)
        return None if found is None else found.leader

    def in_sync(self, topic: str) -> set[int]:
        found = self._partition(topic)
        return set() if found is None else set(found.isrs)

    def end(self) -> None:
        for node in list(self._running):
            self.kill(node)

    def _partition(self, topic: str):  # type: ignore[no-untyped-def]
        with contextlib.suppress(KafkaException, KeyError):
            return self.admin.list_topics(topic, timeout=2).topics[topic].partitions[0]
        return None

    def _alive(self) -> set[int]:
        with contextlib.suppress(KafkaException):
            return set(self.admin.list_topics(timeout=2).brokers)
        return set()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx256m", *shared_classes("kafka"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        with (self._folder / "kafka.log").open("ab") as log:
            return subprocess.Popen(
                [java_executable(), *options, "-cp", ":".join(map(str, jars("kafka"))), *arguments],
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),
            )

    def _properties(self, node: int) -> dict[str, str]:
        name = "CONTROLLER" if node == CONTROLLER else "CLIENTS"
        address = f"{name}://127.0.0.1:{self._ports[node]}"
        return {
            "process.roles": "controller" if node == CONTROLLER else "broker",
            "node.id": str(node),
            "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{self._ports[CONTROLLER]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": address,
            **({} if node == CONTROLLER else {"inter.broker.listener.name": "CLIENTS"}),
            "log.dirs": str(self._folder / f"data-{node}"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "300",
            "replica.lag.time.max.ms": "2000",
            "unclean.leader.election.interval.ms": "1000",
        }


@contextmanager
def kafka_cluster(folder: Path) -> Iterator[KafkaCluster]:
    """A running one; none of its processes is left after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    cluster = KafkaCluster(folder)
    try:
        cluster.start(CONTROLLER, *BROKERS)
        yield cluster
    finally:
        cluster.end()
