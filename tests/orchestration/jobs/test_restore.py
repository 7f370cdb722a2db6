"""The job that restores a task follows the driver, whose process says whether it has ended, not its lease."""

import os
from threading import Thread

import dagster as dg
import pytest

from tests.orchestration.applications import FLIGHTS
from tests.waiting import wait_for
from weir.infra.control import TaskStatusRow, this_host
from weir.orchestration.jobs import restore as module
from weir.orchestration.jobs.restore import restore_job
from weir.orchestration.resources import WeirResource
from weir.pipelines.operations.registry import register

TASK = "0_1"


@pytest.mark.parametrize(
    ("status", "reason", "failure"),
    [
        ("running", "", ""),
        ("corrupted", "its restore has failed 1 time", "task 0_1 is corrupted: its restore has failed 1 time"),
    ],
)
def test_a_restore_is_followed_to_its_end_while_the_driver_cannot_extend_its_lease(
    settings, database, instance, monkeypatch, status, reason, failure
):
    monkeypatch.setattr(module, "FOLLOW_EVERY_S", 0.01)
    register(settings, "flights", FLIGHTS.reference)
    lease = database.acquire_lease("flights", owner="weir run", pid=os.getpid(), host=this_host(), ttl_s=0.0)
    instance.add_dynamic_partitions("weir_tasks", [f"flights:{TASK}"])
    looks, application_status = [], type(database).application_status
    monkeypatch.setattr(
        type(database), "application_status", lambda *given: looks.append(1) or application_status(*given)
    )

    def drive() -> None:
        wait_for(lambda: database.pending_requests("flights"), "it is asked")
        database.report_tasks("flights", [TaskStatusRow(task=TASK, slot=0, status="restoring")])
        database.finish_request(database.pending_requests("flights")[0].id, f"task {TASK} is restoring")
        before = len(looks)
        wait_for(lambda: len(looks) > before + 5, "it is followed")
        database.report_tasks("flights", [TaskStatusRow(task=TASK, slot=0, status=status, reason=reason)])

    driver = Thread(target=drive)
    driver.start()
    result = restore_job([FLIGHTS]).execute_in_process(
        instance=instance,
        partition_key=f"flights:{TASK}",
        resources={"weir": WeirResource(dir=str(settings.dir))},
        raise_on_error=False,
    )
    driver.join()
    database.release(lease)
    assert result.success == (not failure)
    failed = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
    assert instance.fetch_materializations(FLIGHTS.checkpoints, limit=1).records == [], "no commit has the task yet"
    assert len(failed) == bool(failure)
    assert all(failure in entry.get_dagster_event().step_failure_data.error_display_string for entry in failed)
