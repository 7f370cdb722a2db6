"""What rows that are written over a snapshot's change in its index of expiry (``weir.state.stores.expiry``)."""

from __future__ import annotations

from itertools import chain

import polars as pl

from weir.state.engine.contract import StateView
from weir.state.stores.access import HeldRow
from weir.state.stores.codec import KeyCodec
from weir.state.stores.expiry import expiry_times, has_index, index_rows
from weir.state.stores.long_keys import shortened
from weir.state.stores.typed import TypedStore
from weir.state.stores.versioned import VersionedStore
from weir.state.types import StoreKind, StoreSpec


def expiry_changes(spec: StoreSpec, view: StateView, changed: pl.DataFrame) -> dict[bytes, bytes | None]:
    """The entries of the index that come, with their keys, and those that go, with None.

    ``changed`` has the newest row of each key that has changed since ``view``, deleted ones too, as
    ``TaskChangelog.newest_rows`` gives them.
    """
    if not has_index(spec) or changed.is_empty():
        return {}
    columns, by = [*spec.key, *spec.value, "_ts"], spec.key.names()
    before = _before(spec, view, changed).select(columns).cast(changed.select(columns).schema)
    kept = before.join(changed, on=by, how="anti", nulls_equal=True)
    after = pl.concat([kept, changed.filter(~pl.col("_deleted")).select(columns)])
    old, new = _index(spec, before), _index(spec, after)
    return {**{entry: None for entry in old if entry not in new}, **new}


def _before(spec: StoreSpec, view: StateView, changed: pl.DataFrame) -> pl.DataFrame:
    """The rows of the changed keys. How long a version is kept depends on the one after it, so of a versioned store all
    versions of these keys are there."""
    typed = TypedStore(spec, view)
    rows: list[HeldRow]
    if spec.kind is StoreKind.VERSIONED:
        rows = list(chain.from_iterable(VersionedStore(spec, view).all_versions(changed)))
    else:
        keys = typed.encode(changed)
        found = zip(keys, view.get_many(spec.name, keys), strict=True)
        rows = [(key, value) for key, value in found if value is not None]
    values = typed.rows.decode([value for _, value in rows])
    return pl.concat([typed.decode([key for key, _ in rows]), values], how="horizontal")


def _index(spec: StoreSpec, rows: pl.DataFrame) -> dict[bytes, bytes]:
    keys, _ = shortened(spec.name, KeyCodec(spec.key, spec.kind).encode(rows))
    return index_rows(spec, keys, expiry_times(spec, rows))
