"""A run whose worker was killed, and its code server too, is marked failed."""

import subprocess
import sys

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test

from weir.orchestration.sensors import workers
from weir.orchestration.sensors.workers import workers_sensor

STARTED, FAILURE = dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE


@pytest.fixture
def with_launcher(tmp_path):
    """An instance that starts runs as Dagster does."""
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


@pytest.fixture
def run_of(with_launcher):
    """``run_of(status, pid)`` is a run with that worker, of the code location ``here``."""

    def started(status: dg.DagsterRunStatus, pid: int | None, location: str = "here") -> dg.DagsterRun:
        of = RemoteJobOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__"), "job")
        run = create_run_for_test(with_launcher, status=status, remote_job_origin=of)
        if pid is not None:
            with_launcher.report_engine_event(
                f"Started process for run (pid: {pid}).", run, EngineEventData.in_process(pid)
            )
        return run

    return started


@pytest.fixture
def worker():
    """A process that ends with its input."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.communicate(b"\n" if process.poll() is None else None)


@pytest.fixture
def look(with_launcher):
    """``look()`` evaluates the sensor after its last tick, and returns what it says."""
    cursor: str | None = None

    def tick() -> str:
        nonlocal cursor
        context = dg.SensorEvaluationContext(
            instance_ref=None,
            instance=with_launcher,
            cursor=cursor,
            code_location_origin=RegisteredCodeLocationOrigin("here"),
        )
        answer = workers_sensor([])(context)
        assert isinstance(answer, dg.SensorResult | dg.SkipReason)
        if isinstance(answer, dg.SkipReason):
            return answer.skip_message or ""
        cursor = answer.cursor
        assert answer.skip_reason is not None
        return answer.skip_reason.skip_message or ""

    return tick


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, STARTED])
def test_a_run_is_marked_failed_at_the_second_look_after_its_worker_was_killed(
    with_launcher, run_of, worker, look, status
):
    run = run_of(status, worker.pid)
    look()
    assert look() == "all workers are there"
    worker.kill()
    worker.wait()
    look()
    assert status_of(with_launcher, run) == status, "the code server may still say how its worker ended"
    assert look() == f"failed, since their workers were killed: {run.run_id}"
    assert status_of(with_launcher, run) == FAILURE
    said = [entry.message for entry in with_launcher.all_logs(run.run_id, dg.DagsterEventType.RUN_FAILURE)]
    assert any(f"the run worker (process {worker.pid}) was killed" in each for each in said)
    assert look() == "all workers are there"


def test_a_process_that_has_the_id_of_a_worker_that_is_gone_is_not_taken_for_it(
    with_launcher, run_of, worker, look, monkeypatch
):
    run = run_of(STARTED, worker.pid)
    look()
    ticks = workers.start_ticks(worker.pid)
    monkeypatch.setattr(workers, "start_ticks", lambda pid: ticks + 1)
    look()
    look()
    assert status_of(with_launcher, run) == FAILURE


@pytest.mark.parametrize("end", [dg.DagsterInstance.report_run_canceled, dg.DagsterInstance.report_run_failed])
def test_a_run_that_ends_while_the_sensor_looks_keeps_its_end(with_launcher, run_of, worker, look, monkeypatch, end):
    run = run_of(STARTED, worker.pid)
    worker.communicate(b"\n")
    look()

    def start_ticks(pid: int) -> None:
        end(with_launcher, run, "its own end")

    monkeypatch.setattr(workers, "start_ticks", start_ticks)
    look()
    ends = [
        entry.message
        for kind in (dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.RUN_CANCELED)
        for entry in with_launcher.all_logs(run.run_id, kind)
    ]
    assert ends == ["its own end"]


def test_runs_without_a_process_of_their_own_are_left_alone(with_launcher, run_of, look):
    run = run_of(STARTED, None)
    for _ in range(3):
        look()
    assert status_of(with_launcher, run) == STARTED


def test_runs_of_other_code_locations_are_left_alone(with_launcher, run_of, worker, look):
    run = run_of(STARTED, worker.pid, "elsewhere")
    worker.communicate(b"\n")
    for _ in range(3):
        look()
    assert status_of(with_launcher, run) == STARTED


def test_with_another_run_launcher_the_sensor_says_who_looks(tmp_path):
    with dg.DagsterInstance.ephemeral() as instance:
        answer = workers_sensor([])(dg.build_sensor_context(instance=instance))
    assert "run monitoring asks the run launcher" in answer.skip_message
