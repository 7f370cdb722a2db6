"""Dagster alone: what runs, when, and how its health is checked. The one way in is
``weir.orchestration.definitions``."""
