"""Dagster over a warehouse on an object store: ingest, checks and a compaction, with a real broker and driver. The
store's secret can be read nowhere."""

from __future__ import annotations

import os

import dagster as dg
import pytest
from confluent_kafka import Producer

from tests.orchestration.distant import TOPIC, app
from tests.traces import command_lines, texts_of
from weir.orchestration.application import definitions, supervise
from weir.orchestration.jobs.compaction import compaction_job
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.orchestration.supervised import Supervised
from weir.state.commit.tables import file_actions, read_table
from weir.state.storage.places import folder_at, table_at

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker]

RECORDS, USERS = 400, 8
REFERENCE = "tests.orchestration.distant:app"
VISITS = Supervised(application=app, reference=REFERENCE, topics={TOPIC: dg.AssetKey(["kafka", TOPIC])})


def test_an_ingest_its_checks_and_a_compaction_work_on_the_store_alone(
    settings, broker, kafka_admin, s3_bucket, tmp_path, monkeypatch, capfd
):
    secret, home = os.environ["AWS_SECRET_ACCESS_KEY"], tmp_path / "dagster"
    home.mkdir()
    monkeypatch.setenv("WEIR_WAREHOUSE", f"{s3_bucket}/warehouse")
    table = folder_at(f"{s3_bucket}/warehouse") / app.id / "by_user"
    kafka_admin.create_topic(TOPIC, 2)
    resources = {
        "weir": WeirResource(dir=str(settings.dir), bootstrap_servers=broker, slots=2),
        "pipes": driver_pipes(),
    }
    defs = definitions(supervise(app, REFERENCE))

    def ingested(instance: dg.DagsterInstance, first: int, last: int) -> dg.ExecuteInProcessResult:
        producer = Producer({"bootstrap.servers": broker})
        for number in range(first, last):
            producer.produce(TOPIC, b"page", b"user-%d" % (number % USERS), partition=number % USERS % 2)
        producer.flush()
        return dg.materialize(
            [*defs.assets, *defs.asset_checks],
            selection=dg.AssetSelection.assets(VISITS.ingest, *VISITS.tables.values()),
            resources=resources,
            instance=instance,
        )

    def counts() -> dict[str, int]:
        return dict(read_table(table).select("user", "n").iter_rows())

    with dg.DagsterInstance.local_temp(str(home)) as instance, command_lines() as seen:
        for last in (RECORDS // 2, RECORDS):
            result = ingested(instance, last - RECORDS // 2, last)
            assert result.success
            checks = result.get_asset_check_evaluations()
            assert {check.check_name for check in checks} >= {"files_present", "lag"}
            assert [check for check in checks if not check.passed] == []
            assert counts() == dict.fromkeys((f"user-{user}" for user in range(USERS)), last // USERS)
        before = file_actions(table_at(table)).height
        job = compaction_job([VISITS])
        assert job.execute_in_process(instance=instance, resources={"weir": resources["weir"]}).success
        assert file_actions(table_at(table)).height < before
        assert counts() == dict.fromkeys((f"user-{user}" for user in range(USERS)), RECORDS // USERS)
        assert not (settings.dir / "warehouse").exists()
    texts = [("terminal", "".join(capfd.readouterr())), *texts_of(tmp_path)]
    assert {"visits.log", "runs.db"} <= {os.path.basename(path) for path, _ in texts}
    assert any("org.apache.spark.deploy.SparkSubmit" in line for line in seen)
    assert [line for line in seen if secret in line] == []
    assert [path for path, text in texts if secret in text] == []
