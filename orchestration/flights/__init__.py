"""The flights application in Dagster: its topic, its ingest, its output tables and their checks."""
