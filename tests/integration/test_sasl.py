"""``weir run`` against your own Kafka that requires a login, configured entirely in ``weir.toml``."""

from __future__ import annotations

import pytest
from click.testing import Result
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.faults.applications import PARTITIONS, TOPIC, records
from tests.integration.guarded import weir_run
from tests.kafka_server import LOGIN, kafka_server
from weir.infra.kafka.admin import KafkaAdmin
from weir.pipelines.cli.app import app
from weir.state.commit.tables import read_table

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """Bootstrap servers of a broker that requires the login, with 2,000 records."""
    with kafka_server(tmp_path_factory.mktemp("guarded"), with_login=True) as bootstrap_servers:
        KafkaAdmin(bootstrap_servers, LOGIN).create_topic(TOPIC, PARTITIONS)
        producer = Producer({**LOGIN, "bootstrap.servers": bootstrap_servers})
        for partition, key, value, timestamp_ms in records(2_000):
            producer.produce(TOPIC, value, key, partition=partition, timestamp=timestamp_ms)
        producer.flush()
        yield bootstrap_servers


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
