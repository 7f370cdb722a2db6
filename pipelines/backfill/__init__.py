"""Backfills: days of an application's outputs, or all outputs and stores, recomputed in a shadow and swapped in
(docs/backfill.md).

``outputs`` says what is swapped, ``ranges`` what is read, ``shadow`` where the result lies until then; ``swap`` puts
days in place, and ``everything`` the whole. Running the shadow's driver belongs to ``weir.pipelines.spark.backfill``.
"""
