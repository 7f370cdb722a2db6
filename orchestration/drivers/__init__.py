"""Drivers as processes of their own, and what they report. No Dagster here but its Pipes: drivers start without it."""
