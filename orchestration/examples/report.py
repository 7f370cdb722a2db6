"""An example of a downstream asset: a report on the flights' final results, refreshed when there are new ones."""

from __future__ import annotations

import dagster as dg
import polars as pl

from weir.orchestration.resources import WeirResource
from weir.pipelines.examples.lateness import lateness_by_hour
from weir.state.commit.tables import read_table
from weir.state.storage.places import folder_at

TABLE = dg.AssetKey(["flights", "late_departures"])
REPORT = dg.AssetKey(["flights", "late_report"])
BAR_CHARACTERS = 40
NEW_ROWS = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed()).since_last_handled()
    & ~dg.AutomationCondition.in_progress()
)
"""A commit has written rows of the table: its data version changes with those commits only."""


@dg.asset(key=REPORT, deps=[TABLE], group_name="flights", kinds={"polars"}, automation_condition=NEW_ROWS)
def late_report(weir: WeirResource) -> dg.MaterializeResult[None]:
    """How many departures are late, by hour of the day, as a chart in the metadata."""
    by_hour = lateness_by_hour(read_table(folder_at(weir.settings().warehouse) / TABLE.path[0] / TABLE.path[1]))
    return dg.MaterializeResult(
        metadata={
            "flights": int(by_hour["flights"].sum()),
            "late": int(by_hour["late"].sum()),
            "chart": dg.MetadataValue.md(chart(by_hour)),
        }
    )


report_sensor = dg.AutomationConditionSensorDefinition(
    "flights_reports",
    target=dg.AssetSelection.assets(REPORT),
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Refreshes the report when a commit has written final results.",
)


def chart(by_hour: pl.DataFrame) -> str:
    """A Markdown table with one bar per hour, the longest for the hour with the greatest share."""
    top = by_hour["share"].max() or 1.0
    return "\n".join(
        [
            "| hour | flights | late | |",
            "| ---: | ---: | ---: | --- |",
            *(
                f"| {hour:02}:00 | {flights:,} | {share:.1%} | `{'█' * round(share / top * BAR_CHARACTERS)}` |"
                for hour, flights, _, share in by_hour.iter_rows()
            ),
        ]
    )


report_defs = dg.Definitions(assets=[late_report], sensors=[report_sensor])
