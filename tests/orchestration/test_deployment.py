"""A deployment as docs/deployment.md has it recovers from kills, and no secret shows anywhere."""

from collections.abc import Iterator
from functools import partial

import dagster as dg
import psutil
import psycopg
import pytest

from tests.orchestration.deployment import SECRETS, START_LIMIT_S, Deployment, deployed
from tests.waiting import wait_for
from weir.pipelines.examples import load_weather
from weir.state.commit.protocol import newest_commit

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.timed]

OBSERVATIONS = 26_115
DEFS = """
import time

import dagster as dg

from weir.dagster import definitions
from weir.pipelines.examples.weather import app


@dg.op
def wait() -> None:
    time.sleep(3600)


@dg.job(tags={"dagster/max_retries": "0"})
def hour() -> None:
    wait()


defs = dg.Definitions.merge(definitions(app), dg.Definitions(jobs=[hour]))
"""
FAILED_LIMIT_S = 30.0
TERMINATED_LIMIT_S = 15.0
TERMINATE = "mutation($run: String!) { terminateRun(runId: $run) { __typename } }"


@pytest.fixture
def deployment(tmp_path) -> Iterator[Deployment]:
    with deployed(tmp_path, "weather", DEFS) as (deployment, bootstrap_servers, settings):
        load_weather.load(bootstrap_servers, client_properties=settings.kafka)  # while the servers start
        yield deployment


def test_a_deployment_recovers_from_kills_and_termination_commits(deployment):
    wait_for(deployment.is_up, "the UI is up", START_LIMIT_S)
    launched = deployment.launch("weather_run", {"ops": {"weather_ingest": {"config": {"until_caught_up": False}}}})
    wait_for(lambda: reads(deployment, 1), "the first run has read the topic", START_LIMIT_S)
    first, life = deployment.run(), deployment.status()
    assert first.run_id == launched.run_id
    assert first.tags["weir/application"] == "weather"
    assert first.tags["dagster/max_retries"] == "0", "its sensor restarts it, so Dagster does not"

    deployment.kill_daemon()
    deployment.start_daemon()
    driver = psutil.Process(life.pid)
    assert deployment.is_in(first, dg.DagsterRunStatus.STARTED)
    assert driver.is_running(), "the ingest keeps running without a daemon"

    driver.parent().parent().kill()
    assert (
        wait_for(lambda: deployment.is_in(first, dg.DagsterRunStatus.FAILURE), "it has failed", START_LIMIT_S)
        < FAILED_LIMIT_S
    )
    assert any("was terminated by signal 9" in entry.message for entry in deployment.instance.all_logs(first.run_id))
    wait_for(lambda: reads(deployment, 2), "the next run has resumed", START_LIMIT_S)
    second = deployment.run()

    other = deployment.launch("hour")
    step_started = partial(deployment.instance.all_logs, other.run_id, dg.DagsterEventType.STEP_START)
    wait_for(step_started, "a run of another job has begun its step")
    deployment.kill_code_server()
    deployment.start_code_server()
    wait_for(lambda: reads(deployment, 3), "a run has resumed under the next code server", START_LIMIT_S)
    assert deployment.is_in(second, dg.DagsterRunStatus.FAILURE)
    wait_for(lambda: deployment.is_in(other, dg.DagsterRunStatus.FAILURE), "the other run has failed", FAILED_LIMIT_S)
    third, before = deployment.run(), newest_commit(deployment.settings.warehouse, "weather")
    below = psutil.Process(deployment.status().pid).children(recursive=True)

    deployment.ask(TERMINATE, run=third.run_id)
    assert (
        wait_for(lambda: deployment.is_in(third, dg.DagsterRunStatus.CANCELED), "it is canceled", START_LIMIT_S)
        < TERMINATED_LIMIT_S
    )
    failures = deployment.instance.all_logs(third.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [entry.get_dagster_event().step_failure_data.error_display_string for entry in failures] == []
    reports = deployment.instance.all_logs(third.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert ["weather", "ingest"] in [entry.get_dagster_event().asset_key.path for entry in reports]
    ended = deployment.status()
    assert (ended.state, ended.error, ended.has_process) == ("stopped", None, False)
    assert not psutil.wait_procs(below, timeout=5)[1]
    after = newest_commit(deployment.settings.warehouse, "weather")
    assert after.generation == 3
    assert {name: task.positions for name, task in after.tasks.items()} == {
        name: task.positions for name, task in before.tasks.items()
    }
    runs = deployment.instance.get_runs()
    assert {run.run_id for run in runs} == {first.run_id, second.run_id, third.run_id, other.run_id}
    for run in runs:
        assert len(deployment.instance.all_logs(run.run_id)) < 200
    assert secrets_found(deployment) == []


def reads(deployment: Deployment, generation: int) -> bool:
    """Whether a driver of this generation runs and has read the topic."""
    status = deployment.status()
    return (
        status is not None
        and status.is_running
        and status.state == "running"
        and status.generation == generation
        and sum(task.records_in for task in status.tasks) == OBSERVATIONS
    )


def secrets_found(deployment: Deployment) -> list[str]:
    """Where a secret can be read: in Dagster's tables, or in a log file."""
    found, secrets = [], (*SECRETS, deployment.settings.kafka["sasl.password"])
    with psycopg.connect(deployment.dagster_url) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        for (table,) in tables:
            for secret in secrets:
                if connection.execute(
                    f"SELECT 1 FROM {table} AS row WHERE row::text LIKE %s LIMIT 1", [f"%{secret}%"]
                ).fetchone():
                    found.append(f"{secret} in table {table}")
    assert len(tables) > 10
    logs = [
        *deployment.settings.logs.iterdir(),
        *deployment.folder.rglob("*.log"),
        *deployment.folder.rglob("*.err"),
        *deployment.folder.rglob("*.out"),
    ]
    assert len(logs) > 2
    found += [f"{secret} in {log}" for log in logs for secret in secrets if secret in log.read_text(errors="replace")]
    return found
