"""The application of ``held_up`` as Dagster runs it."""

from tests.integration.held_up import app
from weir.dagster import definitions

defs = definitions(app)
