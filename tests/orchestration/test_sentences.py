"""No sentence that Dagster shows of something that is wrong names a command: an operator there has none."""

import os
import time
from pathlib import Path

import dagster as dg
import msgspec
import pytest

from tests.orchestration.applications import SHOP
from tests.orchestration.readings import metric, observed, task
from tests.state.quarantine_folders import DAY_S, put
from weir.infra.control import this_host
from weir.orchestration.application import definitions
from weir.orchestration.assets import ingest
from weir.orchestration.checks.lag import unknown_lag
from weir.orchestration.checks.quarantine import quarantine_result
from weir.orchestration.checks.running import running_result
from weir.orchestration.checks.sinks import sink_results
from weir.orchestration.jobs import checks, compaction
from weir.orchestration.resources import WeirResource
from weir.orchestration.sensors import watching
from weir.orchestration.sensors.health import health_sensor
from weir.pipelines.operations import control
from weir.pipelines.operations.registry import register
from weir.pipelines.publishing.publisher import MarkLostError, OtherOutboxError
from weir.pipelines.publishing.state import SinkState
from weir.pipelines.spark.errors import (
    CommitLogLostError,
    Loss,
    LostPosition,
    MatchedTopicGoneError,
    NoMatchingTopicError,
    OffsetsLostError,
    OtherApplicationError,
    PartitionCountError,
    PendingRowsError,
    ProgramReplacedError,
    StorePlacementError,
    TopologyChangedError,
)
from weir.state.changelog.verify import StateDifferenceError
from weir.state.errors import FormatVersionError

LOST = LostPosition(topic="orders", partition=0, position=7, loss=Loss.DELETED, found="", resume=0)
REFUSALS = [
    OffsetsLostError("shop", [LOST]),
    NoMatchingTopicError("shop", "orders-.*"),
    MatchedTopicGoneError("shop", "orders-1"),
    CommitLogLostError("shop", "/there/_commits", "a table"),
    TopologyChangedError("shop", "the store counts would be gone"),
    OtherApplicationError("shop"),
    ProgramReplacedError("shop"),
    StorePlacementError("counts", "user='ann'", 1),
    PendingRowsError("shop", 3),
    PartitionCountError("shop", 2, 4, "orders has 4"),
    StateDifferenceError("orders-0", "counts", "user='ann'", "1", "2", "shop", "0_0"),
]
PARTITIONED = {"weir_restore": "shop:0_0", "weir_swap_backfill": "shop:b", "weir_discard_backfill": "shop:b"}


def assert_names_no_command(text: str) -> None:
    assert text
    assert "`weir " not in text, text
    assert "weir sink" not in text, text


@pytest.fixture
def shop(settings, database):
    """A driver of the shop that has just started."""
    register(settings, "shop", SHOP.reference)
    return database.acquire_lease("shop", owner="test", pid=os.getpid(), host=this_host(), ttl_s=60)


@pytest.fixture
def defs(settings):
    return definitions(SHOP, weir=WeirResource(dir=str(settings.dir)))


@pytest.fixture
def run(defs, instance):
    """``run(job)`` launches it; why it failed."""

    def launch(name: str) -> str:
        job = defs.resolve_job_def(name)
        partition = "shop:orders" if name.startswith("weir_sink_") else PARTITIONED.get(name, "shop")
        if isinstance(job.partitions_def, dg.DynamicPartitionsDefinition):
            instance.add_dynamic_partitions(job.partitions_def.name, [partition])
        result = job.execute_in_process(instance=instance, partition_key=partition, raise_on_error=False)
        assert not result.success
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        return failed.user_failure_data.description

    return launch


@pytest.mark.parametrize("error", REFUSALS, ids=lambda each: type(each).__name__)
def test_a_driver_that_was_refused(database, instance, shop, error):
    database.release(shop, state="failed", error=str(error))
    driver = database.application_status("shop", of_driver=True)
    found = running_result(SHOP, driver, instance, time.time(), Path("shop.log"))
    assert not found.passed
    assert_names_no_command(found.description)
    assert "shop_run" in found.description


def test_a_task_in_doubt(database, instance, shop, tick):
    reason = str(REFUSALS[-1])
    database.heartbeat(shop, state="running")
    database.report_tasks("shop", [task(status="corrupted", reason=reason)])
    database.add_metric("shop", metric())
    driver = database.application_status("shop", of_driver=True)
    found = running_result(SHOP, driver, instance, time.time(), Path("shop.log"))
    [record] = found.metadata["tasks"].records
    for text in (found.description, record.data["note"], *observed(tick(health_sensor([SHOP])))):
        assert_names_no_command(text)
        assert "weir_restore with the partition shop:0_0" in text


@pytest.mark.parametrize(
    "state",
    [
        {"error": "too large", "awaits": "skip"},
        {"error": str(MarkLostError("shop", "orders", 4, None)), "awaits": "resume"},
        {"error": str(OtherOutboxError("shop", "orders")), "waiting_since_s": 1.0},
        {"refused_rows": 2, "refused_reason": "too large"},
    ],
    ids=["skip", "resume", "waits", "aside"],
)
def test_a_sink_in_trouble(database, settings, shop, tick, state):
    database.report_tasks("shop", [task()])
    database.add_metric("shop", metric())
    told = SinkState(sink="orders", target="topic: checked", **state)
    database.report_sinks("shop", [msgspec.to_builtins(told)])
    [found] = sink_results(SHOP, settings)
    assert not found.passed
    for text in (found.description, found.metadata["state"].text, *observed(tick(health_sensor([SHOP])))):
        assert_names_no_command(text)


def test_a_quarantine_beyond_its_limits(settings):
    for name in ("older", "old"):
        put(settings.state_dir / "shop", name, age_s=30 * DAY_S)
    found = quarantine_result(SHOP, settings)
    assert not found.passed
    assert_names_no_command(found.description)


def test_what_sensors_and_checks_cannot_look_at(defs, instance, settings, database, tick, run, monkeypatch):
    error = FormatVersionError("shop", "commit log", 99, 3)

    def fail(*given, **named):
        raise error

    assert_names_no_command(unknown_lag(SHOP, error).description)
    sensor = watching.watch("broken", fail, [SHOP], every_s=10, description="Fails.")
    assert_names_no_command(tick(sensor).skip_message)
    monkeypatch.setattr(checks, "state_result", fail)
    assert_names_no_command(run("weir_verify"))


@pytest.mark.parametrize(
    "name",
    [
        *("weir_pause", "weir_resume", "weir_commit_now", "weir_stop", "weir_snapshot", "weir_restore"),
        *("weir_compaction", "weir_replay_dead_letters", "weir_discard_backfill"),
        *("weir_sink_skip", "weir_sink_resume", "weir_sink_retry", "weir_sink_discard"),
    ],
)
@pytest.mark.parametrize("has_run", [False, True])
def test_a_job_that_is_refused(database, shop, settings, run, name, has_run):
    """Where nothing has run, and where no driver runs."""
    if has_run:
        state = SinkState(sink="orders", target="topic: checked")
        database.report_sinks("shop", [msgspec.to_builtins(state)])
    else:
        (settings.dir / "applications" / "shop.json").unlink()
    database.release(shop)
    assert_names_no_command(run(name))


def test_a_compaction_that_fails(shop, run, monkeypatch):
    def fail(*given, **named):
        raise FormatVersionError("shop", "commit log", 99, 3)

    monkeypatch.setattr(compaction, "compact_application", fail)
    said = run("weir_compaction")
    assert_names_no_command(said)
    assert said.endswith("start over with the command weir reset shop on the host")


@pytest.mark.parametrize("error", REFUSALS, ids=lambda each: type(each).__name__)
def test_a_run_whose_driver_was_refused(defs, instance, monkeypatch, error):
    """What its configuration accepts reaches the driver."""
    asked = {}

    def refuse(module, supervised, context, weir, pipes, extras):
        asked.update(extras)
        return None, {"error": str(error)}

    monkeypatch.setattr(ingest, "run_driver", refuse)
    config = {"until_caught_up": True, "accept_lost_records": True}
    result = defs.resolve_job_def("shop_run").execute_in_process(
        instance=instance, run_config={"ops": {"shop_ingest": {"config": config}}}, raise_on_error=False
    )
    [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert_names_no_command(failed.user_failure_data.description)
    assert (asked["accept_lost_records"], asked["accept_state_loss"]) == (True, False)


@pytest.mark.parametrize("name", ["weir_pause", "weir_restore", "weir_sink_skip", "weir_replay_dead_letters"])
def test_a_driver_that_does_not_answer(database, shop, run, monkeypatch, name):
    database.report_sinks("shop", [msgspec.to_builtins(SinkState(sink="orders", target="topic: checked"))])
    monkeypatch.setattr(control, "ANSWER_LIMIT_S", 0.0)
    monkeypatch.setattr(control, "LOOK_EVERY_S", 0.01)
    said = run(name)
    assert_names_no_command(said)
    assert "the log file logs/shop.log in Weir's folder shows what it did last" in said
