"""All rows of a store for its changelog, which has none of them, or old ones (PROTOCOL 37).

That is so once a program gives a changelog to a store that had none. What an epoch changes is in
``weir.state.changelog.rows``.
"""

from __future__ import annotations

import polars as pl

from weir.state.changelog.reading import TaskChangelog, encoded
from weir.state.changelog.rows import changelog_spec, frame_of
from weir.state.engine.contract import StateSession
from weir.state.storage.places import Place, is_table
from weir.state.types import StoreSpec

_NEWEST_EPOCH = 1 << 62
"""Later than any epoch."""


def whole_changelog_frame(app_folder: Place, store: StoreSpec, session: StateSession, task_id: str) -> pl.DataFrame:
    """The store's rows after the epoch, and deletions of keys that the task's part of the changelog has and the store
    does not: columns as in ``changelog_frame``."""
    rows: dict[bytes, bytes | None] = {}
    long_keys: dict[bytes, bytes] = {}
    if is_table(app_folder / changelog_spec(store).name):
        changelog = TaskChangelog.of(app_folder, store, task_id, through=_NEWEST_EPOCH)
        for part in encoded(store, changelog.newest_rows().filter(~pl.col("_deleted"))):
            rows |= dict.fromkeys(part.keys)
            long_keys |= part.long_keys
    rows |= dict(session.scan(store.name))
    return frame_of(store, session, rows, long_keys)
