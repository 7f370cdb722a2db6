"""Backfills: days of an application's outputs, or all outputs and stores, recomputed in a shadow and swapped in
(docs/backfill.md).

``outputs`` says what is swapped, ``ranges`` what is read, and ``shadow`` where the result is kept until then; ``swap``
swaps in days, ``everything`` the whole. Running the shadow's driver belongs to ``weir.pipelines.spark.backfill``.
"""
