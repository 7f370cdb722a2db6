"""Counts kept in a store of one's own beside the built-in one: ``python -m bench.own_stores [RECORDS]`` prints JSON.

One task, without Spark and without a broker: operators, transactions, and a commit after every fifth epoch.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path

import polars as pl

from weir import Count, KeyValueBytesStore, Materialized, StreamsBuilder, String
from weir.pipelines.tasks.order import Arrivals, Part, with_keys
from weir.pipelines.tasks.processor import TaskProcessor
from weir.state.engine.backing import suppliers_of
from weir.state.engine.task_store import TaskStore
from weir.state.errors import MapFullError
from weir.state.own_stores import Supplier
from weir.state.types import StateId

RECORDS, EPOCH_RECORDS, USERS, COMMIT_EPOCHS = 300_000, 10_000, 30_000, 5
_ASKED_AT_ONCE = 30_000


class InSqlite(KeyValueBytesStore):
    """Row by row: what is least to write."""

    def __init__(self, folder: Path) -> None:
        self.file = sqlite3.connect(folder / "rows.sqlite", check_same_thread=False)
        self.file.execute("create table if not exists rows (key blob primary key, value blob) without rowid")

    def get(self, key: bytes) -> bytes | None:
        found = self.file.execute("select value from rows where key = ?", [key]).fetchone()
        return found[0] if found else None

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.file.execute("delete from rows where key = ?", [key])
        else:
            self.file.execute("insert or replace into rows values (?, ?)", [key, value])

    def commit(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        self.file.commit()

    def is_persistent(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()


class InSqliteByBatch(InSqlite):
    """Many rows a call."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        rest = iter(keys)
        while part := list(islice(rest, _ASKED_AT_ONCE)):
            marks = ", ".join("?" * len(part))
            found.update(self.file.execute(f"select key, value from rows where key in ({marks})", part))
        return list(map(found.get, keys))

    def put_all(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        rows = list(rows)
        self.file.executemany("delete from rows where key = ?", [(key,) for key, value in rows if value is None])
        self.file.executemany("insert or replace into rows values (?, ?)", [row for row in rows if row[1] is not None])


def main(records: int) -> None:
    """Count ``records`` by user in each store, in turns, three times; the best rate of each."""
    stores: dict[str, Supplier | None] = {
        "built_in": None,
        "sqlite_by_row": InSqlite,
        "sqlite_by_batch": InSqliteByBatch,
    }
    best = dict.fromkeys(stores, 0.0)
    for _ in range(3):
        for name, supplier in stores.items():
            best[name] = max(best[name], records / _seconds(supplier, records))
    print(json.dumps({"records": records, **{f"{name}_per_s": round(rate) for name, rate in best.items()}}))


def _seconds(supplier: Supplier | None, records: int) -> float:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=String("user"), value=String("page"))
    store_name = "clicks" if supplier is None else Materialized("clicks", supplier)
    stream.group_by_key().agg(store_name, n=Count()).to_delta("out")
    sub_topology = builder.build().sub_topologies[0]
    processor, clocks = TaskProcessor(sub_topology), dict[str, int]()
    with tempfile.TemporaryDirectory(prefix="own-stores-") as folder:
        names, suppliers = [spec.name for spec in sub_topology.stores], suppliers_of(sub_topology.stores)
        store = TaskStore.create(Path(folder, "store"), "0_0", names, suppliers)
        epochs = [_records(first) for first in range(0, records, EPOCH_RECORDS)]
        started = time.perf_counter()
        for epoch, rows in enumerate(epochs, 1):
            state, expected = StateId(1, epoch), StateId(1, epoch - 1) if epoch > 1 else None
            while True:
                try:
                    with store.session() as session:
                        turns = Arrivals([Part(input="in", rank=0, partition=0, frame=with_keys(rows, 0, 0))]).turns
                        clocks = processor.run(turns, session, clocks, 0).clocks
                        store.apply(
                            session,
                            state=state,
                            expected=expected,
                            generation=1,
                            plan_hash=str(state),
                            make_receipt=lambda _: b"",
                        )
                    break
                except MapFullError:
                    store.grow()
            if not epoch % COMMIT_EPOCHS:
                store.settle(generation=1, expected=state, committed=state)
        seconds = time.perf_counter() - started
        store.close()
    return seconds


def _records(first: int) -> pl.DataFrame:
    numbers = pl.int_range(first, first + EPOCH_RECORDS, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "user": "user-" + (numbers * 7919 % USERS).cast(pl.String),
            "page": "/item/" + (numbers % 877).cast(pl.String),
            "_ts": numbers,
            "_partition": 0,
            "_offset": numbers,
            "_deleted": False,
        },
        schema_overrides={"_partition": pl.Int32},
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS)
