"""The one way in for Dagster: merges the applications' definitions and gives them their resources."""

from __future__ import annotations

import dagster as dg

from weir.orchestration import examples, report  # a module that Dagster loads may hold one Definitions only
from weir.orchestration.resources import WeirResource, driver_pipes

defs = dg.Definitions.merge(
    examples.flights_defs,
    examples.weather_defs,
    report.report_defs,
    dg.Definitions(resources={"weir": WeirResource(), "pipes": driver_pipes()}),
)
