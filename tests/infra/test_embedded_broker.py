"""The embedded broker belongs to its folder: started by its first user, ended after its last, kept on request."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.kafka_server import values_of
from tests.waiting import wait_for
from weir.infra.jars import JarsError
from weir.infra.java import class_archive
from weir.infra.kafka import broker as broker_module
from weir.infra.kafka import supervisor as supervisor_module
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import BrokerStartError, EmbeddedBroker, broker_for
from weir.infra.kafka.login import read_properties
from weir.infra.process import start_ticks

pytestmark = pytest.mark.broker

USER = """
import sys
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
with broker_for(Settings(dir=sys.argv[1])) as (bootstrap_servers, _):
    print(bootstrap_servers, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def embedded(settings):
    """The broker of a fresh folder, certain to be ended when the test is over."""
    broker = EmbeddedBroker(settings.kafka_dir)
    yield broker
    pids = processes_of(broker)
    broker.files.keep.unlink(missing_ok=True)
    wait_for(lambda: not any(start_ticks(pid) for pid in pids), "the broker has ended")


def processes_of(broker: EmbeddedBroker) -> list[int]:
    status = broker.files.read_status()
    return [status[name] for name in ("pid", "kafka_pid") if name in status]


def start_user(settings) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", USER, str(settings.dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_two_commands_share_a_broker_that_ends_after_the_last_even_if_both_are_killed(settings, embedded):
    first, second = start_user(settings), start_user(settings)
    address = first.stdout.readline()
    assert second.stdout.readline() == address
    pids = processes_of(embedded)
    first.kill()
    first.communicate()
    time.sleep(supervisor_module.IDLE_S + 1)
    assert embedded.is_used()
    KafkaAdmin(address.strip(), embedded.login()).check_reachable()
    second.kill()
    second.communicate()
    wait_for(lambda: not any(start_ticks(pid) for pid in pids), "the broker has ended", 15)
    assert not embedded.is_supervised()


def test_records_and_address_survive_a_kill_of_supervisor_and_kafka(settings, embedded):
    with broker_for(settings) as (first, with_login):
        KafkaAdmin(first, with_login.kafka).create_topic("kept", 1)
        producer = Producer({**with_login.kafka, "bootstrap.servers": first})
        for number in range(100):
            producer.produce("kept", value=str(number))
        assert producer.flush(10) == 0
        supervisor, kafka = processes_of(embedded)
        os.kill(supervisor, signal.SIGKILL)
        wait_for(lambda: start_ticks(kafka) is None, "Kafka has ended with its supervisor", 5)
    with broker_for(settings) as (again, still_with_login):
        assert (again, still_with_login) == (first, with_login)
        assert values_of(read_properties(embedded.files.client), "kept", 100) == [
            str(number).encode() for number in range(100)
        ]


def test_kafka_that_dies_while_in_use_is_restarted_at_the_same_address(settings, embedded):
    with broker_for(settings) as (address, with_login):
        kafka = processes_of(embedded)[1]
        if class_archive("kafka").is_file():  # not where this Java has no jcmd
            assert str(class_archive("kafka")) in Path(f"/proc/{kafka}/maps").read_text()
        os.kill(kafka, signal.SIGKILL)
        wait_for(lambda: processes_of(embedded)[1:] not in ([], [kafka]), "there is another Kafka")
        KafkaAdmin(address, with_login.kafka).check_reachable()


def test_start_keeps_it_up_until_stop(settings, embedded):
    address = embedded.keep()
    time.sleep(supervisor_module.IDLE_S + 1)
    KafkaAdmin(address, embedded.login()).check_reachable()
    with broker_for(settings):
        assert embedded.stop() is False  # in use
    assert embedded.stop() is True
    assert not embedded.is_supervised()
    assert embedded.stop() is True  # stopping again changes nothing


def test_a_taken_port_is_replaced_by_another_and_a_deleted_login_too(settings, embedded):
    with broker_for(settings) as (first, earlier):
        pass
    wait_for(lambda: not embedded.is_supervised(), "the broker has ended")
    embedded.files.client.unlink()
    with socket.socket() as thief:
        thief.bind(("127.0.0.1", int(first.rpartition(":")[2])))
        thief.listen()
        with broker_for(settings) as (second, with_login):
            assert second != first
            KafkaAdmin(second, with_login.kafka).check_reachable()
            assert with_login.kafka["sasl.password"] != earlier.kafka["sasl.password"]
            assert read_properties(embedded.files.client)["bootstrap.servers"] == second
    assert f"127.0.0.1:{json.loads(embedded.files.ports.read_text())['port']}" == second


@pytest.mark.parametrize("kills_kafka", [False, True])
def test_a_login_that_is_deleted_under_a_running_broker_is_written_anew(settings, embedded, kills_kafka):
    """The same one: whoever uses the broker at the moment goes on."""
    with broker_for(settings) as (address, with_login):
        known = {path: path.read_text() for path in (embedded.files.client, embedded.files.java_client)}
        for path in known:
            path.unlink()
        if kills_kafka:
            os.kill(processes_of(embedded)[1], signal.SIGKILL)
        with broker_for(settings) as again:
            assert again == (address, with_login)
            KafkaAdmin(address, with_login.kafka).check_reachable(30)
        assert {path: path.read_text() for path in known} == known


def test_a_deleted_folder_ends_its_broker(settings, embedded):
    embedded.keep()
    pids = processes_of(embedded)
    shutil.rmtree(settings.kafka_dir)
    wait_for(lambda: not any(start_ticks(pid) for pid in pids), "the broker has ended")


def test_for_a_folder_that_kafka_cannot_use_the_error_names_the_log(settings, embedded):
    embedded.files.data.mkdir(parents=True)
    (embedded.files.data / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=77\n")
    with pytest.raises(BrokerStartError, match=rf"did not start: Kafka ended with code .* \(log: {embedded.files.log}"):
        embedded.keep()


def test_with_your_own_kafka_nothing_is_started(settings):
    own = settings.model_copy(update={"bootstrap_servers": "kafka.example:9092"})
    with broker_for(own) as found:
        assert found == ("kafka.example:9092", own)
    assert not settings.kafka_dir.exists()


def test_for_missing_jars_the_error_names_the_command(settings, monkeypatch):
    def missing(name):
        raise JarsError(name, "not fetched yet; run `weir setup`")

    monkeypatch.setattr(broker_module, "jars", missing)
    with pytest.raises(JarsError, match="run `weir setup`"), broker_for(settings):
        pass
    assert not EmbeddedBroker(settings.kafka_dir).is_supervised()
