"""What Dagster loads: the definitions of all applications, merged, and the resources that they need."""

from __future__ import annotations

import dagster as dg

from weir.orchestration.examples import applications, report  # modules: a module that Dagster loads has one Definitions
from weir.orchestration.resources import WeirResource, driver_pipes

defs = dg.Definitions.merge(
    applications.flights_defs,
    applications.weather_defs,
    report.report_defs,
    dg.Definitions(resources={"weir": WeirResource(), "pipes": driver_pipes()}),
)
