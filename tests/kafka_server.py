"""A Kafka of one's own for tests: open to every client, or one that requires a login."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from weir.infra.jars import jars
from weir.infra.java import java_executable, shared_classes
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.properties import broker_properties
from weir.infra.process import end_with_parent

START_LIMIT_S = 60
CLUSTER = "weir-tests-cluster-ids"
"""As long as Kafka wants it."""
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "weir",
    "sasl.password": "open-sesame",
}


@contextmanager
def kafka_server(folder: Path, *, with_login: bool = False) -> Iterator[str]:
    """Bootstrap servers of a broker with its data in ``folder``; it has ended after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    port, controller_port = free_ports()
    found = broker_properties(folder / "data", port, controller_port, LOGIN["sasl.password"])
    if not with_login:
        found = _open(found, port, controller_port)
    properties = folder / "server.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in found.items()))
    options = ["-Xmx512m", *shared_classes("kafka"), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    java = [java_executable(), *options, "-cp", ":".join(map(str, jars("kafka")))]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", properties], check=True, capture_output=True
    )
    with open(folder / "broker.log", "wb") as log:
        kafka = subprocess.Popen(
            [*java, "kafka.Kafka", properties], stdout=log, stderr=log, preexec_fn=end_with_parent()
        )
    try:
        bootstrap_servers = f"127.0.0.1:{port}"
        admin = KafkaAdmin(bootstrap_servers, LOGIN if with_login else None)
        until = time.monotonic() + START_LIMIT_S
        while not is_there(admin):
            assert kafka.poll() is None, (folder / "broker.log").read_text()
            assert time.monotonic() < until
        yield bootstrap_servers
    finally:
        kafka.kill()
        kafka.wait()


def _open(properties: dict[str, str], port: int, controller_port: int) -> dict[str, str]:
    """As the embedded broker was before it asked for a login."""
    return {name: value for name, value in properties.items() if "sasl" not in name} | {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }


def values_of(properties: dict[str, str], topic: str, count: int) -> list[bytes | None]:
    """The first ``count`` values of partition 0, as a client with ``properties`` reads them."""
    consumer = Consumer({**properties, "group.id": "reader", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [message.value() for message in consumer.consume(count, timeout=10)]
    consumer.close()
    return values


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def is_there(admin: KafkaAdmin) -> bool:
    try:
        admin.check_reachable(1)
    except BrokerUnreachableError:
        return False
    return True
