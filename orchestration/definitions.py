"""The one way in for Dagster: merges the domains' assets, checks and sensors and gives them their resources."""

from __future__ import annotations

import dagster as dg

from orchestration.flights import assets, checks, sensors
from orchestration.resources import WeirResource, driver_pipes

defs = dg.Definitions(
    assets=[assets.flights_topic, assets.flights_ingest],
    asset_checks=[checks.lag],
    sensors=[sensors.flights_commits],
    resources={"weir": WeirResource(), "pipes": driver_pipes()},
)
