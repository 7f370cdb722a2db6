"""Spark, as Weir uses it."""

DRIVER = "driver"
"""The id of the executor of all slots of a single host, as Spark calls it."""
