"""Weir beside Kafka Streams on the same broker and events: ``weir bench``, ``make bench``, ``python -m bench``."""

from bench.report import main

__all__ = ["main"]
