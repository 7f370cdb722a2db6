"""A folder in which one of ``tests.integration.applications`` runs, on a broker that several tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable

from tests.faults.applications import PARTITIONS, TOPIC, records
from tests.integration import applications
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.settings import Settings
from weir.pipelines.spark.runner import RunSummary, run
from weir.state.commit.tables import read_table
from weir.state.types import TaskId


def produce(properties: dict[str, str], first: int, last: int, topic: str = TOPIC) -> None:
    producer = Producer({**properties, "linger.ms": 5})
    for partition, key, value, timestamp_ms in islice(records(last), first, last):
        producer.produce(topic, value, key, partition=partition, timestamp=timestamp_ms)
        producer.poll(0)
    producer.flush()


def events_counted(settings: Settings) -> int:
    folder = settings.warehouse / "faulty" / "user_sums"
    return read_table(folder)["events"].sum() if DeltaTable.is_deltatable(folder) else 0


class Place:
    """A folder for one of ``tests.integration.applications``, whose topic has 2,000 records."""

    def __init__(self, name: str, settings: Settings, admin: KafkaAdmin) -> None:
        self.settings, self.app = settings, getattr(applications, name)
        self.reference, (self.topic,) = f"tests.integration.applications:{name}", self.app.topology.topics()
        self.warehouse, self.state = settings.warehouse / "faulty", settings.state_dir / "faulty"
        if admin.create_topic(self.topic, PARTITIONS):
            self.produce(0, 2_000)

    def produce(self, first: int, last: int) -> None:
        produce({"bootstrap.servers": self.settings.bootstrap_servers}, first, last, self.topic)

    def run(self, **options) -> RunSummary:
        return run(self.reference, self.settings, bootstrap_servers=self.settings.bootstrap_servers, **options)

    def start(self) -> subprocess.Popen[str]:
        """``weir run`` in a separate process."""
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from weir.pipelines.cli import main; main()",
                "run",
                self.reference,
                "--dir",
                str(self.settings.dir),
                "--bootstrap-servers",
                self.settings.bootstrap_servers,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=dict(os.environ),
            text=True,
        )

    def name_of(self, task: TaskId) -> str:
        return self.app.topology.task_name(task)

    def state_of(self, task: TaskId) -> Path:
        return self.state / self.name_of(task)

    def has_counted(self, events: int) -> bool:
        return events_counted(self.settings) == events
