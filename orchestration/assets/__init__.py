"""Assets: the ingest with its tables, backfills, and the materializations that stand for a commit."""
