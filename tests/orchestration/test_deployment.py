"""A deployment as docs/deployment.md has it answers in time, recovers from kills, and no secret shows anywhere."""

from collections.abc import Iterator
from functools import partial

import dagster as dg
import psutil
import psycopg
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG

from tests.busy import busy_processors
from tests.orchestration.deployment import SECRETS, START_LIMIT_S, Deployment, deployed
from tests.waiting import wait_for
from weir.pipelines.examples import load_weather
from weir.state.commit.protocol import newest_commit

pytestmark = [pytest.mark.dagster, pytest.mark.spark, pytest.mark.broker, pytest.mark.faults, pytest.mark.timed]

OBSERVATIONS = 26_115
DEFS = """
import time

import dagster as dg

from weir.dagster import Thresholds, definitions, supervise
from weir.pipelines.examples.weather import app


@dg.op
def wait() -> None:
    time.sleep(3600)


@dg.job(tags={"dagster/max_retries": "0"})
def hour() -> None:
    wait()


defs = dg.Definitions.merge(
    definitions(supervise(app, thresholds=Thresholds(restart_pause_s=1))),
    dg.Definitions(jobs=[hour]),
)
"""
FAILED_LIMIT_S = 30.0
TERMINATED_LIMIT_S = 15.0
STEERED_LIMIT_S = 3.0
"""For a job that asks the driver: what its run takes, from its own start to its end, without launch and queue."""
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

    committed = steered(deployment, "weir_commit_now")
    assert committed.end_time - committed.start_time < STEERED_LIMIT_S

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
    assert was_killed(deployment, first)
    wait_for(lambda: reads(deployment, 2), "the next run has resumed", START_LIMIT_S)
    second, life = deployment.run(), deployment.status()

    psutil.Process(life.pid).kill()
    wait_for(lambda: deployment.run_after(second), "its driver is replaced", START_LIMIT_S)
    stillborn = deployment.run_after(second)
    wait_for(lambda: deployment.kill_worker(stillborn), "the replacement's worker has started", START_LIMIT_S)
    assert deployment.status().pid == life.pid, "no other driver had begun"
    wait_for(lambda: deployment.is_in(stillborn, dg.DagsterRunStatus.FAILURE), "that has failed", FAILED_LIMIT_S)
    assert was_killed(deployment, stillborn)
    wait_for(lambda: reads(deployment, 3), "a further run has resumed", START_LIMIT_S)
    third = deployment.run()
    assert len({run.tags[RUN_KEY_TAG] for run in (second, stillborn, third)}) == 3

    other = deployment.launch("hour")
    step_started = partial(deployment.instance.all_logs, other.run_id, dg.DagsterEventType.STEP_START)
    wait_for(step_started, "a run of another job has begun its step")
    deployment.kill_code_server()
    deployment.start_code_server()
    wait_for(lambda: reads(deployment, 4), "a run has resumed under the next code server", START_LIMIT_S)
    assert deployment.is_in(third, dg.DagsterRunStatus.FAILURE)
    wait_for(lambda: deployment.is_in(other, dg.DagsterRunStatus.FAILURE), "the other run has failed", FAILED_LIMIT_S)
    fourth, before = deployment.run(), newest_commit(deployment.settings.warehouse, "weather")
    below = psutil.Process(deployment.status().pid).children(recursive=True)

    paused = steered(deployment, "weir_pause")
    wait_for(lambda: deployment.status().state == "paused", "it is paused")
    with busy_processors():
        deployment.ask(TERMINATE, run=fourth.run_id)
        assert (
            wait_for(lambda: deployment.is_in(fourth, dg.DagsterRunStatus.CANCELED), "it is canceled", START_LIMIT_S)
            < TERMINATED_LIMIT_S
        )
    failures = deployment.instance.all_logs(fourth.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert [entry.get_dagster_event().step_failure_data.error_display_string for entry in failures] == []
    reports = deployment.instance.all_logs(fourth.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
    assert ["weather", "ingest"] in [entry.get_dagster_event().asset_key.path for entry in reports]
    ended = deployment.status()
    assert (ended.state, ended.error, ended.has_process) == ("stopped", None, False)
    assert not psutil.wait_procs(below, timeout=5)[1]
    after = newest_commit(deployment.settings.warehouse, "weather")
    assert after.generation == 4
    assert {name: task.positions for name, task in after.tasks.items()} == {
        name: task.positions for name, task in before.tasks.items()
    }
    runs = deployment.instance.get_runs()
    of_ingest, asked = (first, second, stillborn, third, fourth), (committed.dagster_run, paused.dagster_run)
    assert {run.run_id for run in runs} == {run.run_id for run in (*of_ingest, *asked, other)}
    for run in runs:
        assert len(deployment.instance.all_logs(run.run_id)) < 200
    assert secrets_found(deployment) == []


def steered(deployment: Deployment, job: str) -> dg.RunRecord:
    """The run of a job that asks the driver, which has succeeded."""
    run = deployment.launch(job, partition="weather")
    wait_for(lambda: deployment.instance.get_run_by_id(run.run_id).is_finished, f"{job} has ended")
    record = deployment.instance.get_run_record_by_id(run.run_id)
    assert record.dagster_run.is_success
    return record


def was_killed(deployment: Deployment, run: dg.DagsterRun) -> bool:
    """Whether its worker was, as the run's log says."""
    return any("was terminated by signal 9" in entry.message for entry in deployment.instance.all_logs(run.run_id))


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
