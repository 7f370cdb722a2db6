"""The jobs that decide about a sink's rows: what the check names is launched, beside a thread that stands for the
driver."""

import os
from collections.abc import Mapping
from threading import Thread

import dagster as dg
import msgspec
import pytest

from tests.orchestration.applications import SHOP, clicks
from tests.pipelines.publishing.batches import Orders, http_node
from tests.waiting import wait_for
from weir.infra.control import this_host
from weir.orchestration.application import definitions, supervise
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.jobs.sinks import sink_jobs
from weir.orchestration.resources import WeirResource
from weir.pipelines.operations import sinks
from weir.pipelines.operations.registry import register
from weir.pipelines.publishing.state import RefusedPlace, Resent, SinkState
from weir.state.commit.outbox import Mark, Outbox
from weir.state.commit.refused import Refused

PARTITION = "shop:orders"
REFUSAL = RefusedPlace(epoch=5, first_row=1, rows=1, key="user='ann'", reason="too large")
ASIDE = SinkState(sink="orders", target="topic: checked", refused_rows=5, refused=(REFUSAL,))
JOBS = {job.name: job for job in sink_jobs([SHOP])}


@pytest.fixture
def tell(settings, database):
    """``tell(state)`` reports it as a driver does; that of the fixture has ended."""
    register(settings, "shop", SHOP.reference)
    database.release(database.acquire_lease("shop", owner="test", pid=os.getpid(), host=this_host(), ttl_s=60))

    def report(state: SinkState) -> None:
        database.report_sinks("shop", [msgspec.to_builtins(state)])

    return report


@pytest.fixture
def checked(settings):
    """What the check ``delivered`` says."""

    def description() -> str:
        (result,) = sink_results(SHOP, settings)
        return result.description

    return description


@pytest.fixture
def run(settings, instance):
    """``run(job, partition)`` runs it; whether it succeeded, and what it says."""

    def launch(job: str, partition: str | None = PARTITION) -> tuple[bool, str]:
        result = JOBS[job].execute_in_process(
            instance=instance,
            partition_key=partition,
            resources={"weir": WeirResource(dir=str(settings.dir))},
            raise_on_error=False,
        )
        if not result.success:
            [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
            return False, failed.user_failure_data.description
        [observed] = instance.fetch_observations(SHOP.sinks["orders"], limit=1).records
        return True, observed.asset_observation.description

    return launch


@pytest.fixture
def driven(database, tell):
    """``driven(job, answer, after)`` is a driver that answers one request, tells ``after`` of it and ends; ``job`` is
    what is launched meanwhile. What was asked and by whom, and what came of it."""

    def answering(launch, answer: str, after=None) -> tuple[Mapping[str, str], str, tuple[bool, str]]:
        lease = database.acquire_lease("shop", owner="test", pid=os.getpid(), host=this_host(), ttl_s=60)
        asked = []

        def drive() -> None:
            wait_for(lambda: database.pending_requests("shop"), "it is asked")
            asked.extend(database.pending_requests("shop"))
            if after is not None:
                tell(after(asked[0].arguments))
            database.finish_request(asked[0].id, answer)

        driver = Thread(target=drive)
        driver.start()
        outcome = launch()
        driver.join()
        database.release(lease)
        [request] = asked
        return request.arguments, request.requested_by, outcome

    return answering


def test_a_row_that_is_refused_is_put_aside_by_the_job_that_the_check_names(tell, checked, run, driven):
    tell(SinkState(sink="orders", target="topic: checked", error="too large", awaits="skip"))
    assert checked().endswith("launch weir_sink_skip with the partition shop:orders")
    arguments, by, outcome = driven(lambda: run("weir_sink_skip"), "the row is put aside")
    assert arguments == {"sink": "orders", "action": "skip"}
    assert by.startswith("dagster run ")
    assert outcome == (True, "the row is put aside")


def test_rows_that_wait_for_a_decision_are_published_by_the_job(tell, run, driven):
    tell(SinkState(sink="orders", target="topic: checked", error="made anew", awaits="resume"))
    arguments, _, outcome = driven(lambda: run("weir_sink_resume"), "the waiting rows are published")
    assert arguments == {"sink": "orders", "action": "resume"}
    assert outcome == (True, "the waiting rows are published")


def test_rows_that_are_aside_are_sent_again_by_the_job_that_the_check_names(tell, checked, run, driven):
    tell(ASIDE)
    assert "launch weir_sink_retry with the partition shop:orders" in checked()
    after = lambda asked: msgspec.structs.replace(
        ASIDE, refused_rows=0, refused=(), resent=Resent(id=asked["id"], delivered_rows=5)
    )
    assert driven(lambda: run("weir_sink_retry"), "sent again", after)[2] == (True, "5 refused rows delivered")
    assert checked() == "all is published"


def test_a_row_that_is_refused_once_more_fails_the_run_which_says_why(tell, run, driven):
    tell(ASIDE)
    resent = lambda asked: Resent(id=asked["id"], delivered_rows=1, error=str(REFUSAL))
    after = lambda asked: msgspec.structs.replace(ASIDE, refused_rows=4, resent=resent(asked))
    _, _, (is_well, said) = driven(lambda: run("weir_sink_retry"), "sent again", after)
    assert not is_well
    assert said.startswith(f"sink orders: 1 refused row delivered, 4 still refused: {REFUSAL}; correct that at the ")
    assert said.endswith(
        "launch weir_sink_retry again with the partition shop:orders, or weir_sink_discard to delete what is left"
    )


def test_a_retry_of_which_nothing_is_known_in_time_names_the_check(tell, run, driven, monkeypatch):
    tell(ASIDE)
    monkeypatch.setattr(sinks, "OUTCOME_LIMIT_S", 0.0)
    outcome = driven(lambda: run("weir_sink_retry"), "sent again")[2]
    assert outcome == (True, "sent again; the check delivered of its asset shows whether any is left")


def test_rows_that_are_aside_are_deleted_while_no_driver_runs(settings, tell, run):
    tell(ASIDE)
    orders = Orders(settings.warehouse / "shop", http_node("http://localhost"))
    orders.commit(1)
    ((rows, reached),) = Outbox(orders.folder, "orders", "shop").rows(Mark(), at_most=1, size_bytes=1)
    refused = Refused(orders.folder, "orders", "shop")
    refused.add(rows, reached, "too large")
    assert run("weir_sink_discard") == (True, "deleted 1 refused row")
    assert refused.count() == 0
    assert run("weir_sink_discard") == (False, "shop: no rows of the sink 'orders' are aside")


@pytest.mark.parametrize("job", [name for name in JOBS if name != "weir_sink_discard"])
def test_without_a_driver_the_run_fails_and_names_the_job_that_starts_one(tell, run, job):
    tell(ASIDE)
    assert run(job) == (False, "shop is not running; start it with the job shop_run")


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_each_job_opens_on_a_valid_form_and_wants_a_sink_as_its_partition(run, job):
    assert job.partitions_def.get_partition_keys() == [PARTITION]
    assert dg.validate_run_config(job, job.partitioned_config.get_run_config_for_partition_key(PARTITION))
    assert run(job.name, None) == (False, "choose the sink as the partition of the run")


def test_applications_without_sinks_have_no_such_jobs():
    names = {job.name for job in definitions(supervise(clicks("clicking"), "nowhere:app")).jobs}
    assert not names & JOBS.keys()
    assert {job.name for job in definitions(SHOP).jobs} >= JOBS.keys()
