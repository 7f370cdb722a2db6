"""A task's LMDB environment as its store uses it: named databases, the meta record, transactions, a map that grows.

``weir.state.engine.task_store`` decides what an epoch writes here and when it counts; ``weir.state.engine.environment``
creates, vets and releases the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import lmdb

from weir.state.engine.environment import PAGE_BYTES, begin, require_free_disk
from weir.state.engine.figures import Figures, StoreFigures, Times
from weir.state.engine.meta import META_KEY, Meta, decode_meta, encode_meta
from weir.state.engine.rollback_cost import RollbackCost
from weir.state.engine.turns import Turns
from weir.state.errors import MapFullError, TaskCorruptedError


class Databases:
    """The databases of one open environment; nothing about their contents is cached between calls."""

    def __init__(self, folder: Path, task_id: str, environment: lmdb.Environment) -> None:
        self.folder, self.task_id, self.environment = folder, task_id, environment
        self._turns = Turns(folder, task_id)
        with self._turns.taken():
            self._meta_db = environment.open_db(b"_meta")
            self.undo = environment.open_db(b"_undo")
        self.of_stores: dict[str, lmdb._Database] = {}
        """By store name; only those that ``open_stores`` or ``add_stores`` has opened."""
        self._open_reads = 0

    @property
    def used_bytes(self) -> int:
        """How much of the data file is in use; the rest is room to grow."""
        return (self.environment.info()["last_pgno"] + 1) * PAGE_BYTES

    def snapshot(self) -> tuple[lmdb.Transaction[bytes], Callable[[], None]]:
        """A read transaction and the function that ends it, to be called once; ``reading`` does both."""
        txn = begin(self.environment)
        self._open_reads += 1

        def end() -> None:
            self._open_reads -= 1
            txn.abort()

        return txn, end

    @contextmanager
    def reading(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A read transaction; errors as in ``translating``."""
        with self.translating():
            txn, end = self.snapshot()
            try:
                yield txn
            finally:
                end()

    @contextmanager
    def changing(self) -> Iterator[lmdb.Transaction[bytes]]:
        """A write transaction, aborted on error; errors as in ``translating``."""
        with self.translating(), self._turns.taken(), begin(self.environment, write=True) as txn:
            yield txn

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn LMDB's errors into Weir's.

        Raises:
            MapFullError: The map is too small for what a transaction wrote.
            TaskCorruptedError: Any other error of LMDB.
        """
        try:
            yield
        except lmdb.MapFullError as error:
            raise MapFullError(self.task_id, self.environment.info()["map_size"]) from error
        except lmdb.Error as error:
            raise TaskCorruptedError(self.task_id, str(self.folder), f"LMDB: {error}") from error

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()
        self._turns.close()

    def meta(self) -> Meta:
        """The meta record, read in a separate transaction."""
        with self.reading() as txn:
            return self.read_meta(txn)

    def read_meta(self, txn: lmdb.Transaction[bytes]) -> Meta:
        """Raises ``TaskCorruptedError`` when the record is missing or fails its checksum."""
        meta = decode_meta(txn.get(META_KEY, db=self._meta_db))
        if meta is None:
            raise TaskCorruptedError(self.task_id, str(self.folder), "the meta record is missing or damaged")
        return meta

    def write_meta(self, txn: lmdb.Transaction[bytes], meta: Meta) -> None:
        txn.put(META_KEY, encode_meta(meta), db=self._meta_db)

    def rollback_cost(self, txn: lmdb.Transaction[bytes]) -> RollbackCost:
        """What a rollback to ``base`` would cost."""
        pages = sum(txn.stat(store)["leaf_pages"] for store in self.of_stores.values())
        return RollbackCost(txn.stat(self.undo)["entries"], pages)

    def figures(self, times: Times, stores: Collection[str], *, with_stores: bool) -> Figures:
        """LMDB's own, with ``times``, and how many rows ``stores`` have; with ``with_stores`` those of each of them."""
        info, of_store = self.environment.info(), dict[str, StoreFigures]()
        with self.reading() as txn:
            for name in stores:
                found = txn.stat(self.of_stores[name])
                of_store[name] = StoreFigures(
                    rows=found["entries"],
                    pages=found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"],
                    depth=found["depth"],
                )
        shown = stores if with_stores else ()
        return Figures(
            map_bytes=info["map_size"],
            used_bytes=self.used_bytes,
            readers=info["num_readers"],
            rows=sum(figures.rows for figures in of_store.values()),
            apply_ms=times.apply_ms,
            commit_ms=times.commit_ms,
            apply_ms_of={name: values for name, values in times.apply_ms_of.items() if name in shown},
            commit_ms_of={name: values for name, values in times.commit_ms_of.items() if name in shown},
            stores=of_store if with_stores else {},
        )

    def open_stores(self) -> None:
        """Open the stores that this handle lacks; never within a transaction, whose end would close them."""
        for store in self.meta().stores.keys() - self.of_stores.keys():
            with self._turns.taken():
                self.of_stores[store] = self.environment.open_db(store.encode(), create=False)

    def add_stores(self, stores: Sequence[str], backed: Collection[str] = ()) -> None:
        """Create the missing ones, empty; those in ``backed`` have their values in stores of the user's.

        Raises:
            DiskFullError: There may be no room for them.
        """
        missing = [store for store in dict.fromkeys(stores) if store not in self.of_stores]
        if not missing:
            return
        self.require_free_disk(0)
        with self.changing() as txn:
            meta = self.read_meta(txn)
            ids = dict(meta.stores)
            for store in missing:
                self.environment.open_db(store.encode(), txn=txn)
                ids.setdefault(store, len(ids) + 1)
            backed_now = (*meta.backed, *(store for store in missing if store in backed))
            self.write_meta(txn, replace(meta, stores=ids, backed=backed_now))
        self.open_stores()

    def check(self) -> None:
        """Raise ``TaskCorruptedError`` unless every database holds as many entries as were written."""
        meta = self.meta()
        with self.reading() as txn:
            for store, database in self.of_stores.items():
                found, wanted = txn.stat(database)["entries"], meta.rows.get(store, 0)
                if found != wanted:
                    raise TaskCorruptedError(
                        self.task_id, str(self.folder), f"store {store!r} holds {found} rows, but {wanted} were written"
                    )
            found = txn.stat(self.undo)["entries"]
            if found != meta.uncommitted.records:
                raise TaskCorruptedError(
                    self.task_id,
                    str(self.folder),
                    f"the undo log holds {found} entries, but {meta.uncommitted.records} were written",
                )

    def require_free_disk(self, records: int, large: int = 0) -> None:
        """Raise ``DiskFullError`` if ``records`` records might not fit on the disk, whose large values take ``large``
        bytes."""
        require_free_disk(self.folder, self.task_id, self.environment, records, large)

    def grow(self) -> None:
        """Double the size of the map. No read transaction of this process may be open (PROTOCOL 18)."""
        if self._open_reads:
            raise RuntimeError("a store cannot grow while one of its sessions or readers is open")
        self.environment.set_mapsize(0)
        self.environment.set_mapsize(2 * self.environment.info()["map_size"])

    def grow_if_half_full(self) -> None:
        """To be called between epochs, so that few of them run into a full map."""
        info = self.environment.info()
        if not self._open_reads and info["last_pgno"] * PAGE_BYTES * 2 > info["map_size"]:
            self.grow()
