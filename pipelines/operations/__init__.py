"""What can be done with an application and its folder, as calls: run it, steer it, look at it, verify, compact, migrate
and backfill it.

The command line and Dagster call the same functions. Nothing here prints or reads a terminal: progress goes to
callbacks, warnings to the caller's ``logging.Handler``, and what cannot be done raises ``OperationError``.
"""
