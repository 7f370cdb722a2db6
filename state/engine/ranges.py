"""Ranges of rows of one LMDB database."""

from __future__ import annotations

from collections.abc import Iterator

import lmdb

Row = tuple[bytes, bytes]


def rows_between(
    txn: lmdb.Transaction[bytes], database: lmdb._Database, lower: bytes, upper: bytes | None, reverse: bool
) -> Iterator[Row]:
    """Rows with ``lower <= key < upper``, in key order or reversed."""
    with txn.cursor(database) as cursor:
        if not reverse:
            if cursor.set_range(lower) if lower else cursor.first():
                if upper is None:
                    yield from cursor.iternext()
                    return
                for row in cursor.iternext():
                    if row[0] >= upper:
                        return
                    yield row
            return
        found = cursor.prev() if upper is not None and cursor.set_range(upper) else cursor.last()
        if found:
            for row in cursor.iterprev():
                if row[0] < lower:
                    return
                yield row
