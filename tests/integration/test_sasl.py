"""``weir run`` against your own Kafka that requires a login, configured entirely in ``weir.toml``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest
from click.testing import Result
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.faults.applications import PARTITIONS, TOPIC, records
from weir.infra.jars import jars
from weir.infra.java import java_executable
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin
from weir.infra.kafka.properties import broker_properties
from weir.infra.process import end_with_parent
from weir.pipelines.cli.app import app
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]

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


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Bootstrap servers of a broker that requires the login, with 2,000 records."""
    folder = tmp_path_factory.mktemp("guarded")
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
        admin.create_topic(TOPIC, PARTITIONS)
        producer = Producer({**LOGIN, "bootstrap.servers": bootstrap_servers})
        for partition, key, value, timestamp_ms in records(2_000):
            producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
        producer.flush()
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


def weir_run(folder, bootstrap_servers: str, login: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """``weir run`` in ``folder``, which takes the address and the login from ``weir.toml`` alone."""
    folder.joinpath("weir.toml").write_text(
        f'bootstrap_servers = "{bootstrap_servers}"\nslots = 2\n[kafka]\n'
        + "".join(f'"{name}" = "{value}"\n' for name, value in login.items())
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from weir.pipelines.cli import main; main()",
            "run",
            "tests.faults.applications:app",
            "--until-caught-up",
        ],
        cwd=folder,
        env={**environment, "PYTHONPATH": os.getcwd()},
        text=True,
        capture_output=True,
        timeout=RUN_LIMIT_S,
    )


def test_a_wrong_password_is_one_clear_error_and_the_right_one_in_weir_toml_serves_driver_and_workers(
    tmp_path, guarded
):
    done = weir_run(tmp_path, guarded, {**LOGIN, "sasl.password": "wrong"})
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "refused the login" in done.stderr
    assert "sasl.username and sasl.password under [kafka]" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / ".weir" / "warehouse").exists()
    done = weir_run(tmp_path, guarded, LOGIN)
    assert done.returncode == 0, done.stderr
    assert read_table(tmp_path / ".weir" / "warehouse" / "faulty" / "user_sums")["events"].sum() == 2_000
    assert LOGIN["sasl.password"] not in (tmp_path / ".weir" / "logs" / "faulty.log").read_text()


def test_a_refused_login_is_corrected_by_options_or_variables(tmp_path, guarded, monkeypatch):
    def listed(options: dict[str, str]) -> Result:
        pairs = [part for name, value in options.items() for part in ("--set", f"kafka.{name}={value}")]
        command = ["kafka", "list", "--bootstrap-servers", guarded, "--dir", str(tmp_path / "weir"), *pairs]
        return CliRunner().invoke(app, command)

    refused = listed({**LOGIN, "sasl.password": "wrong"})
    assert refused.exit_code == 1, refused.output
    assert "under [kafka], WEIR_KAFKA_* or --set kafka.*" in " ".join(refused.output.split())
    by_options = listed(LOGIN)
    for name, value in LOGIN.items():
        monkeypatch.setenv(f"WEIR_KAFKA_{name.replace('.', '_').upper()}", value)
    for done in (by_options, listed({})):
        assert (done.exit_code, TOPIC in done.output) == (0, True), done.output
