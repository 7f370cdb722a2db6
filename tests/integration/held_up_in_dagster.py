"""The application of ``held_up`` as Dagster runs it."""

import dagster as dg

from tests.integration.held_up import app
from weir.orchestration.application import weir_assets
from weir.orchestration.resources import WeirResource, driver_pipes

defs = dg.Definitions.merge(
    weir_assets(app, "tests.integration.held_up:app"),
    dg.Definitions(resources={"weir": WeirResource(), "pipes": driver_pipes()}),
)
