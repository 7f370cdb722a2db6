"""A store's changelog as rows: the columns of its Delta table, and what one epoch adds to it.

Reading the rows back into a store belongs to ``weir.state.changelog.restore``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl

from weir.state.commit.files import stored_type
from weir.state.commit.record import StoreIdentity
from weir.state.commit.tables import file_actions, key_columns
from weir.state.engine.contract import StateSession
from weir.state.frames import repeated, with_series
from weir.state.storage.places import Place, is_table, table_at
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
        evolves_freely=True,
    )


def partition_of_rows() -> pl.Expr:
    """The partition of the task that wrote a file, given the table's files.

    A store's rows belong to its task in a partition, under whatever name the task wrote them.
    """
    return pl.col("partition.task").str.split("_").list.last()


def has_rows(app_folder: Place, store: str) -> bool:
    """Whether the changelog of a store exists and has files."""
    folder = app_folder / CHANGELOG_FOLDER / store
    return is_table(folder) and file_actions(table_at(folder)).height > 0


def stored_identity(app_folder: Place, store: str, spec: StoreSpec | None) -> StoreIdentity | None:
    """What the changelog tells of a store whose commits do not have its identity; None if there is no changelog.

    The table has no unsigned numbers and its own unit of time; ``spec``, if there is one, says which type was meant.
    """
    folder = app_folder / CHANGELOG_FOLDER / store
    if not is_table(folder):
        return None
    table = table_at(folder)
    keys, found = key_columns(table), pl.scan_delta(table).collect_schema()
    meant = changelog_spec(spec).schema if spec is not None else pl.Schema()
    types = {
        name: str(meant[name] if name in meant and stored_type(meant[name]) == dtype else _in_ms(dtype))
        for name, dtype in found.items()
        if name not in ("_ts", "_epoch", "_deleted", "task", "segment")
    }
    return StoreIdentity(
        kind="",
        key={name: types[name] for name in keys},
        value={name: dtype for name, dtype in types.items() if name not in keys},
        owner="",
    )


def _in_ms(dtype: pl.DataType) -> pl.DataType:
    return pl.Datetime("ms", dtype.time_zone) if isinstance(dtype, pl.Datetime) else dtype


def changelog_frame(store: StoreSpec, session: StateSession) -> pl.DataFrame:
    """The epoch's net changes in key order: key columns, value columns, ``_ts``, ``_deleted``.

    A deleted key has null values and a null ``_ts``. The writer of the rows adds ``_epoch``.
    """
    return frame_of(store, session, session.changes(store.name))


def frame_of(
    store: StoreSpec,
    session: StateSession,
    changes: Mapping[bytes, bytes | None],
    long_keys: Mapping[bytes, bytes] | None = None,
) -> pl.DataFrame:
    """Values by key, None where a key is deleted, as ``changelog_frame`` gives them; ``long_keys`` are whole keys by
    hash that the task does not have."""
    values, known = list(changes.values()), long_keys or {}
    whole_keys = whole(
        list(changes),
        partial(session.get_many, LONG_KEYS),
        partial(session.before_images, LONG_KEYS),
        lambda hashes: list(map(known.get, hashes)),
    )
    keys = KeyCodec(store.key, store.kind).decode(whole_keys)
    rows = RowCodec(store.value).decode(values)
    rows = with_series(rows, rows.get_column("_ts").cast(_TIME))
    if None in values:
        deleted = pl.Series("_deleted", [value is None for value in values], dtype=pl.Boolean)
    else:
        deleted = repeated("_deleted", False, len(values), np.bool_)
    return keys.hstack([*rows.get_columns(), deleted])
