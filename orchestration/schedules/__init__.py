"""Schedules; all are off until somebody switches them on."""
