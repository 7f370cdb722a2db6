"""What Dagster loads: the example applications with everything that looks after them, and a report on one of them."""

from __future__ import annotations

import dagster as dg

from weir.orchestration.application import definitions
from weir.orchestration.examples import applications, report  # modules: a module that Dagster loads has one Definitions

defs = dg.Definitions.merge(definitions(applications.flights_app, applications.weather_app), report.report_defs)
