"""Backfills from Dagster: days, or everything, are one run, which recomputes the same rows as the live run."""

import os
import signal
import threading
from datetime import UTC, date, datetime, timedelta

import dagster as dg
import polars as pl
import psutil
import pytest
from confluent_kafka import Producer
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from deltalake import DeltaTable
from polars.testing import assert_frame_equal

from tests.orchestration import clocked
from tests.orchestration.applications import clicks
from tests.pipelines.cli.typed import opened
from tests.waiting import wait_for
from weir import Application, Int64, StreamsBuilder, String
from weir.infra.kafka.admin import KafkaAdmin
from weir.infra.kafka.broker import broker_for
from weir.infra.settings import Settings
from weir.orchestration.application import definitions, supervise
from weir.orchestration.assets import backfill
from weir.orchestration.assets.backfill import BackfillConfig, _left_by_termination, run_backfill
from weir.orchestration.assets.partitions import update_partitions
from weir.orchestration.definitions import defs
from weir.orchestration.examples.applications import weather_app
from weir.orchestration.jobs.rebuild import RebuildConfig
from weir.orchestration.resources import WeirResource, driver_pipes
from weir.orchestration.supervised import BACKFILLS
from weir.pipelines.backfill.shadow import shadows
from weir.pipelines.examples.load_weather import weather_records
from weir.pipelines.operations.backfills import backfills, discard
from weir.state.commit.protocol import newest_commit
from weir.state.commit.tables import read_rows

DAY = datetime(2013, 3, 4, tzinfo=UTC)
BACKFILL = dg.AssetKey(["weather", "backfill"])
WEATHER = definitions(weather_app)


def test_a_range_of_days_is_one_run_and_the_days_are_the_applications():
    graph = defs.resolve_asset_graph()
    for application, output in (("flights", "late_departures"), ("weather", "daily_weather")):
        node = graph.get(dg.AssetKey([application, "backfill"]))
        assert node.backfill_policy == dg.BackfillPolicy.single_run()
        assert node.partitions_def.name == f"{application}_days"
        assert node.parent_keys == {dg.AssetKey([application, name]) for name in ("topic", output)}


def test_an_application_whose_rows_have_no_day_has_no_backfill_asset():
    clicking = supervise(clicks("clicking"), "nowhere:app", first_day=date(2024, 1, 1))
    graph = definitions(clicking).resolve_asset_graph()
    assert dg.AssetKey(["clicking", "backfill"]) not in graph.get_all_asset_keys()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Settings of a folder where the weather was loaded and read, and resources for that folder."""
    settings = Settings(dir=tmp_path_factory.mktemp("backfill") / "weir", slots=2)
    resources = {"weir": WeirResource(dir=str(settings.dir), slots=2), "pipes": driver_pipes()}
    with broker_for(settings):
        assets = [each for each in WEATHER.assets if BACKFILL not in getattr(each, "keys", ())]
        assert dg.materialize(assets, resources=resources).success
        yield settings, resources


def recompute(place, instance: dg.DagsterInstance, config: dict | None = None) -> dg.ExecuteInProcessResult:
    """A run over three of the days that are offered."""
    update_partitions(weather_app, place[0], instance)
    [asset] = [each for each in WEATHER.assets if BACKFILL in getattr(each, "keys", ())]
    return dg.materialize(
        [asset],
        resources=place[1],
        instance=instance,
        selection=[BACKFILL],
        raise_on_error=False,
        tags={ASSET_PARTITION_RANGE_START_TAG: "2013-03-04", ASSET_PARTITION_RANGE_END_TAG: "2013-03-06"},
        run_config={"ops": {"weather__backfill": {"config": config}}} if config else None,
    )


def run_job(place, instance: dg.DagsterInstance, name: str, partition: str, **config) -> dict[str, object]:
    """Launch a job as its launchpad does, but for ``config``; the metadata of its step."""
    job = definitions(weather_app, weir=place[1]["weir"]).resolve_job_def(name)
    form = job.partitioned_config.get_run_config_for_partition_key(partition)
    for op in form.get("ops", {}).values():
        op["config"] |= config
    result = job.execute_in_process(instance=instance, partition_key=partition, run_config=form)
    [output] = result.filter_events(lambda event: event.is_successful_output)
    return {name: entry.value for name, entry in output.event_specific_data.metadata.items()}


def listed(place, instance: dg.DagsterInstance) -> list[dict[str, object]]:
    """What ``weir_backfills`` shows."""
    return [record.data for record in run_job(place, instance, "weir_backfills", "weather")["backfills"].records]


def terminate(instance: dg.DagsterInstance) -> None:
    """As the UI does it."""
    [run] = instance.get_runs()
    instance.report_run_canceling(run)
    os.kill(os.getpid(), signal.SIGINT)


def kill(instance: dg.DagsterInstance) -> None:
    [worker] = [each for each in psutil.Process().children() if "weir.orchestration.drivers.backfill" in each.cmdline()]
    worker.kill()


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
@pytest.mark.parametrize(
    ("end", "status", "facts", "left"),
    [
        (terminate, dg.DagsterRunStatus.CANCELED, ("the backfill was stopped", "files were removed"), []),
        (
            kill,
            dg.DagsterRunStatus.FAILURE,
            ("the backfill of weather was killed", "launch weir_backfills with the partition weather "),
            ["interrupted"],
        ),
    ],
)
def test_a_backfill_that_is_ended_says_what_is_left_and_leaves_the_outputs_alone(place, end, status, facts, left):
    settings, _ = place
    table = settings.warehouse / "weather" / "daily_weather"
    before = read_rows(table)

    def end_once_it_runs() -> None:
        wait_for(lambda: [row.state for row in backfills(settings, "weather")] == ["running"], "it runs")
        end(instance)

    with dg.DagsterInstance.ephemeral() as instance:
        threading.Thread(target=end_once_it_runs).start()
        result = recompute(place, instance)
        assert instance.get_run_by_id(result.run_id).status == status
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert all(fact in failed.error.message for fact in facts), failed.error.message
        assert [row["state"] for row in listed(place, instance)] == left
        assert not instance.get_materialized_partitions(BACKFILL)
    assert_frame_equal(read_rows(table), before)
    rows = list(backfills(settings, "weather"))
    assert [row.state for row in rows] == left
    for row in rows:
        discard(settings, "weather", row.id)


def facts_only(*, is_fixed: bool) -> Application:
    """Numbers of a topic; the program that was not fixed left the odd ones out."""
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("key"), value=Int64("n"))
    numbers.filter(pl.col("n") % (1 if is_fixed else 2) == 0).to_delta("facts")
    return Application("numbers", builder, commit_interval=timedelta(milliseconds=1))


def test_a_complete_backfill_whose_run_was_terminated_is_discarded(tmp_path, monkeypatch):
    terminal = opened(tmp_path, monkeypatch)
    hour_ms = 3_600_000
    terminal.topics.rows["numbers", 0] = [(b"k", n.to_bytes(8, "big"), n * hour_ms) for n in range(72)]
    for is_fixed in (False, True):
        program = terminal.has("app", facts_only(is_fixed=is_fixed))
        done = terminal.weir("backfill run numbers 1970-01-02") if is_fixed else terminal.run(program)
        assert done.code == 0, done.text
    numbers, [row] = supervise(facts_only(is_fixed=True), program), backfills(terminal.settings, "numbers")
    with pytest.raises(dg.Failure) as failure:
        _left_by_termination(numbers, [row])
    assert str(failure.value.description).endswith(
        f"launch weir_swap_backfill to swap it in, or weir_discard_backfill, with the partition numbers:{row.id}"
    )
    weir_here = WeirResource(dir=str(terminal.settings.dir))
    with dg.DagsterInstance.ephemeral() as instance:

        def launch(job: str, partition: str) -> dg.ExecuteInProcessResult:
            given = definitions(numbers, weir=weir_here).resolve_job_def(job)
            return given.execute_in_process(instance=instance, partition_key=partition, raise_on_error=False)

        assert launch("weir_backfills", "numbers").success
        [partition] = instance.get_dynamic_partitions(BACKFILLS.name)
        assert partition == f"numbers:{row.id}"
        assert launch("weir_discard_backfill", partition).success
        assert instance.get_dynamic_partitions(BACKFILLS.name) == []
        instance.add_dynamic_partitions(BACKFILLS.name, [partition])
        assert not launch("weir_discard_backfill", partition).success, "it is gone"
        assert instance.get_dynamic_partitions(BACKFILLS.name) == []
    facts = sorted(read_rows(terminal.warehouse / "numbers" / "facts")["n"])
    assert facts == [n for n in range(72) if n % 2 == 0]
    assert "complete" not in terminal.weir("backfill list numbers").text


def test_a_warehouse_that_is_away_does_not_hide_how_a_backfill_ended(tmp_path, monkeypatch):
    def fails(*_args: object) -> None:
        raise dg.Failure("the driver has ended")

    def is_away(*_args: object) -> None:
        raise OSError("the warehouse is away")

    monkeypatch.setattr(backfill, "run_driver", fails)
    monkeypatch.setattr(backfill, "backfills", is_away)
    with pytest.raises(dg.Failure) as failure:
        run_backfill(weather_app, dg.build_op_context(), WeirResource(dir=str(tmp_path)), driver_pipes(), {})
    assert failure.value.description == "the driver has ended"


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_a_backfill_from_a_missing_file_names_it_and_leaves_nothing(place):
    with dg.DagsterInstance.ephemeral() as instance:
        result = recompute(place, instance, {"paths": {"weather": "/nowhere/weather.parquet"}})
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "/nowhere/weather.parquet" in failed.error.message
    assert list(backfills(place[0], "weather")) == []


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_three_days_are_recomputed_and_swapped_in_by_one_run(place):
    settings, _ = place
    table = settings.warehouse / "weather" / "daily_weather"
    before, cut = read_rows(table), newest_commit(settings.warehouse, "weather").epoch
    with dg.DagsterInstance.ephemeral() as instance:
        result = recompute(place, instance)
        assert result.success
        offered = instance.get_dynamic_partitions("weather_days")
        assert (len(offered), offered[0], offered[-1]) == (364, "2013-01-01", "2013-12-30"), "the topic's own days"
        assert instance.get_materialized_partitions(BACKFILL) == {"2013-03-04", "2013-03-05", "2013-03-06"}
    metadata = {
        name: entry.value
        for name, entry in result.get_asset_materialization_events()[0].materialization.metadata.items()
    }
    assert metadata["swap"].endswith("daily_weather 9 -> 9 rows (0 removed, 0 changed, 0 added, 9 unchanged)")
    nothing = {"table": "daily_weather", "removed": 0, "changed": 0, "added": 0, "unchanged": 9, "sums": {}}
    assert metadata["differences"] == [nothing]
    assert 26_115 > metadata["records_in"] > 20_000
    after = read_rows(table)
    columns = [name for name in before.columns if name not in ("_epoch", "_seq")]
    assert_frame_equal(after.select(columns).sort(columns), before.select(columns).sort(columns))
    assert after.filter(_epoch=cut).height >= 9
    assert [row.state for row in backfills(settings, "weather")] == ["swapped in"]


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_everything_is_recomputed_and_swapped_in_by_one_run(place):
    settings, resources = place
    table = settings.warehouse / "weather" / "daily_weather"
    before, newest = read_rows(table), newest_commit(settings.warehouse, "weather")
    job = definitions(weather_app, weir=resources["weir"]).resolve_job_def("weir_rebuild")
    result = job.execute_in_process(run_config={"ops": {"weir_compute_everything": {"config": {"swap": True}}}})
    assert result.success
    [output] = result.filter_events(lambda event: event.is_successful_output)
    metadata = {name: entry.value for name, entry in output.event_specific_data.metadata.items()}
    assert metadata["records_in"] == sum(task.totals["records_in"] for task in newest.tasks.values() if task.positions)
    assert "its tasks restore their stores" in metadata["swap"]
    columns = [name for name in before.columns if name not in ("_epoch", "_seq")]
    assert_frame_equal(read_rows(table).select(columns).sort(columns), before.select(columns).sort(columns))
    assert next(row.days for row in backfills(settings, "weather") if row.state == "swapped in") == "everything"


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_the_wall_clock_passes_in_a_run_that_asks_for_it(place):
    """Through Spark, and in the backfill's own process; a run that does not ask calls nothing."""
    settings, resources = place
    with broker_for(settings) as (servers, settings):
        assert KafkaAdmin(servers, settings.kafka).create_topic(clocked.TOPIC, 1)
        producer = Producer({**settings.kafka, "bootstrap.servers": servers})
        for number in range(20):
            producer.produce(clocked.TOPIC, str(number), "ann", timestamp=1_000 * number)
        assert producer.flush(30) == 0
    given = definitions(clocked.app, weir=resources["weir"])
    [ingest] = [each for each in given.assets if dg.AssetKey(["clocked", "ingest"]) in getattr(each, "keys", ())]
    assert dg.materialize([ingest], resources=resources).success
    job, called = given.resolve_job_def("weir_rebuild"), {}
    for wall_clock in (False, True):
        config = {"ops": {"weir_compute_everything": {"config": {"wall_clock": wall_clock}}}}
        assert job.execute_in_process(run_config=config).success
        [shadow] = shadows(settings.warehouse, settings.state_dir, "clocked")
        assert read_rows(shadow.folder / "all_ticks").height == 20
        calls = shadow.folder / "calls"
        called[wall_clock] = read_rows(calls).height if DeltaTable.is_deltatable(calls.path) else 0
        discard(settings, "clocked", shadow.backfill.id)
    assert called[False] == 0 < called[True]


@pytest.mark.dagster
@pytest.mark.spark
@pytest.mark.broker
def test_a_run_that_would_change_more_than_a_share_fails_with_the_counts_and_a_job_swaps_its_backfill_in(
    place, tmp_path
):
    """The days come from a table in which every hour is one degree warmer."""
    settings, _ = place
    table = settings.warehouse / "weather" / "daily_weather"
    before = read_rows(table)
    values = pl.col("value").str.json_decode(
        pl.Struct({"temp": pl.Float64(), "wind_speed": pl.Float64(), "precip": pl.Float64()})
    )
    warmer = weather_records(1).select(
        pl.col("key").alias("origin"),
        values.struct.unnest(),
        pl.col("timestamp_ms").cast(pl.Datetime("ms", "UTC")).alias("_ts"),
    )
    warmer.with_columns(pl.col("temp") + 1).write_parquet(tmp_path / "warmer.parquet")
    with dg.DagsterInstance.ephemeral() as instance:
        result = recompute(place, instance, {"paths": {"weather": str(tmp_path / "warmer.parquet")}})
        [failed] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
        assert "daily_weather 9 -> 9 rows (9 removed, 0 changed, 9 added, 0 unchanged)" in failed.error.message
        assert_frame_equal(read_rows(table), before)
        [row] = [row for row in backfills(settings, "weather") if row.state == "complete"]
        assert [each["backfill"] for each in listed(place, instance) if each["state"] == "complete"] == [row.id]
        [partition] = instance.get_dynamic_partitions(BACKFILLS.name)
        swapped = run_job(place, instance, "weir_swap_backfill", partition, max_change=1.0)
        assert "9 -> 9 rows (9 removed, 0 changed, 9 added, 0 unchanged)" in swapped["swap"]
        assert instance.get_dynamic_partitions(BACKFILLS.name) == []
    after, of_days = read_rows(table), pl.col("window_start").is_between(DAY, DAY + timedelta(days=3), closed="left")
    assert after.filter(of_days)["mean_temp"].sum() == pytest.approx(before.filter(of_days)["mean_temp"].sum() + 9)
    assert_frame_equal(after.filter(~of_days), before.filter(~of_days), check_row_order=False)
    assert row.id in [row.id for row in backfills(settings, "weather") if row.state == "swapped in"]


def test_the_share_that_a_run_may_change_has_a_default_and_bounds():
    assert BackfillConfig().max_change == RebuildConfig().max_change == 0.01
    assert BackfillConfig().wall_clock is RebuildConfig().wall_clock is False
    for config in (BackfillConfig, RebuildConfig):
        assert config(max_change=1).max_change == 1
        for share in (-0.1, 1.1):
            with pytest.raises(ValueError, match="max_change"):
                config(max_change=share)
