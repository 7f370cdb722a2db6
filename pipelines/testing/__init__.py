"""The topology test driver with its topics, tables and stores; programs import them from ``weir.testing``."""
