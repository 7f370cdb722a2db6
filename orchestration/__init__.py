"""Everything about Dagster: what runs, when, and how its health is checked. Dagster loads
``weir.orchestration.definitions``."""
