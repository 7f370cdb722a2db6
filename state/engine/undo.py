"""The undo log: for each key written since the last commit, its value before the first write (PROTOCOL 17).

``weir.state.engine.views`` reads through it; ``weir.state.engine.task_store`` decides when it is dropped or rolled
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat

import lmdb

from weir.state.engine.ranges import rows_between

ABSENT = b"\x00"
PRESENT = b"\x01"
"""An entry is ``ABSENT``, or ``PRESENT`` followed by the value before the first uncommitted write."""


def undo_prefix(store_id: int) -> bytes:
    """The prefix of a store's keys in the undo log."""
    return store_id.to_bytes(2, "big")


def keep_images(
    txn: lmdb.Transaction[bytes],
    undo_db: lmdb._Database,
    store_id: int,
    keys: Iterable[bytes],
    before: Sequence[bytes | None],
) -> None:
    """Record what ``keys`` held before; an existing entry is older, so it stays."""
    if before.count(None) == len(before):
        images: Iterable[bytes] = repeat(ABSENT, len(before))
    else:
        images = [ABSENT if image is None else PRESENT + image for image in before]
    with txn.cursor(undo_db) as cursor:
        cursor.putmulti(zip(map(undo_prefix(store_id).__add__, keys), images, strict=True), overwrite=False)


def put_images_back(
    txn: lmdb.Transaction[bytes], undo_db: lmdb._Database, databases: Mapping[int, lmdb._Database]
) -> None:
    """Roll the stores (given by id) back to their images, and empty the log."""
    for store_id, database in databases.items():
        prefix, restored = undo_prefix(store_id), []
        for key, image in rows_between(txn, undo_db, prefix, undo_prefix(store_id + 1), False):
            if image == ABSENT:
                txn.delete(key[len(prefix) :], db=database)
            else:
                restored.append((key[len(prefix) :], image[1:]))
        with txn.cursor(database) as cursor:
            cursor.putmulti(restored)
    txn.drop(undo_db, delete=False)
