"""The example report: its chart, and when it is refreshed."""

from datetime import UTC, datetime

import dagster as dg
import polars as pl

from tests.orchestration.applications import FLIGHTS
from weir.orchestration.assets.materializations import commit_materializations
from weir.orchestration.definitions import defs
from weir.orchestration.examples.report import REPORT, TABLE, late_report
from weir.orchestration.resources import WeirResource
from weir.state.commit.files import write_file
from weir.state.commit.protocol import newest_commit

SPEC = FLIGHTS.table_specs["late_departures"]


def finals(settings, rows: list[tuple[int, int, int]]):
    """A file of windows: hour, flights, late."""
    frame = pl.DataFrame(
        [
            {
                **dict.fromkeys(SPEC.schema),
                "window_start": datetime(2013, 1, 1, hour, tzinfo=UTC),
                "flights": flights,
                "late": late,
                "_epoch": 1,
            }
            for hour, flights, late in rows
        ],
        schema=SPEC.schema,
    )
    return write_file(settings.warehouse / "flights", SPEC, frame)


def test_the_chart_has_one_bar_per_hour_as_long_as_its_share_of_late_departures(committer, commit_of, settings):
    committer.commit(commit_of(1, files=(finals(settings, [(6, 100, 10), (17, 30, 10), (17, 20, 10)]),)))
    metadata = late_report(WeirResource(dir=str(settings.dir))).metadata
    assert (metadata["flights"], metadata["late"]) == (150, 30)
    *_, morning, evening = metadata["chart"].value.splitlines()
    assert morning == "| 06:00 | 100 | 10.0% | `" + "█" * 10 + "` |"
    assert evening == "| 17:00 | 50 | 40.0% | `" + "█" * 40 + "` |"


def test_it_is_refreshed_when_a_commit_wrote_final_windows_and_not_by_other_commits(
    committer, commit_of, settings, instance
):
    cursor = None

    def is_requested(epoch: int, *files) -> bool:
        nonlocal cursor
        committer.commit(commit_of(epoch, offset=epoch, files=files))
        newest = newest_commit(settings.warehouse, "flights")
        for event in commit_materializations(FLIGHTS, newest, instance, settings, health={}):
            instance.report_runless_asset_event(event)
        result = dg.evaluate_automation_conditions(
            defs, instance, asset_selection=dg.AssetSelection.assets(REPORT), cursor=cursor
        )
        cursor = result.cursor
        if result.total_requested:
            instance.report_runless_asset_event(dg.AssetMaterialization(REPORT))
        return bool(result.total_requested)

    is_requested(1)
    assert is_requested(2, finals(settings, [(6, 100, 10)]))
    assert not is_requested(3)
    assert not is_requested(4)
    assert is_requested(5, finals(settings, [(7, 100, 10)]))
    assert instance.get_latest_materialization_event(TABLE) is not None
