"""A store's changelog as rows: the columns of its Delta table, and what one epoch adds to it.

Reading the rows back into a store belongs to ``weir.state.changelog.restore``.
"""

from __future__ import annotations

from functools import partial

import polars as pl

from weir.state.engine.contract import StateSession
from weir.state.stores.codec import KeyCodec, RowCodec
from weir.state.stores.long_keys import LONG_KEYS, whole
from weir.state.types import CHANGELOG_FOLDER, StoreSpec, TableSpec

SEGMENT_EPOCHS = 1000
"""Epochs per segment: ``segment = epoch // SEGMENT_EPOCHS``. Beside a driver only closed segments are compacted
(PROTOCOL 22)."""

_TIME = pl.Datetime("ms", "UTC")


def changelog_spec(store: StoreSpec) -> TableSpec:
    """The table of a store: key columns, value columns, ``_ts``, ``_epoch``, ``_deleted``, ``task``, ``segment``."""
    return TableSpec(
        name=f"{CHANGELOG_FOLDER}/{store.name}",
        schema=pl.Schema(
            {
                **store.key,
                **store.value,
                "_ts": _TIME,
                "_epoch": pl.Int64(),
                "_deleted": pl.Boolean(),
                "task": pl.String(),
                "segment": pl.Int64(),
            }
        ),
        partition_by=("task", "segment"),
        keys=tuple(store.key),
    )


def changelog_frame(store: StoreSpec, session: StateSession) -> pl.DataFrame:
    """The epoch's net changes in key order: key columns, value columns, ``_ts``, ``_deleted``.

    A deleted key has null values and a null ``_ts``. The writer of the rows adds ``_epoch``.
    """
    changes = session.changes(store.name)
    values = list(changes.values())
    whole_keys = whole(list(changes), partial(session.get_many, LONG_KEYS), partial(session.before_images, LONG_KEYS))
    keys = KeyCodec(store.key, store.kind).decode(whole_keys)
    rows = RowCodec(store.value).decode(values).with_columns(pl.col("_ts").cast(_TIME))
    deleted = pl.Series("_deleted", [value is None for value in values], dtype=pl.Boolean)
    return pl.concat([keys, rows, deleted.to_frame()], how="horizontal")
