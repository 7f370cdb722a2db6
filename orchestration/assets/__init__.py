"""Assets: the ingest with its tables, backfills, what jobs do beside them, and the materializations of a commit."""
