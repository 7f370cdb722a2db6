"""Weir beside its peers on the same broker and events: ``weir bench``, ``make bench``, ``python -m bench``."""

from bench.report import main

__all__ = ["main"]
