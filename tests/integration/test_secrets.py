"""Secrets come from variables or a file, and can be read nowhere else."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import fastavro
import pytest
from confluent_kafka import Producer

from tests.databases import Database, PostgresqlServer
from tests.faults.applications import TOPIC
from tests.integration import guarded_shop
from tests.integration.guarded import weir_run
from tests.kafka_server import LOGIN, kafka_server
from tests.pipelines.publishing.requests_server import Answer, RequestsServer
from tests.pipelines.serdes.registry_server import schema_registry
from tests.traces import command_lines, texts_of
from weir.dagster import WeirResource, definitions, supervise
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.files import BrokerFiles
from weir.infra.kafka.login import PASSWORD, read_properties
from weir.orchestration.resources import driver_pipes
from weir.orchestration.supervised import Supervised
from weir.pipelines.operations.registry import load_reference
from weir.pipelines.serdes.registry import SchemaRegistry, header
from weir.state.commit.refused import Refused

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.dagster, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
NAMES = ("kafka", "control", "sql", "registry", "token")
REFERENCE = f"{guarded_shop.__name__}:app"
SUPERVISED = Supervised(
    application=guarded_shop.app,
    reference=REFERENCE,
    topics={guarded_shop.TOPIC: dg.AssetKey(["kafka", guarded_shop.TOPIC])},
)
SCHEMA = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "amount", "type": "int"}]})
ORDERS = 30
HIDDEN = {name: f"hidden-{name}-{uuid.uuid4().hex}" for name in (*NAMES, "spark")} | {"kafka": LOGIN["sasl.password"]}
WRONG = {name: f"mistyped-{name}-{uuid.uuid4().hex}" for name in NAMES}
"""Who mistypes a secret has typed most of it."""


class Neighbours:
    """Two users of a database, a registry and a server, all of which ask for a secret, beside a broker that does."""

    def __init__(self, bootstrap_servers: str, server: PostgresqlServer, database: Database, registry: str) -> None:
        self.bootstrap_servers, self.registry = bootstrap_servers, registry
        self.database, self._server = database, server
        self.http = RequestsServer()

    def produce(self) -> None:
        properties = {"url": self.registry, "basic.auth.user.info": f"reader:{HIDDEN['registry']}"}
        number = SchemaRegistry(properties).register(f"{guarded_shop.TOPIC}-value", SCHEMA, "AVRO")
        producer = Producer({**LOGIN, "bootstrap.servers": self.bootstrap_servers})
        for amount in range(ORDERS):
            encoded = io.BytesIO()
            fastavro.schemaless_writer(encoded, json.loads(SCHEMA), {"amount": amount})
            producer.produce(guarded_shop.TOPIC, header(number) + encoded.getvalue(), "ann", timestamp=1_000)
        producer.flush()

    def settings(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """All that are text, by name."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "control_url": self._server.url_of("keeper", secrets["control"], self.database.name),
            "sql_url": self._server.url_of("seller", secrets["sql"], self.database.name),
            "schema_registry.url": self.registry,
            "schema_registry.basic.auth.user.info": f"reader:{secrets['registry']}",
            **{f"kafka.{name}": value for name, value in {**LOGIN, "sasl.password": secrets["kafka"]}.items()},
        }

    def delivered(self) -> int:
        """How many orders the server has taken, all of them with the right token."""
        requests = self.http.delivered()
        assert {request.headers["Authorization"] for request in requests} <= {f"Bearer {HIDDEN['token']}"}
        return sum(len(request.rows) for request in requests)


@pytest.fixture
def neighbours(tmp_path_factory) -> Iterator[Neighbours]:
    server = PostgresqlServer()
    try:
        for user, name in (("keeper", "control"), ("seller", "sql")):
            server.add_user(user, HIDDEN[name])
        with (
            kafka_server(tmp_path_factory.mktemp("guarded"), with_login=True) as bootstrap_servers,
            server.database("shop") as database,
            schema_registry(f"reader:{HIDDEN['registry']}") as registry,
        ):
            KafkaAdmin(bootstrap_servers, LOGIN).create_topic(guarded_shop.TOPIC, 1)
            yield Neighbours(bootstrap_servers, server, database, registry.url)
    finally:
        server.close()


def shows_it(text: str) -> list[str]:
    return [name for secrets in (HIDDEN, WRONG) for name, secret in secrets.items() if secret in text]


def embedded_run(folder: Path, reference: str, instance: dg.DagsterInstance) -> dg.ExecuteInProcessResult:
    """A run of Dagster with the folder's embedded broker."""
    application = load_reference(reference)
    found = definitions(supervise(application, reference))
    selection = dg.AssetSelection.assets(dg.AssetKey([application.id, "ingest"]))
    return dg.materialize(
        [*found.assets, *found.asset_checks],
        selection=selection,
        instance=instance,
        resources={"weir": WeirResource(dir=str(folder), slots=2), "pipes": driver_pipes()},
        raise_on_error=False,
    )


def materialized(
    neighbours: Neighbours,
    instance: dg.DagsterInstance,
    folder: Path,
    monkeypatch,
    *wrong: str,
    selection: dg.AssetSelection | None = None,
) -> dg.ExecuteInProcessResult:
    """A run of Dagster, for which every setting is a variable."""
    secrets = HIDDEN | {name: WRONG[name] for name in wrong}
    settings = neighbours.settings(secrets)
    if "registry" in wrong:
        login = settings.pop("schema_registry.basic.auth.user.info")
        settings["schema_registry.url"] = neighbours.registry.replace("//", f"//{login}@")
        monkeypatch.delenv("WEIR_SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO", raising=False)
    for name, value in settings.items():
        variable = "SHOP_CONTROL_URL" if name == "control_url" else f"WEIR_{name.replace('.', '_').upper()}"
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv(guarded_shop.TOKEN, f"Bearer {secrets['token']}")
    found = definitions(supervise(guarded_shop.app, REFERENCE))
    return dg.materialize(
        [*found.assets, *found.asset_checks],
        selection=selection or dg.AssetSelection.assets(SUPERVISED.ingest, *SUPERVISED.tables.values()),
        instance=instance,
        resources={
            "weir": WeirResource(dir=str(folder), slots=2, control_url=dg.EnvVar("SHOP_CONTROL_URL")),
            "pipes": driver_pipes(),
        },
        raise_on_error=False,
    )


def run(neighbours: Neighbours, folder: Path, monkeypatch, *wrong: str) -> subprocess.CompletedProcess[str]:
    """A run of the command line, for which everything but the token is in ``weir.toml``."""
    secrets = HIDDEN | {name: WRONG[name] for name in wrong}
    settings = neighbours.settings(secrets)
    lines = [f"{name} = '{settings[name]}'" for name in ("control_url", "sql_url")]
    lines += ["[spark]", f"'hadoop.fs.s3a.secret.key' = '{secrets['spark']}'", "[schema_registry]"]
    lines += [f"'{name}' = '{settings[f'schema_registry.{name}']}'" for name in ("url", "basic.auth.user.info")]
    monkeypatch.setenv(guarded_shop.TOKEN, f"Bearer {secrets['token']}")
    login = LOGIN | {"sasl.password": secrets["kafka"]}
    return weir_run(folder, neighbours.bootstrap_servers, login, REFERENCE, "\n".join(lines), ("--debug",))


def test_no_secret_stands_in_a_command_line_log_message_or_file(tmp_path, neighbours, monkeypatch, capfd):
    """Runs of Dagster and of the command line end well, or fail with a traceback since one secret is wrong. The server
    repeats the token that it refuses."""
    folder, home, said = tmp_path / ".weir", tmp_path / "dagster", list[str]()
    home.mkdir()
    monkeypatch.setenv(guarded_shop.URL, neighbours.http.url)
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    with dg.DagsterInstance.local_temp(str(home)) as instance, command_lines() as seen:
        neighbours.produce()
        for wrong in (("kafka",), ("control", "registry", "sql")):
            assert not materialized(neighbours, instance, folder, monkeypatch, *wrong).success, wrong
        assert materialized(neighbours, instance, folder, monkeypatch).success
        checks = dg.AssetSelection.checks_for_assets(SUPERVISED.ingest, *SUPERVISED.tables.values())
        assert not materialized(neighbours, instance, folder, monkeypatch, "control", selection=checks).success
        assert neighbours.delivered() == ORDERS
        neighbours.produce()
        failed = run(neighbours, tmp_path, monkeypatch, "kafka")
        said.append(failed.stdout + failed.stderr)
        assert (failed.returncode, "Traceback" in failed.stderr) == (1, True), failed.stderr
        echo = f"I do not know Bearer {WRONG['token']}, {WRONG['token']}"
        neighbours.http.next += [Answer(401, body=echo.encode())] * (ORDERS // 10)
        done = run(neighbours, tmp_path, monkeypatch, "control", "token")  # a run goes on without a control database
        said.append(done.stdout + done.stderr)
        assert done.returncode == 0, done.stderr
        assert neighbours.delivered() == ORDERS
    assert len(neighbours.database.rows("sold")) == 2 * ORDERS
    refused = Refused(folder / "warehouse" / guarded_shop.app.id, "told", guarded_shop.app.id).all()
    assert refused["rows"].sum() == ORDERS
    assert all("answered 401" in reason and "I do not know" in reason for reason in refused["reason"])
    texts = {"terminal": "".join((*said, *capfd.readouterr()))}
    for path, text in (*texts_of(folder), *texts_of(home)):
        texts[path] = texts.get(path, "") + text
    of_dagster = "".join(text for path, text in texts.items() if path.startswith(str(home)))
    for error in ("refused the login", "the schema registry at", "ControlDatabaseError: ", "keeper:***@"):
        assert error in of_dagster
    assert {"guarded_shop.log", "spark.log", "guarded_shop.json", "runs.db"} <= {Path(path).name for path in texts}
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in seen)
    assert [line for line in seen if shows_it(line)] == []
    assert {path: shown for path, text in texts.items() if (shown := shows_it(text))} == {}


def test_the_embedded_brokers_password_stands_in_its_own_files_alone(tmp_path, monkeypatch, capfd):
    """A run of Dagster that ends well, and one of the command line with a traceback at a record that is none."""
    reference, folder, home = "tests.faults.applications:app", tmp_path / ".weir", tmp_path / "dagster"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    weir = [sys.executable, "-c", "from weir.pipelines.cli import main; main()"]
    with dg.DagsterInstance.local_temp(str(home)) as instance, command_lines() as seen:
        subprocess.run([*weir, "kafka", "start"], check=True)
        try:
            subprocess.run([*weir, "kafka", "create", TOPIC], check=True)
            produce = [*weir, "kafka", "produce", TOPIC]
            subprocess.run(produce, input='ann\t{"amount": 5, "kind": "tea"}\n', text=True, check=True)
            assert embedded_run(folder, reference, instance).success
            subprocess.run(produce, input="ann\tno record\n", text=True, check=True)
            failed = subprocess.run([*weir, "run", reference, "--until-caught-up", "--debug"])
            assert failed.returncode == 1
        finally:
            subprocess.run([*weir, "kafka", "stop"], check=True)
    files = BrokerFiles(folder / "kafka")
    password = read_properties(files.client)[PASSWORD]
    printed = "".join(capfd.readouterr())
    assert str(files.client) in printed
    assert "Traceback" in printed
    found = {path for path, text in (*texts_of(folder), *texts_of(home)) if password in text}
    assert found == {str(path) for path in (files.client, files.java_client, files.properties)}
    assert password not in printed
    assert any("kafka.Kafka" in line for line in seen)
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in seen)
    assert [line for line in seen if password in line] == []
