"""The embedded broker asks for a login, which stands in files for the folder's owner and nowhere else."""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException, Producer
from typer.testing import CliRunner

from tests.kafka_server import kafka_server, values_of
from tests.waiting import wait_for
from weir.infra.jars import jars
from weir.infra.java import java_executable
from weir.infra.kafka.admin import BrokerUnreachableError, KafkaAdmin, LoginRefusedError
from weir.infra.kafka.broker import EmbeddedBroker
from weir.infra.kafka.files import BrokerFiles
from weir.infra.kafka.login import PASSWORD, read_properties, write_properties
from weir.infra.settings import Settings
from weir.pipelines.cli.app import app

SERVERS = "bootstrap.servers"
PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
TOPIC, VALUES = "written-before", [b"%d" % number for number in range(10)]
TOOL_LIMIT_S = 60
DESCRIBE_CLUSTER = struct.pack(">hhih4sB", 60, 1, 7, 4, b"weir", 0) + struct.pack(">bbB", 0, 2, 0)
"""A request that a controller answers: its key and version, a number, the client; then what to describe."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[BrokerFiles]:
    """The running broker of a folder where an earlier version, whose broker asked for no login, has left records."""
    settings = Settings(dir=tmp_path_factory.mktemp("guarded"))
    broker = EmbeddedBroker(settings.kafka_dir)
    with kafka_server(settings.kafka_dir) as servers:
        KafkaAdmin(servers).create_topic(TOPIC, 1)
        producer = Producer({SERVERS: servers})
        for value in VALUES:
            producer.produce(TOPIC, value)
        assert producer.flush(10) == 0
        assert controller_answers(broker.files)
    with broker.used():
        yield broker.files
    wait_for(lambda: not broker.is_supervised(), "the broker has ended")


def controller_answers(files: BrokerFiles) -> bool:
    """Whether the controller tells a process without a login about the cluster."""
    port = int(read_properties(files.properties)["controller.quorum.voters"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(struct.pack(">i", len(DESCRIBE_CLUSTER)) + DESCRIBE_CLUSTER)
        return bool(connection.recv(4))


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes().decode(errors="replace")


@pytest.mark.broker
def test_records_of_a_folder_without_a_login_stay_readable_with_one(guarded):
    assert values_of(read_properties(guarded.client), TOPIC, len(VALUES)) == VALUES


@pytest.mark.broker
@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({PASSWORD: "wrong"}, LoginRefusedError),
        ({"sasl.username": "admin"}, LoginRefusedError),
        ({"security.protocol": "PLAINTEXT"}, BrokerUnreachableError),
    ],
    ids=["wrong password", "another user", "no login"],
)
def test_whoever_does_not_have_its_login_is_refused(guarded, changes, refusal):
    client = read_properties(guarded.client)
    with pytest.raises(refusal):
        KafkaAdmin(client[SERVERS], client | changes, time_limit_s=2).topics()
    producer = Producer({**client, **changes, "log_level": 0})
    producer.produce(TOPIC, b"forged")
    assert producer.flush(1) == 1
    producer.purge()
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=1)
    assert KafkaAdmin(client[SERVERS], client).end_offsets([(TOPIC, 0)]) == {(TOPIC, 0): len(VALUES)}


@pytest.mark.broker
def test_its_controller_refuses_whoever_has_no_login(guarded):
    assert not controller_answers(guarded)


@pytest.mark.broker
def test_its_password_stands_in_files_for_the_owner_alone(guarded):
    password = read_properties(guarded.client)[PASSWORD]
    private = {path.name for path in (guarded.client, guarded.java_client, guarded.properties)}
    assert {name for name, text in texts_of(guarded.folder) if password in text} == private
    assert {stat.S_IMODE((guarded.folder / name).stat().st_mode) for name in private} == {0o600}
    commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    assert any(str(guarded.properties) in command for command in commands)
    assert [command for command in commands if password in command] == []


@pytest.mark.broker
def test_kafkas_own_tools_take_the_file_for_java(guarded):
    tool = [java_executable(), "-cp", ":".join(map(str, jars("kafka"))), "kafka.admin.ConfigCommand"]
    servers = read_properties(guarded.client)[SERVERS]
    asked = ["--bootstrap-server", servers, "--describe", "--entity-type", "topics", "--entity-name", TOPIC]
    done = subprocess.run(
        [*tool, *asked, "--command-config", guarded.java_client], capture_output=True, text=True, timeout=TOOL_LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert f"configs for topic {TOPIC} are" in done.stdout


@pytest.mark.broker
def test_the_example_of_the_page_about_settings_produces(guarded, tmp_path, monkeypatch):
    [example] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    client = read_properties(guarded.client)
    KafkaAdmin(client[SERVERS], client).create_topic("orders", 1)
    (tmp_path / ".weir").mkdir()
    (tmp_path / ".weir" / "kafka").symlink_to(guarded.folder)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert values_of(client, "orders", 1) == [b'{"amount": 5, "country": "DE"}']


@pytest.mark.broker
def test_commands_that_name_its_address_take_the_login_from_variables(guarded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    login = read_properties(guarded.client)
    command = ["kafka", "list", "--bootstrap-servers", login.pop(SERVERS)]
    refused = CliRunner().invoke(app, command)
    assert refused.exit_code == 1
    said = (
        "if it asks for a login, security.protocol and sasl.* under [kafka] in weir.toml or as WEIR_KAFKA_* variables"
    )
    assert said in " ".join(refused.stderr.split())
    for name, value in login.items():
        monkeypatch.setenv(f"WEIR_KAFKA_{name.replace('.', '_').upper()}", value)
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, TOPIC in done.stdout) == (0, True), done.output


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o600), (0o027, 0o600), (0o007, 0o660)])
def test_a_group_that_may_write_the_folder_may_read_the_login(tmp_path, umask, mode):
    """It could not use the broker otherwise; one that may only read cannot start or use it anyway."""
    path = tmp_path / "client.properties"
    path.write_text("as another program may have left it")
    before = os.umask(umask)
    try:
        write_properties(path, {"sasl.username": "weir", PASSWORD: "a=b"})
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert read_properties(path) == {"sasl.username": "weir", PASSWORD: "a=b"}


def test_a_broker_that_an_earlier_version_has_started_is_used_without_a_login(tmp_path):
    assert EmbeddedBroker(tmp_path).login() == {}
