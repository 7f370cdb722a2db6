"""Assets: the ingest with its tables, backfills, and the materializations that a commit amounts to."""
