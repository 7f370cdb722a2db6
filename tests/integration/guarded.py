"""A broker that requires a login, and ``weir run`` in a folder whose ``weir.toml`` has it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from weir.infra.jars import jars
from weir.infra.java import java_executable
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.properties import broker_properties
from weir.infra.process import end_with_parent

LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "weir",
    "sasl.password": "open-sesame",
}
START_LIMIT_S, RUN_LIMIT_S = 60, 120
SASL_PROPERTIES = """
listeners=SASL_PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=SASL_PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="weir" password="open-sesame" user_weir="open-sesame";
"""
"""If a key occurs twice, Kafka takes the last one."""


@contextmanager
def guarded_broker(folder: Path) -> Iterator[str]:
    """Bootstrap servers of a broker that requires the login."""
    port, controller_port = free_ports()
    properties = folder / "server.properties"
    properties.write_text(
        broker_properties(folder / "data", port, controller_port)
        + SASL_PROPERTIES.format(port=port, controller_port=controller_port)
    )
    java = [java_executable(), "-Xmx512m", "-cp", ":".join(map(str, jars("kafka")))]
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", "-t", "weir-tests-with-a-login", "-c", properties],
        check=True,
        capture_output=True,
    )
    with open(folder / "broker.log", "wb") as log:
        kafka = subprocess.Popen(
            [*java, "kafka.Kafka", properties], stdout=log, stderr=log, preexec_fn=end_with_parent()
        )
    try:
        bootstrap_servers = f"127.0.0.1:{port}"
        admin = KafkaAdmin(bootstrap_servers, LOGIN)
        until = time.monotonic() + START_LIMIT_S
        while not is_there(admin):
            assert kafka.poll() is None, (folder / "broker.log").read_text()
            assert time.monotonic() < until
        yield bootstrap_servers
    finally:
        kafka.kill()
        kafka.wait()


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


def weir_run(
    folder,
    bootstrap_servers: str,
    login: dict[str, str],
    program: str = "tests.faults.applications:app",
    settings: str = "",
    options: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """``weir run`` in ``folder``, which takes the address, the login and ``settings`` from ``weir.toml`` alone."""
    folder.joinpath("weir.toml").write_text(
        f'bootstrap_servers = "{bootstrap_servers}"\nslots = 2\n{settings}\n[kafka]\n'
        + "".join(f'"{name}" = "{value}"\n' for name, value in login.items())
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from weir.pipelines.cli import main; main()",
            "run",
            program,
            "--until-caught-up",
            *options,
        ],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.getcwd()},
        text=True,
        capture_output=True,
        timeout=RUN_LIMIT_S,
    )
