"""The topology test driver and what it gives; programs import them from ``weir.testing``."""
