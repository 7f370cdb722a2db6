"""Drivers as separate processes, and what they report. Of Dagster they import only Pipes, and so start quickly."""
