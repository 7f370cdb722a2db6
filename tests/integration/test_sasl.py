"""``weir run`` against your own Kafka that requires a login, configured entirely in ``weir.toml``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import Result
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.databases import PostgresqlServer
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


def test_a_refused_login_is_corrected_in_the_file_or_by_variables(tmp_path, guarded, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def listed() -> Result:
        command = ["kafka", "list", "--bootstrap-servers", guarded, "--dir", str(tmp_path / "weir")]
        return CliRunner().invoke(app, command)

    def write(login: dict[str, str]) -> None:
        (tmp_path / "weir.toml").write_text(
            "[kafka]\n" + "".join(f"{name} = '{value}'\n" for name, value in login.items())
        )

    write({**LOGIN, "sasl.password": "wrong"})
    refused = listed()
    assert refused.exit_code == 1, refused.output
    assert "under [kafka] in weir.toml or as WEIR_KAFKA_* variables" in " ".join(refused.output.split())
    write(LOGIN)
    by_file = listed()
    (tmp_path / "weir.toml").unlink()
    for name, value in LOGIN.items():
        monkeypatch.setenv(f"WEIR_KAFKA_{name.replace('.', '_').upper()}", value)
    for done in (by_file, listed()):
        assert (done.exit_code, TOPIC in done.output) == (0, True), done.output


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """The arguments of all processes that are there at some time during the block, as ``ps`` shows them."""
    seen: set[str] = set()
    has_ended = Event()

    def look() -> None:
        while not has_ended.wait(0.02):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    seen.add(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        has_ended.set()
        thread.join()


def test_secrets_stand_in_no_command_line_log_or_message(tmp_path, guarded):
    """Those of the Kafka clients, of a database and of Spark; also when the URL of the database is refused."""
    sql, spark = "not-to-be-seen-by-sql", "not-to-be-seen-by-spark"
    secrets = (LOGIN["sasl.password"], sql, spark)
    server = PostgresqlServer()
    try:
        with server.database("selling") as database, command_lines() as seen:
            url = database.url.replace("postgres:@", f"postgres:{sql}@")
            assert sql in url
            settings = 'sql_url = "{}"\n[spark]\n"hadoop.fs.s3a.secret.key" = "{}"\n'
            program = "tests.integration.selling:app"
            away = weir_run(
                tmp_path, guarded, LOGIN, program, settings.format(f"mysql://ann:{sql}@host/x", spark), ("--debug",)
            )
            done = weir_run(tmp_path, guarded, LOGIN, program, settings.format(url, spark), ("--debug",))
            assert done.returncode == 0, done.stderr
            assert len(database.rows("sold")) == 2_000
    finally:
        server.close()
    assert away.returncode == 1
    assert "Traceback" in away.stderr
    java = [line for line in seen if "org.apache.spark.deploy.SparkSubmit" in line]
    assert java
    assert [line for line in seen if any(secret in line for secret in secrets)] == []
    texts = {str(path): path.read_bytes() for path in (tmp_path / ".weir").rglob("*") if path.is_file()}
    assert {"selling.log", "spark.log", "control.sqlite"} <= {Path(path).name for path in texts}
    texts["terminal"] = "".join((away.stdout, away.stderr, done.stdout, done.stderr)).encode()
    assert [(name, secret) for name, text in texts.items() for secret in secrets if secret.encode() in text] == []
