"""Backfills: days of an application's outputs, or everything and its stores, computed anew in a shadow, and swapped in
(docs/backfill.md).

What is swapped is ``outputs``, what is read ``ranges``, where it lies ``shadow``, how it takes its place ``swap``, and
how everything does ``everything``. Running the shadow's driver belongs to ``weir.pipelines.spark.backfill``.
"""
