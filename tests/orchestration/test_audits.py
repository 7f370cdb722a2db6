"""Checks of a warehouse whose commits are right, and of ones that are not."""

import asyncio
import random
from datetime import timedelta

import dagster as dg
import lmdb
import polars as pl
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
from dagster._core.events import DagsterEvent
from dagster._core.loader import LoadingContextForTest
from dagster._core.test_utils import freeze_time
from dagster._time import get_current_datetime
from deltalake import DeltaTable

from tests.orchestration.flights import FLIGHTS
from tests.pipelines.operations.test_verify import Shop
from tests.pipelines.spark.inline import Topics
from tests.pipelines.spark.sales import application, sales
from weir.infra.control import TaskStatusRow, this_host
from weir.orchestration.audits import audit_checks, state_checks
from weir.orchestration.ingest import ingest_assets
from weir.orchestration.repair import repair_sensor
from weir.orchestration.resources import WeirResource
from weir.orchestration.steering import restore_job
from weir.orchestration.supervised import Supervised
from weir.orchestration.thresholds import Thresholds
from weir.pipelines.operations import verify
from weir.state.commit.files import write_file
from weir.state.engine.cache import TaskStoreCache
from weir.state.engine.databases import Databases
from weir.state.stores.codec import KeyCodec

CHECKS = {"offsets_continuous", "late_record_rate", "uncommitted_bytes", "dead_letter_rate", "rows_as_committed"}


@pytest.fixture
def audit(settings):
    """``audit()`` runs the checks; results by name, those of the outputs by table."""

    def run() -> dict[str, dg.AssetCheckResult]:
        results = list(audit_checks(FLIGHTS)(WeirResource(dir=str(settings.dir))))
        assert {result.check_name for result in results} == CHECKS
        return {result.check_name: result for result in results}

    return run


@pytest.mark.usefixtures("committer")
def test_without_a_commit_nothing_is_wrong(audit):
    assert all(result.passed for result in audit().values())


def test_offsets_that_go_back_are_an_error_and_gaps_a_warning(committer, commit_of, audit):
    committer.commit(commit_of(1, offset=10))
    committer.commit(commit_of(2, offset=25))
    assert audit()["offsets_continuous"].passed
    committer.commit(commit_of(3, offset=35, records_in=30))
    gap = audit()["offsets_continuous"]
    assert (gap.passed, gap.severity) == (False, dg.AssetCheckSeverity.WARN)
    committer.commit(commit_of(4, offset=30, records_in=30))
    back = audit()["offsets_continuous"]
    assert (back.passed, back.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "goes back in flights-0" in back.description


def test_rates_are_those_of_the_records_read(committer, commit_of, audit):
    committer.commit(commit_of(1, offset=1000, dead_letters=1, late_records=8))
    found = audit()
    assert (found["dead_letter_rate"].passed, found["late_record_rate"].passed) == (True, True), "1 and 10 of 1000"
    committer.commit(commit_of(2, offset=2000, dead_letters=3, late_records=19))
    found = audit()
    assert (found["dead_letter_rate"].passed, found["late_record_rate"].passed) == (False, False), "3 and 21 of 2000"
    assert found["dead_letter_rate"].metadata["share"].value == 0.0015


def test_uncommitted_bytes_count_while_a_driver_runs(database, audit):
    lease = database.acquire_lease("flights", owner="weir run", pid=1, host=this_host(), ttl_s=60)
    database.report_tasks(
        "flights",
        [TaskStatusRow(task="0_0", slot=0, status="running", uncommitted_bytes=Thresholds().uncommitted_max_bytes + 1)],
    )
    assert not audit()["uncommitted_bytes"].passed
    database.release(lease)
    assert audit()["uncommitted_bytes"].passed


def compare(supervised: Supervised, settings) -> list[dg.AssetCheckResult]:
    """The full comparison and the sampled one."""
    return [check(WeirResource(dir=str(settings.dir))) for check in state_checks(supervised)]


def test_a_task_without_its_store_fails_the_comparison_with_its_changelog(committer, commit_of, settings):
    committer.commit(commit_of(1))
    for result in compare(FLIGHTS, settings):
        assert (result.passed, result.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert "wanted i, found nothing" in result.description


@pytest.fixture
def shop(settings, monkeypatch):
    """Two tasks with five rows each, and what Dagster knows of them."""
    place = Shop(application(), Topics({("sales", number): sales(40, number) for number in (0, 1)}), settings.dir)
    place.run()
    monkeypatch.setattr(verify, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(Databases, "check", lambda databases: None)  # what counting finds is tested with the engine
    yield place
    TaskStoreCache.close_all()


def lose_a_row(shop: Shop) -> None:
    (spec,) = shop.application.topology.sub_topologies[0].stores
    [lost] = KeyCodec(spec.key, spec.kind).encode(pl.DataFrame({"shop": ["shop-3"]}))
    with lmdb.open(str(shop.state_of("0_1") / "first"), max_dbs=8, map_size=1 << 30) as raw, raw.begin(write=True) as t:
        assert t.delete(lost, db=raw.open_db(b"sums", txn=t))


@pytest.mark.slow
def test_a_lost_row_fails_the_comparison_and_requests_one_restore_of_its_task_from_the_changelog(
    shop, settings, database, instance, tick, monkeypatch
):
    known = Supervised(application=shop.application, reference="nowhere:sales", topics={"sales": dg.AssetKey("sales")})
    sensor = repair_sensor(known, restore_job(known))
    full, sampled = compare(known, settings)
    assert (full.passed, full.metadata["tasks"].value, full.metadata["rows"].value) == (True, 2, 10)
    assert (sampled.passed, sampled.metadata["tasks"].value, sampled.metadata["rows"].value) == (True, 1, 5)
    lose_a_row(shop)
    monkeypatch.setattr(random, "sample", lambda tasks, count: sorted(tasks)[-count:])
    for result in compare(known, settings):
        assert (result.passed, result.metadata["task"].value) == (False, "0_1")
        assert "key shop=shop-3: wanted" in result.description
    assert isinstance(tick(sensor), dg.SkipReason)
    checks = state_checks(known)

    def evaluate() -> None:
        assert (
            not dg.materialize(
                checks,
                selection=dg.AssetSelection.all_asset_checks(),
                instance=instance,
                resources={"weir": WeirResource(dir=str(settings.dir))},
                raise_on_error=False,
            )
            .get_asset_check_evaluations()[0]
            .passed
        )

    evaluate()
    assert "once a driver of sales runs" in tick(sensor).skip_message
    database.acquire_lease("sales", owner="weir run", pid=1, host=this_host(), ttl_s=60)
    asked = tick(sensor)
    [request] = asked.run_requests
    assert request.partition_key == "0_1"
    [op] = request.run_config["ops"].values()
    assert op["config"]["from_changelog"]
    assert isinstance(tick(sensor, asked.cursor), dg.SkipReason), "one restore a finding"
    evaluate()
    assert "less than 600 s ago" in tick(sensor, asked.cursor).skip_message


@pytest.mark.usefixtures("database")
def test_a_comparison_that_a_run_has_still_to_make_asks_for_nothing(instance, tick):
    instance.report_dagster_event(
        DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
            job_name="flights_verify",
            event_specific_data=AssetCheckEvaluationPlanned(
                asset_key=FLIGHTS.ingest, check_name="state_equals_changelog"
            ),
        ),
        "a-run",
    )
    assert "no comparison has found" in tick(repair_sensor(FLIGHTS, restore_job(FLIGHTS))).skip_message


def test_what_holds_back_downstream_are_the_errors():
    specs = [spec for check in (audit_checks(FLIGHTS), *state_checks(FLIGHTS)) for spec in check.check_specs]
    assert {spec.name for spec in specs if spec.blocking} == {
        "offsets_continuous",
        "rows_as_committed",
        "state_equals_changelog",
        "sampled_state_equals_changelog",
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_output_that_lacks_committed_rows_holds_back_what_is_downstream(
    committer, commit_of, settings, instance, is_lost
):
    spec = FLIGHTS.table_specs["late_departures"]
    rows = pl.DataFrame([{name: None for name in spec.schema} | {"_epoch": 1}] * 3, schema=spec.schema)
    entry = write_file(settings.warehouse / "flights", spec, rows)
    committer.commit(commit_of(1, files=(entry,)))
    if is_lost:
        DeltaTable(settings.warehouse / "flights" / "late_departures").delete()

    @dg.multi_asset(specs=[dg.AssetSpec(key) for key in (FLIGHTS.ingest, *FLIGHTS.tables.values())])
    def committed():
        yield from (dg.MaterializeResult(key) for key in (FLIGHTS.ingest, *FLIGHTS.tables.values()))

    @dg.asset(deps=[FLIGHTS.outputs["late_departures"]])
    def report() -> None: ...

    result = dg.materialize(
        [committed, audit_checks(FLIGHTS), report],
        instance=instance,
        raise_on_error=False,
        resources={"weir": WeirResource(dir=str(settings.dir))},
    )
    assert result.success is not is_lost
    made = {event.asset_key for event in result.get_asset_materialization_events()}
    assert (dg.AssetKey("report") in made) is not is_lost


def test_an_ingest_without_news_turns_stale_by_dagsters_own_policy(instance):
    graph = dg.Definitions(
        [ingest_assets(FLIGHTS)], resources={"weir": WeirResource(), "pipes": None}
    ).resolve_asset_graph()
    instance.report_runless_asset_event(dg.AssetMaterialization(FLIGHTS.ingest))
    thresholds, now = Thresholds(), get_current_datetime()
    for age_s, state in (
        (0.0, FreshnessState.PASS),
        (thresholds.stale_warn_s + 5, FreshnessState.WARN),
        (thresholds.stale_fail_s + 5, FreshnessState.FAIL),
    ):
        with freeze_time(now + timedelta(seconds=age_s)):
            assert (
                asyncio.run(
                    TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(
                        LoadingContextForTest(instance), graph.get(FLIGHTS.ingest)
                    )
                )
                == state
            )
