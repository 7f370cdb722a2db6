"""Backfills: days of an application's outputs computed anew in a shadow, and swapped in (docs/backfill.md).

What is swapped is ``outputs``, what is read ``ranges``, where it lies ``shadow``, how it takes its place ``swap``.
Running the shadow's driver belongs to ``pipelines.spark.backfill``.
"""
