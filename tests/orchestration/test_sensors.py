"""What Dagster hears of commits that no run of its own has reported: all that counts, and seldom."""

from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from infra.settings import Settings
from orchestration.flights.assets import INGEST, TABLES, TOPIC
from orchestration.flights.sensors import FOLD_S, LOOK_EVERY_S, flights_commits, news
from orchestration.resources import WeirResource
from pipelines.examples.flights import app
from pipelines.tasks.tables import application_tables
from state.commit.files import write_file
from state.commit.protocol import Committer
from state.commit.record import CommitRecord, TaskCommit
from state.types import StateId

SPECS = {spec.name: spec for spec in app.topology.table_specs()}
START_S = 1_700_000_000


def commit_of(epoch: int, *, at_s: float = START_S, offset: int = 10, **fields) -> CommitRecord:
    """A commit of two tasks: one that reads a partition up to ``offset``, one behind the repartition."""
    tasks = {"0_0": TaskCommit(state=StateId(1, epoch), instance="i", positions={"flights": {0: offset}},
                               totals={"records_in": offset, "late_records": 1}),
             "1_0": TaskCommit(state=StateId(1, epoch), instance="i", totals={"records_in": 7, "late_records": 2})}
    return CommitRecord(kind="commit", generation=1, epoch=epoch, at_ms=round(at_s * 1000), fingerprint="f",
                        tasks=tasks, **fields)


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(dir=tmp_path)


@pytest.fixture
def committer(settings):
    driver = Committer(settings.warehouse, app.id, application_tables(app.topology), fingerprint="f")
    driver.claim()
    yield driver
    driver.close()


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def look(instance: dg.DagsterInstance, settings: Settings) -> dg.SensorResult | dg.SkipReason:
    """One tick of the sensor, its events recorded as the daemon records them."""
    context = dg.build_sensor_context(instance=instance, resources={"weir": WeirResource(dir=str(settings.dir))})
    answer = flights_commits(context)
    assert isinstance(answer, dg.SensorResult | dg.SkipReason)
    record(instance, answer.asset_events if isinstance(answer, dg.SensorResult) else ())
    return answer


def record(instance: dg.DagsterInstance, events) -> None:
    for event in events:
        instance.report_runless_asset_event(event)


def shown(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, object]:
    event = instance.get_latest_materialization_event(key)
    if event is None:
        return {}
    return {name: entry.value for name, entry in event.asset_materialization.metadata.items()}


def updates(warehouse: Path, carriers: list[str], epoch: int):
    """A file of carrier_totals; carrier ``gone`` is deleted by it."""
    return write_file(warehouse / app.id, SPECS["carrier_totals"], pl.DataFrame(
        {"carrier": carriers, "flights": 1, "late": 0, "cancelled": 0, "_ts": 0, "_epoch": epoch,
         "_seq": range(len(carriers)), "_deleted": [name == "gone" for name in carriers]},
        schema_overrides=SPECS["carrier_totals"].schema))


def test_what_a_driver_outside_dagster_has_committed_shows_with_its_offsets_and_row_counts(
        committer, settings, instance):
    for epoch, carriers in ((1, ["UA", "gone", "AA"]), (2, ["UA"])):
        committer.commit(commit_of(epoch, files=(updates(settings.warehouse, carriers, epoch),)))
    look(instance, settings)
    ingest = shown(instance, INGEST)
    assert (ingest["generation"], ingest["epoch"], ingest["committed_at"]) == (1, 2, START_S)
    assert ingest["offsets"] == {"flights": {"0": 10}}
    assert ingest["total_records_in"] == 10, "what the second sub-topology reads was counted by the first"
    assert ingest["total_late_records"] == 3
    assert shown(instance, TABLES["carrier_totals"])["dagster/row_count"] == 2
    assert shown(instance, TABLES["late_departures"])["dagster/row_count"] == 0
    assert shown(instance, TOPIC)["offsets"] == {"0": 10}


def test_a_commit_is_shown_once(committer, settings, instance):
    assert isinstance(look(instance, settings), dg.SkipReason), "nothing is committed yet"
    committer.commit(commit_of(1))
    assert isinstance(look(instance, settings), dg.SensorResult)
    assert isinstance(look(instance, settings), dg.SkipReason)
    committer.commit(commit_of(2))
    assert isinstance(look(instance, settings), dg.SensorResult)


def test_a_commit_that_a_run_has_reported_itself_is_not_shown_again(committer, settings, instance):
    committer.commit(commit_of(1))
    instance.report_runless_asset_event(dg.AssetMaterialization(
        INGEST, metadata={"generation": 1, "epoch": 1, "committed_at": dg.MetadataValue.timestamp(float(START_S))}))
    assert isinstance(look(instance, settings), dg.SkipReason)


@pytest.mark.usefixtures("committer")
def test_two_hours_of_a_commit_a_second_leave_a_hundred_events(settings, instance):
    """With a run's own lines, 200 rows is the limit. The driver's last commit shows at the look after its end."""
    hours_s, times = 7200, []
    for elapsed in range(0, hours_s + 1, LOOK_EVERY_S):
        now_s = START_S + elapsed
        events = news(commit_of(elapsed + 1, at_s=now_s, offset=elapsed + 1), instance, settings.warehouse,
                      is_running=elapsed < hours_s, now_s=now_s + 0.5)
        record(instance, events)
        times += [elapsed] * any(event.asset_key == INGEST for event in events)
    assert len(times) == hours_s / FOLD_S + 1
    assert times[-1] == hours_s
    assert shown(instance, INGEST)["epoch"] == hours_s + 1
    keys = (INGEST, TOPIC, *TABLES.values())
    assert sum(len(instance.fetch_materializations(key, limit=200).records) for key in keys) == 100


@pytest.mark.usefixtures("committer")
def test_the_topic_is_shown_only_when_more_of_it_has_been_read_than_it_was_known_to_hold(settings, instance):
    instance.report_runless_asset_event(dg.AssetMaterialization(TOPIC, metadata={"offsets": {"0": 10}}))

    def keys(epoch: int, offset: int) -> list[dg.AssetKey]:
        newest = commit_of(epoch, offset=offset)
        events = news(newest, instance, settings.warehouse, is_running=False, now_s=START_S)
        record(instance, events)
        return [event.asset_key for event in events]

    assert keys(1, 10) == [INGEST, *TABLES.values()]
    assert keys(2, 11) == [TOPIC, INGEST, *TABLES.values()], "upstream first, or Dagster shows the ingest as stale"
