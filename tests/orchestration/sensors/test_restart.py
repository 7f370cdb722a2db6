"""A killed driver is restarted in a new run: once, with the same configuration, and ever later without progress."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import dagster as dg
import pytest
from dagster._core.definitions.assets.job.asset_job import IMPLICIT_ASSET_JOB_NAME
from dagster._core.events import DagsterEvent, StepFailureData, StepSuccessData
from dagster._core.test_utils import create_run_for_test
from dagster._utils.error import SerializableErrorInfo

from tests.orchestration.applications import FLIGHTS, START_S
from tests.orchestration.readings import metric, running
from weir.infra.control import this_host
from weir.infra.control.rows import AT_REST
from weir.orchestration.assets.ingest import why_it_ended
from weir.orchestration.definitions import defs
from weir.orchestration.drivers.dagster_run import owner_of
from weir.orchestration.sensors import restart
from weir.orchestration.sensors.restart import Backoff, has_ended, made_progress, restart_sensor
from weir.orchestration.thresholds import Thresholds

STEADY_S = Thresholds().restart_steady_s


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def requested(answer: dg.SensorResult | dg.SkipReason) -> list[dg.RunRequest]:
    return list(answer.run_requests or ()) if isinstance(answer, dg.SensorResult) else []


@pytest.fixture
def run_of(instance):
    """``run_of(status)`` is a run of the ingest with that status."""
    job = defs.resolve_implicit_global_asset_job_def()

    def create(status: dg.DagsterRunStatus) -> dg.DagsterRun:
        return instance.create_run_for_job(
            job,
            status=status,
            run_config={
                "ops": {"flights_ingest": {"config": {"until_caught_up": False}}, "flights__topic": {"config": {}}}
            },
        )

    return create


@pytest.mark.slow
def test_a_killed_driver_of_a_failed_run_is_restarted_once_with_the_same_configuration(drive, run_of, tick):
    sensor = restart_sensor([FLIGHTS], [])
    run = run_of(dg.DagsterRunStatus.FAILURE)
    drive(f"dagster run {run.run_id}", ended_pid())
    [first], [second] = requested(tick(sensor)), requested(tick(sensor))
    assert first.run_config == {"ops": {"flights_ingest": {"config": {"until_caught_up": False}}}}
    assert first.run_key == second.run_key, "Dagster starts one run per key"
    drive(f"dagster run {run.run_id}", ended_pid())
    [third] = requested(tick(sensor))
    assert third.run_key != first.run_key, "another kill gets another run"


@pytest.mark.parametrize(
    ("job", "config", "follows"),
    [
        ("flights_run", None, {"until_caught_up": False}),
        ("flights_run", {"until_caught_up": True}, {"until_caught_up": True}),
        ("flights_run", {}, {"until_caught_up": True}),
        ("flights_run", {"take_over": True}, {"until_caught_up": True, "take_over": True}),
        (
            "flights_run",
            {"until_caught_up": False, "accept_lost_records": True, "accept_state_loss": True},
            {"until_caught_up": False},
        ),
        ("flights_continuously", None, {"until_caught_up": False}),
        ("flights_continuously", {"until_caught_up": True}, {"until_caught_up": True}),
        (IMPLICIT_ASSET_JOB_NAME, None, {"until_caught_up": True}),
    ],
)
def test_the_next_run_ends_when_the_one_that_died_would_have_and_accepts_no_loss(
    drive, instance, tick, job, config, follows
):
    """``flights_continuously`` is what the job of an earlier version was called."""
    run = create_run_for_test(
        instance,
        job_name=job,
        status=dg.DagsterRunStatus.FAILURE,
        run_config={} if config is None else {"ops": {"flights_ingest": {"config": config}}},
    )
    drive(owner_of(run.run_id), ended_pid())
    [request] = requested(tick(restart_sensor([FLIGHTS], [])))
    assert request.run_config == {"ops": {"flights_ingest": {"config": follows}}}
    assert request.job_name == "flights_run"


RESOURCES = {"weir": {"config": {"slots": 3}}}
EXECUTION = {"config": {"multiprocess": {"max_concurrent": 2}}}


@pytest.mark.parametrize(
    ("job", "sections"),
    [
        ("flights_run", {"resources": RESOURCES, "execution": EXECUTION}),
        (IMPLICIT_ASSET_JOB_NAME, {"resources": RESOURCES, "execution": EXECUTION}),
        ("somebodys_job", {"resources": RESOURCES}),
    ],
)
def test_the_next_run_has_the_resources_and_the_selection_of_the_one_that_died(
    drive, instance, next_run, tick, job, sections
):
    """A job of somebody's own may have another executor, whose configuration the ingest's job would refuse."""
    two = list(FLIGHTS.tables.values())[:2]
    ops = {"flights_ingest": {"config": {"until_caught_up": True}}}
    run = create_run_for_test(
        instance,
        job_name=job,
        status=dg.DagsterRunStatus.FAILURE,
        run_config={"resources": RESOURCES, "execution": EXECUTION, "ops": {**ops, "flights__topic": {"config": {}}}},
        asset_selection=frozenset({*two, dg.AssetKey(["flights", "topic"])}),
        asset_check_selection=frozenset({dg.AssetCheckKey(two[0], "files_present")}),
    )
    drive(owner_of(run.run_id), ended_pid())
    [request] = requested(tick(restart_sensor([FLIGHTS], [])))
    assert request.run_config == {**sections, "ops": ops}
    assert set(request.asset_selection) == set(two)
    plan = instance.get_execution_plan_snapshot(
        next_run(request, dg.DagsterRunStatus.STARTED).execution_plan_snapshot_id
    )
    assert [step.key for step in plan.steps] == ["flights_ingest"], "the audit makes the checks"


@pytest.mark.parametrize("asset", [*FLIGHTS.produced, None], ids=str)
def test_a_run_of_all_that_the_ingest_produces_but_one_is_followed_by_one_of_the_same(drive, instance, tick, asset):
    """And one of all of it, by one without a selection."""
    run = create_run_for_test(
        instance,
        job_name="flights_run",
        status=dg.DagsterRunStatus.FAILURE,
        asset_selection=frozenset(FLIGHTS.produced) - {asset},
    )
    drive(owner_of(run.run_id), ended_pid())
    [request] = requested(tick(restart_sensor([FLIGHTS], [])))
    left = [key for key in FLIGHTS.produced if key != asset]
    assert request.asset_selection == (None if asset is None else left)


def test_a_run_whose_worker_was_killed_is_marked_failed_and_restarted(
    database, drive, run_of, tick, instance, monkeypatch
):
    run = run_of(dg.DagsterRunStatus.STARTED)
    database.release(drive(f"dagster run {run.run_id}"))
    assert "to report its driver's end" in tick(restart_sensor([FLIGHTS], [])).skip_message
    monkeypatch.setattr(restart, "REPORT_LIMIT_S", 0.0)
    assert requested(tick(restart_sensor([FLIGHTS], [])))
    marked = instance.get_run_by_id(run.run_id)
    assert marked.status == dg.DagsterRunStatus.FAILURE
    message = instance.all_logs(run.run_id)[-1].dagster_event.message
    assert "the run worker ended without reporting" in message
    assert f"(process {os.getpid()} on {this_host()}) ended" in message
    assert requested(tick(restart_sensor([FLIGHTS], []))), "a tick that was interrupted is repeated"


def test_the_slot_of_a_killed_step_in_the_ingests_pool_is_free_for_the_next_run(drive, run_of, tick, instance):
    run, storage = run_of(dg.DagsterRunStatus.FAILURE), instance.event_log_storage
    storage.set_concurrency_slots("flights_ingest", 1)
    assert storage.claim_concurrency_slot("flights_ingest", run.run_id, "flights_ingest").is_claimed
    drive(f"dagster run {run.run_id}", ended_pid())
    assert requested(tick(restart_sensor([FLIGHTS], [])))
    assert storage.claim_concurrency_slot("flights_ingest", "the next", "flights_ingest").is_claimed


@pytest.fixture
def step_failed(instance):
    """``step_failed(run, error)`` fails the ingest's step with an error of that class."""

    def fail(run: dg.DagsterRun, error: str) -> None:
        instance.report_dagster_event(
            DagsterEvent(
                event_type_value=dg.DagsterEventType.STEP_FAILURE.value,
                job_name=run.job_name,
                step_key="flights_ingest",
                event_specific_data=StepFailureData(
                    error=SerializableErrorInfo("it ended", [], cls_name=error), user_failure_data=None
                ),
            ),
            run.run_id,
        )

    return fail


def test_a_run_whose_checks_outlast_its_ingest_may_finish_them(database, drive, run_of, tick, instance, monkeypatch):
    run = run_of(dg.DagsterRunStatus.STARTED)
    database.release(drive(f"dagster run {run.run_id}"))
    instance.report_dagster_event(
        DagsterEvent(
            event_type_value=dg.DagsterEventType.STEP_SUCCESS.value,
            job_name=run.job_name,
            step_key="flights_ingest",
            event_specific_data=StepSuccessData(duration_ms=1.0),
        ),
        run.run_id,
    )
    monkeypatch.setattr(restart, "REPORT_LIMIT_S", 0.0)
    assert "its other steps" in tick(restart_sensor([FLIGHTS], [])).skip_message
    assert instance.get_run_by_id(run.run_id).status == dg.DagsterRunStatus.STARTED


@pytest.mark.parametrize(
    ("error", "is_restarted"),
    [
        (None, True),
        ("DagsterExecutionInterruptedError", True),
        ("ChildProcessCrashException", True),
        ("Failure", False),
    ],
    ids=["both killed", "run worker killed", "step killed", "an error of its own"],
)
def test_a_failed_run_is_restarted_if_its_step_could_not_say_how_it_ended(
    database, drive, run_of, step_failed, tick, error, is_restarted
):
    run = run_of(dg.DagsterRunStatus.FAILURE)
    if error is not None:
        step_failed(run, error)
    driver = drive(f"dagster run {run.run_id}")
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason), "its driver is still committing"
    database.release(driver)
    assert bool(requested(tick(restart_sensor([FLIGHTS], [])))) is is_restarted


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.CANCELING]
)
def test_a_run_that_ended_with_its_driver_is_left_alone(database, drive, run_of, tick, status):
    database.release(drive(f"dagster run {run_of(status).run_id}"))
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason)


@pytest.mark.slow
def test_drivers_that_are_alive_or_that_no_run_started_are_left_alone(drive, run_of, tick):
    drive("weir run", ended_pid())
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason)
    drive(f"dagster run {run_of(dg.DagsterRunStatus.STARTED).run_id}")
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason)


def swap_at_rest(database) -> None:
    """As `weir backfill swap` takes the lease when no driver is running."""
    database.release(database.acquire_lease("flights", owner=AT_REST, pid=os.getpid(), host=this_host(), ttl_s=60))


def test_a_killed_driver_is_restarted_even_if_a_backfill_was_swapped_in_before_the_sensor_looked(
    database, drive, run_of, tick, settings
):
    run = run_of(dg.DagsterRunStatus.FAILURE)
    drive(owner_of(run.run_id), ended_pid())
    lease = database.acquire_lease("flights", owner=AT_REST, pid=os.getpid(), host=this_host(), ttl_s=60)
    assert f"{AT_REST} holds the lease" in tick(restart_sensor([FLIGHTS], [])).skip_message
    database.release(lease)
    [request] = requested(tick(restart_sensor([FLIGHTS], [])))
    assert request.run_config["ops"]["flights_ingest"] == {"config": {"until_caught_up": False}}
    assert "was killed" in why_it_ended(settings, "flights", owner_of(run.run_id)), "and its own run says so too"


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED])
def test_a_driver_without_heartbeats_during_a_long_epoch_is_not_taken_for_dead_because_of_a_swap(
    database, run_of, tick, status, monkeypatch
):
    monkeypatch.setattr(restart, "REPORT_LIMIT_S", 0.0)
    run = run_of(status)
    database.acquire_lease("flights", owner=owner_of(run.run_id), pid=os.getpid(), host=this_host(), ttl_s=-1)
    swap_at_rest(database)
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason)


def test_a_killed_driver_is_not_restarted_once_somebody_has_started_another(database, drive, run_of, tick):
    drive(owner_of(run_of(dg.DagsterRunStatus.FAILURE).run_id), ended_pid())
    database.release(drive("weir run"))
    swap_at_rest(database)
    assert isinstance(tick(restart_sensor([FLIGHTS], [])), dg.SkipReason)


def test_a_driver_that_dies_again_and_again_is_restarted_after_a_pause_that_the_skipped_tick_explains(
    drive, run_of, tick
):
    def look(pause_s: float, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        return tick(restart_sensor([replace(FLIGHTS, thresholds=Thresholds(restart_pause_s=pause_s))], []), cursor)

    run, pids = run_of(dg.DagsterRunStatus.FAILURE), [ended_pid(), ended_pid()]
    drive(owner_of(run.run_id), pids[0])
    first = look(100, None)
    assert requested(first), "the first restart is immediate"
    drive(owner_of(run.run_id), pids[1])
    second = look(100, first.cursor)
    assert not requested(second)
    why = second.skip_reason.skip_message
    assert re.search(r"\b2 consecutive drivers or runs\b.* at \d\d:\d\d:\d\d UTC, in \d+ s", why)
    assert f"(process {pids[1]} on {this_host()}) was killed" in why
    assert isinstance(look(100, second.cursor), dg.SkipReason), "another tick does not postpone it"
    assert requested(look(0, second.cursor))


@pytest.fixture
def next_run(instance):
    """``next_run(request, status)`` is the run that Dagster makes for a request."""

    def create(request: dg.RunRequest, status: dg.DagsterRunStatus) -> dg.DagsterRun:
        job = defs.resolve_job_def(request.job_name)
        if request.asset_selection is not None:
            checks = None if request.asset_check_keys is None else set(request.asset_check_keys)
            job = job.get_subset(asset_selection=set(request.asset_selection), asset_check_selection=checks)
        return instance.create_run_for_job(
            job,
            status=status,
            run_config=request.run_config,
            tags={**request.tags, "dagster/run_key": request.run_key},
        )

    return create


def test_a_restarted_run_that_fails_before_its_driver_begins_is_followed_by_another_after_a_pause(
    drive, run_of, next_run, tick
):
    def look(pause_s: float, cursor: str | None) -> dg.SensorResult | dg.SkipReason:
        return tick(restart_sensor([replace(FLIGHTS, thresholds=Thresholds(restart_pause_s=pause_s))], []), cursor)

    drive(owner_of(run_of(dg.DagsterRunStatus.FAILURE).run_id), ended_pid())
    first = look(100, None)
    [request] = requested(first)
    assert requested(look(100, first.cursor))[0].run_key == request.run_key, "Dagster has not made it: asked again"
    run = next_run(request, dg.DagsterRunStatus.FAILURE)
    waits = look(100, first.cursor)
    assert "2 consecutive drivers or runs died without progress" in waits.skip_reason.skip_message
    second = look(0, first.cursor)
    [another] = requested(second)
    assert another.run_key != request.run_key
    assert (another.job_name, another.run_config) == (request.job_name, request.run_config)
    assert another.job_name == run.job_name
    run = next_run(another, dg.DagsterRunStatus.STARTED)
    assert f"its next run {run.run_id} has begun: started" in look(0, second.cursor).skip_message


def test_a_restarted_run_that_somebody_cancels_is_followed_by_none(drive, run_of, next_run, tick):
    drive(owner_of(run_of(dg.DagsterRunStatus.FAILURE).run_id), ended_pid())
    first = tick(restart_sensor([FLIGHTS], []))
    run = next_run(requested(first)[0], dg.DagsterRunStatus.CANCELED)
    said = tick(restart_sensor([FLIGHTS], []), first.cursor).skip_message
    assert f"its next run {run.run_id} has ended: canceled" in said


@pytest.mark.parametrize(("ago_s", "is_gone"), [(1, False), (3600, True), (-1, False), (-3600, True)])
def test_a_driver_of_another_host_is_gone_if_its_last_heartbeat_is_long_ago_or_from_before_the_clock_went_back(
    ago_s, is_gone
):
    driver = replace(running(), host="elsewhere", heartbeat_at_ms=(10_000 - ago_s) * 1000)
    assert has_ended(driver, 10_000.0) == is_gone


def test_the_cursor_of_an_earlier_version_is_read():
    stored = '{"life": "1700000000000-42", "count": 3, "seen_s": 1700000000.5}'
    assert Backoff.from_cursor(stored) == Backoff("1700000000000-42", 3, START_S + 0.5)
    assert Backoff.from_cursor(Backoff.from_cursor(stored).cursor) == Backoff("1700000000000-42", 3, START_S + 0.5)


def test_pauses_double_up_to_the_longest_and_start_over_after_progress():
    limits = Thresholds(restart_pause_s=10, restart_pause_max_s=60)
    backoff, pauses_s = Backoff(), []
    for number, had_progress in enumerate([True, False, False, False, False, False, True, False]):
        backoff = Backoff.from_cursor(backoff.cursor).with_death(str(number), made_progress=had_progress, now_s=START_S)
        pauses_s.append(backoff.next_start_s(limits) - START_S)
    assert pauses_s == [0, 10, 20, 40, 60, 60, 0, 10]


@pytest.mark.parametrize(
    ("committed_s", "reading_s", "lag", "committed_epoch", "expected"),
    [
        (STEADY_S, None, 0, 7, True),
        (STEADY_S - 1, None, 0, 7, False),
        (None, None, 0, 7, False),
        (-100, STEADY_S, 0, 7, True),
        (-100, STEADY_S, 1, 7, False),
        (-100, STEADY_S, 0, 6, False),
    ],
    ids=["still commits", "not long enough", "no commit at all", "nothing to do", "only lag", "uncommitted epochs"],
)
def test_a_driver_made_progress_if_it_committed_for_a_while_or_had_nothing_to_commit(
    commit_of, committed_s, reading_s, lag, committed_epoch, expected
):
    """Seconds count from the start."""
    reading = (
        None
        if reading_s is None
        else metric(committed_epoch=committed_epoch, lag=lag, at_ms=round((START_S + reading_s) * 1000))
    )
    driver = running(state="dead", is_running=False, has_process=False, started_at_ms=START_S * 1000, metric=reading)
    newest = None if committed_s is None else commit_of(7, at_s=START_S + committed_s)
    assert made_progress(driver, newest, STEADY_S) is expected
