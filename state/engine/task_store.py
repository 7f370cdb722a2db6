"""A task's local store: all its stores, an undo log and the meta record in one LMDB environment.

An epoch takes effect in one write transaction; a commit drops the undo log, a rollback restores its images (PROTOCOL 5
to 7 and 17 to 19). Databases and transactions belong to ``weir.state.engine.databases``, typed rows to
``weir.state.stores``, the durable truth to ``weir.state.commit`` and ``weir.state.changelog``.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import lmdb

from weir.state.engine.backing import BATCH_ROWS, ELSEWHERE, Backing, held_here, opened_stores
from weir.state.engine.contract import Settlement, StateView
from weir.state.engine.databases import Databases
from weir.state.engine.environment import (
    PAGE_BYTES,
    create_environment,
    large_bytes,
    prove_sound,
    release,
    spare,
    suspect,
    trusted_environment,
    unmark,
    write_identity,
)
from weir.state.engine.figures import Figures, Times
from weir.state.engine.instances import note_generation
from weir.state.engine.meta import Meta, Uncommitted
from weir.state.engine.ranges import rows_between
from weir.state.engine.rollback_cost import RollbackCost
from weir.state.engine.session import EpochSession
from weir.state.engine.undo import keep_images, put_images_back, undo_prefix
from weir.state.engine.views import NewestView, view
from weir.state.errors import FencedStoreError, MapFullError, OwnStoreBehindError, TaskCorruptedError
from weir.state.own_stores import Supplier
from weir.state.types import IsolationLevel, StateId

TASK_STORE = "_task"
"""The reserved store of a task's positions and stream times; they roll back with everything else."""
LONG_KEYS = "_long_keys"
"""The reserved store of the whole keys behind shortened ones (``weir.state.stores.long_keys``)."""
EXPIRIES = "_expiries"
"""The reserved store that indexes rows by when they expire (``weir.state.stores.expiry``)."""
RESERVED_STORES = (TASK_STORE, LONG_KEYS, EXPIRIES)
MAX_KEY_BYTES = 509
"""LMDB's 511, less the two-byte store id that keys of the undo log begin with."""

Batch = tuple[Sequence[bytes], Sequence[bytes]]
"""Keys, sorted, and their values."""
Changes = tuple[Sequence[bytes], Sequence[bytes | None]]
"""Keys and their newest values; None where a key was deleted."""


class TaskStore:
    """The stores of one task instance, opened for writing.

    Several processes may have one open (LMDB lets one write at a time); a process opens it once. Nothing about the
    state is cached between calls: every transaction reads the meta record again.
    """

    def __init__(
        self, folder: Path, task_id: str, environment: lmdb.Environment, suppliers: Mapping[str, Supplier] | None = None
    ) -> None:
        """Use ``create`` or ``open``."""
        self.folder, self.task_id = folder, task_id
        self._databases = Databases(folder, task_id, environment)
        self._suppliers = dict(suppliers or {})
        self._backing = Backing(task_id, opened_stores(folder, self._suppliers))
        self._is_proven = False
        self._settled_by = 0
        """The newest generation when this handle was opened, or the one for which it has settled the store since."""
        self._times = Times()

    @classmethod
    def create(
        cls, folder: Path, task_id: str, stores: Sequence[str], suppliers: Mapping[str, Supplier] | None = None
    ) -> TaskStore:
        """Create an instance in ``folder``, which must not exist yet: no rows, state None.

        ``suppliers`` open the users' stores that hold the values of some of the stores (PROTOCOL 32).

        Raises:
            FileExistsError: The folder exists.
            NetworkFileSystemError: The folder is not on a local disk.
            DiskFullError: There is no room for it, and no folder.
        """
        store = cls(folder, task_id, create_environment(folder, task_id), suppliers)
        try:
            with store._databases.changing() as txn:
                store._databases.write_meta(txn, Meta(stores={}))
            store._databases.add_stores([*RESERVED_STORES, *stores], store._suppliers)
        except BaseException:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return store

    @classmethod
    def open(
        cls, folder: Path, task_id: str, stores: Sequence[str], suppliers: Mapping[str, Supplier] | None = None
    ) -> TaskStore:
        """Open an existing instance; stores that it lacks are created empty. ``suppliers`` as for ``create``.

        Raises:
            TaskCorruptedError: The folder is missing or of another format version, was not closed cleanly before the
                machine restarted or it moved to another device, its contents fail their checks, or the values of a
                store are not where the program keeps them now.
            NetworkFileSystemError: The folder is not on a local disk.
            DiskFullError: There is no room to open it, which says nothing about it.
        """
        with trusted_environment(folder, task_id) as environment:
            store = cls(folder, task_id, environment, suppliers)
            store._databases.open_stores()
            store._databases.check()
            store._settled_by = store.generation
            store._databases.add_stores([*RESERVED_STORES, *stores], store._suppliers)
            store._require_same_backing(stores)
        return store

    @classmethod
    def adopt(cls, folder: Path, task_id: str) -> TaskStore:
        """Turn a folder that holds just a copy of an instance's data file into an instance, and open it.

        Raises:
            TaskCorruptedError: See ``open``.
        """
        write_identity(folder, clean_txn=None)
        return cls.open(folder, task_id, [])

    @property
    def current(self) -> StateId | None:
        """The state that the store holds."""
        return self._databases.meta().current

    @property
    def base(self) -> StateId | None:
        """The state that a rollback returns to: the last commit that the store knows of."""
        return self._databases.meta().base

    @property
    def generation(self) -> int:
        """The newest generation that has settled the store."""
        return self._databases.meta().generation

    @property
    def uncommitted(self) -> Uncommitted:
        """What the store holds beyond ``base``."""
        return self._databases.meta().uncommitted

    @property
    def rollback_cost(self) -> RollbackCost:
        """What a rollback would cost now."""
        with self._databases.reading() as txn:
            return self._databases.rollback_cost(txn)

    def figures(self, *, with_stores: bool) -> Figures:
        """What the store measures, with the durations since it was last asked; of each store too if asked for."""
        times, self._times = self._times, Times()
        stores = [name for name in self._databases.of_stores if name not in RESERVED_STORES]
        return self._databases.figures(times, stores, with_stores=with_stores)

    @property
    def own_uncommitted_bytes(self) -> int:
        """What the users' stores say that they hold beyond their last commits.

        Raises:
            OwnStoreError: A user's store failed.
        """
        return self._backing.approximate_num_uncommitted_bytes()

    @property
    def stores(self) -> list[str]:
        """The names of all stores that the instance has, reserved ones too."""
        return list(self._databases.of_stores)

    @property
    def used_bytes(self) -> int:
        """How much of the data file is in use; the rest is room to grow."""
        return self._databases.used_bytes

    def has_stores(self, stores: Sequence[str], suppliers: Mapping[str, Supplier] | None = None) -> bool:
        """Whether this handle knows all of these stores, and has the same users' stores behind them."""
        return self._databases.of_stores.keys() >= set(stores) and self._suppliers == dict(suppliers or {})

    def stored_receipt(self, plan_hash: str) -> bytes | None:
        """The receipt of the epoch that led to the current state, if its plan was this one (PROTOCOL 7).

        Ask this before settling: a plan that was carried out already does not settle again.
        """
        meta = self._databases.meta()
        return meta.receipt if meta.plan_hash == plan_hash and plan_hash else None

    def settle(
        self, *, generation: int, expected: StateId | None, committed: StateId | None, epoch: int | None = None
    ) -> Settlement:
        """Bring the store to ``expected``, or report that this needs a restore (PROTOCOL 5).

        A store that holds ``expected`` is ready; if that is the committed state, its undo log is dropped. A store with
        uncommitted epochs rolls back if the committed state is expected, unless it already holds ``epoch``, the one to
        be run, or a later one of this generation: then another worker was quicker. In all other cases its rows stay as
        they are. The generation is written first, so that older ones are refused from now on. Newly committed rows of
        users' stores are handed over to them (PROTOCOL 32).

        Raises:
            OwnStoreBehindError: Users' stores lack rows of earlier commits; call ``fill`` and settle again.
            OwnStoreError: A user's store failed; nothing was changed.
            FencedStoreError: A newer generation has settled the store; nothing was changed.
            DiskFullError: Nothing was changed; free some space on the disk first.
        """
        if not self._is_proven:
            suspect(self.folder)
        self._databases.require_free_disk(0)
        self._databases.open_stores()
        self._databases.grow_if_half_full()
        while True:
            began_s, handed_s = time.perf_counter(), dict[str, float]()
            try:
                with self._databases.changing() as txn:
                    meta = self._databases.read_meta(txn)
                    outcome = self._settle(txn, meta, generation, expected, committed, epoch, handed_s)
                self._settled_by = generation
                if outcome is Settlement.READY and expected == committed != meta.base:
                    took_s = time.perf_counter() - began_s
                    of_stores = {store: handed_s.get(store, took_s) for store in meta.stores}
                    self._times.committed(took_s, of_stores)
                return outcome
            except MapFullError:
                self.grow()

    @contextmanager
    def session(self) -> Iterator[EpochSession]:
        """One epoch's view of the store; its snapshot ends with the ``with`` block, or with ``apply``."""
        with self._databases.translating():
            txn, end = self._databases.snapshot()
            try:
                meta = self._databases.read_meta(txn)
            except BaseException:
                end()
                raise
            newest = NewestView(txn, self._databases.of_stores, meta)
            session = EpochSession(self._backing.exact(newest, self.folder), meta.current, end)
            try:
                yield session
            finally:
                session.close()

    def apply(
        self,
        session: EpochSession,
        *,
        state: StateId,
        expected: StateId | None,
        generation: int,
        plan_hash: str,
        make_receipt: Callable[[Uncommitted], bytes],
        committed: StateId | None = None,
    ) -> bytes | None:
        """Write an epoch's changes and its receipt in one transaction, and return the receipt (PROTOCOL 6).

        ``make_receipt`` is called once, inside the transaction, with what is uncommitted after this epoch. The
        session's snapshot ends; its writes stay in the session, so ``apply`` may be called again after an error.
        ``committed`` is ``expected`` if that has been committed since the store was settled: before anything is
        written, the undo log is dropped.

        Returns:
            None, without any effect, if the store does not hold ``expected`` or a newer generation has settled it.

        Raises:
            MapFullError: No effect; call ``grow`` and apply again.
            DiskFullError: No effect; free some space on the disk first.
        """
        changes = {store: session.changes(store) for store in session.changed_stores()}
        before = {store: session.images(store) for store in changes if store not in self._suppliers}
        session.close()
        large = sum(large_bytes(written.values()) for written in changes.values())
        large += sum(map(large_bytes, before.values()))
        self._databases.require_free_disk(sum(map(len, changes.values())), large)
        began_s, took_s = time.perf_counter(), dict[str, float]()
        with self._databases.changing() as txn:
            meta = self._databases.read_meta(txn)
            if session.state != expected or meta.current != expected or meta.generation > generation:
                return None
            if committed is not None and committed == expected:
                meta = self._committed(txn, meta, committed, {})
            written_bytes, rows = 0, dict(meta.rows)
            for store, written in changes.items():
                store_began_s = time.perf_counter()
                if store in self._suppliers:
                    images, rows_held = self._held(txn, store, list(written)), held_here(written)
                else:
                    images, rows_held = before[store], written
                keep_images(txn, self._databases.undo, meta.stores[store], written, images)
                written_bytes += _write_rows(txn, self._databases.of_stores[store], rows_held)
                rows[store] = txn.stat(self._databases.of_stores[store])["entries"]
                took_s[store] = time.perf_counter() - store_began_s
            cost = self._databases.rollback_cost(txn)
            uncommitted = Uncommitted(
                bytes=meta.uncommitted.bytes + written_bytes, records=cost.rows, rollback_us=cost.us()
            )
            receipt = make_receipt(uncommitted)
            self._databases.write_meta(
                txn,
                replace(
                    meta,
                    generation=generation,
                    current=state,
                    plan_hash=plan_hash,
                    receipt=receipt,
                    uncommitted=uncommitted,
                    rows=rows,
                ),
            )
        self._times.applied(time.perf_counter() - began_s, took_s)
        if not self._is_proven:
            prove_sound(self.folder)
            self._is_proven = True
        return receipt

    def spare(self) -> None:
        """While this process waits for space on the disk, its death says nothing about the instance; the next
        ``settle`` ends that."""
        if not self._is_proven:
            spare(self.folder)

    def grow(self) -> None:
        """Double the size of the map. No session or reader of this process may be open (PROTOCOL 18)."""
        self._databases.grow()

    @contextmanager
    def reader(self, isolation: IsolationLevel) -> Iterator[StateView]:
        """A snapshot for queries from this process. Hold it for under a second: it keeps LMDB from reusing pages."""
        with self._databases.reading() as txn:
            held = view(txn, self._databases.of_stores, self._databases.read_meta(txn), self._databases.undo, isolation)
            yield self._backing.exact(held, self.folder)

    def fill(self, store: str, batches: Iterable[Changes], base: StateId) -> None:
        """Hand committed rows over to the user's store behind ``store``, which then has everything up to ``base``.

        No effect unless ``base`` is still this store's. Batches as for ``catch_up``.

        Raises:
            OwnStoreError: The user's store failed.
        """
        with self._databases.changing() as txn:  # one process at a time
            if self._databases.read_meta(txn).base != base:
                return
            for keys, values in batches:
                self._backing.hand_over(store, zip(keys, values, strict=True))
            self._backing.commit(store, base)

    def bulk_load(self, rows: Mapping[str, Iterable[Batch]], *, state: StateId | None, generation: int) -> None:
        """Fill a new instance with each store's rows, sorted by key; they count as committed at ``state``.

        Each batch of keys and values is one write transaction. Values of persistent users' stores go there; others are
        filled by the processes that open them.

        Raises:
            ValueError: The instance already holds rows or a state, or rows are out of order.
            DiskFullError: Free some space on the disk first; the instance is useless.
        """
        meta = self._databases.meta()
        if meta.current is not None or any(meta.rows.values()):
            raise ValueError(f"task {self.task_id}: rows can be bulk-loaded only into a new instance")
        self._databases.add_stores(list(rows))
        for store, batches in rows.items():
            for keys, values in batches:
                self._append(store, keys, values)
        self._stand_at(state, generation)

    def catch_up(self, changes: Mapping[str, Iterable[Changes]], *, state: StateId | None, generation: int) -> None:
        """Bring an older committed state up to ``state``, given the newest value of each changed key.

        Each batch is one write transaction. If this is interrupted, the instance is useless.

        Raises:
            ValueError: The instance holds uncommitted rows.
            DiskFullError: Free some space on the disk first; the instance is useless.
        """
        if self.base != self.current:
            raise ValueError(f"task {self.task_id}: only a store without uncommitted rows can catch up")
        self._databases.add_stores(list(changes))
        for store, batches in changes.items():
            for keys, values in batches:
                self._change(store, keys, values)
        self._stand_at(state, generation)

    def copy_to(self, folder: Path) -> None:
        """Copy the environment's current state into an empty folder, without unused pages."""
        self._databases.environment.copy(str(folder), compact=True)

    def close(self, *, clean: bool = False) -> None:
        """Close the environment.

        ``clean`` syncs it first, so that it is trusted even after the machine restarts, unless a newer generation has
        settled the store, whose writes nobody would sync (PROTOCOL 19).
        """
        try:
            if clean:
                self._mark_clean()
        finally:
            self._databases.close()
            release(self.folder)
            self._backing.close()

    def _mark_clean(self) -> None:
        with self._databases.changing() as txn:  # nobody writes meanwhile
            if self._databases.read_meta(txn).generation <= self._settled_by:
                self._databases.environment.sync(True)
                write_identity(self.folder, clean_txn=self._databases.environment.info()["last_txnid"])

    def _settle(
        self,
        txn: lmdb.Transaction[bytes],
        meta: Meta,
        generation: int,
        expected: StateId | None,
        committed: StateId | None,
        epoch: int | None,
        handed_s: dict[str, float],
    ) -> Settlement:
        """``settle`` within a transaction; ``handed_s`` gets how long each of the users' stores took."""
        if meta.generation > generation:
            raise FencedStoreError(self.task_id, generation, meta.generation)
        if meta.generation < generation:
            note_generation(self.folder, generation)
            unmark(self.folder, self.task_id)
        settled = replace(meta, generation=generation)
        if meta.current == expected:
            outcome = Settlement.READY
            self._require_filled(meta)
            if expected == committed:
                settled = self._committed(txn, settled, committed, handed_s)
        elif expected == committed and meta.base == committed and not is_ahead(meta.current, generation, epoch):
            outcome = Settlement.ROLLED_BACK
            self._require_filled(meta)
            images = txn.stat(self._databases.undo)["overflow_pages"] * PAGE_BYTES
            self._databases.require_free_disk(meta.uncommitted.records, images)
            numbered = {number: self._databases.of_stores[store] for store, number in meta.stores.items()}
            put_images_back(txn, self._databases.undo, numbered)
            settled = replace(
                settled,
                current=committed,
                plan_hash="",
                receipt=b"",
                uncommitted=Uncommitted(),
                rows=meta.committed_rows,
            )
        else:
            outcome = Settlement.NEEDS_RESTORE
        if settled != meta:
            self._databases.write_meta(txn, settled)
        return outcome

    def _committed(
        self, txn: lmdb.Transaction[bytes], meta: Meta, committed: StateId | None, handed_s: dict[str, float]
    ) -> Meta:
        """The meta record once the current state is known to be committed: there is nothing to undo any more.
        ``handed_s`` as for ``_settle``."""
        if meta.base == committed:
            return meta
        if committed is not None:
            self._hand_over(txn, meta, committed, handed_s)
        txn.drop(self._databases.undo, delete=False)
        return replace(meta, base=committed, uncommitted=Uncommitted(), committed_rows=meta.rows)

    def _require_same_backing(self, stores: Sequence[str]) -> None:
        """Raise ``TaskCorruptedError`` unless the values of ``stores`` are where the program keeps them."""
        backed = self._databases.meta().backed
        for store in stores:
            if (store in backed) != (store in self._suppliers):
                was, now = ("in", "out of") if store in backed else ("out of", "in")
                reason = (
                    f"it kept the values of {store!r} {was} a store of your own; the program now keeps them {now} one"
                )
                raise TaskCorruptedError(self.task_id, str(self.folder), reason)

    def _require_filled(self, meta: Meta) -> None:
        if meta.base is not None and (above := self._backing.behind(meta.base)):
            raise OwnStoreBehindError(self.task_id, above, meta.base)

    def _held(self, txn: lmdb.Transaction[bytes], store: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """What the environment itself holds for ``keys``."""
        with txn.cursor(self._databases.of_stores[store]) as cursor:
            found = dict(cursor.getmulti(keys))
        return list(map(found.get, keys))

    def _hand_over(
        self, txn: lmdb.Transaction[bytes], meta: Meta, committed: StateId, took_s: dict[str, float]
    ) -> None:
        """Give the users' stores what has been committed since ``meta.base``: the rows that the undo log names.
        ``took_s`` gets how long that takes, by store."""
        for store in self._suppliers:
            began_s = time.perf_counter()
            prefix, end = undo_prefix(meta.stores[store]), undo_prefix(meta.stores[store] + 1)
            changed = [key[len(prefix) :] for key, _ in rows_between(txn, self._databases.undo, prefix, end, False)]
            for start in range(0, len(changed), BATCH_ROWS):
                keys = changed[start : start + BATCH_ROWS]
                held = self._held(txn, store, keys)
                values = [None if value is None else value[1:] for value in held]
                self._backing.hand_over(store, zip(keys, values, strict=True))
                left = {key: ELSEWHERE for key, value in zip(keys, held, strict=True) if value is not None}
                _write_rows(txn, self._databases.of_stores[store], left)
            self._backing.commit(store, committed)
            took_s[store] = time.perf_counter() - began_s

    def _append(self, store: str, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._databases.require_free_disk(len(keys), large_bytes(values))
        if store in self._suppliers:
            if self._backing.stores[store].is_persistent():
                self._backing.hand_over(store, zip(keys, values, strict=True))
            values = [ELSEWHERE] * len(keys)
        while True:
            try:
                with self._databases.changing() as txn, txn.cursor(self._databases.of_stores[store]) as cursor:
                    _, added = cursor.putmulti(zip(keys, values, strict=True), append=True)
                    if added != len(keys):
                        raise ValueError(f"store {store!r}: bulk-loaded rows must be sorted by key, each key once")
                    return
            except MapFullError:
                self.grow()

    def _change(self, store: str, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        self._databases.require_free_disk(len(keys), large_bytes(values))
        while True:
            try:
                with self._databases.changing() as txn:
                    _write_rows(txn, self._databases.of_stores[store], dict(zip(keys, values, strict=True)))
                    return
            except MapFullError:
                self.grow()

    def _stand_at(self, state: StateId | None, generation: int) -> None:
        """Mark all rows as committed at ``state``."""
        self._settled_by = generation
        note_generation(self.folder, generation)
        for name, store in self._backing.stores.items():
            if state is not None and store.is_persistent():
                self._backing.commit(name, state)
        self._databases.grow_if_half_full()
        with self._databases.changing() as txn:
            counts = {name: txn.stat(store)["entries"] for name, store in self._databases.of_stores.items()}
            meta = self._databases.read_meta(txn)
            self._databases.write_meta(
                txn,
                replace(
                    meta,
                    generation=generation,
                    current=state,
                    base=state,
                    plan_hash="",
                    receipt=b"",
                    rows=counts,
                    committed_rows=counts,
                ),
            )


def is_ahead(current: StateId | None, generation: int, epoch: int | None) -> bool:
    """Whether a store whose state is ``current`` already has ``epoch`` of the generation."""
    return current is not None and epoch is not None and current.generation == generation and current.epoch >= epoch


def _write_rows(txn: lmdb.Transaction[bytes], database: lmdb._Database, written: Mapping[bytes, bytes | None]) -> int:
    """Put and delete; returns the total size of keys and values in bytes."""
    values, gone = list(written.values()), list[bytes]()
    puts: Iterable[tuple[bytes, bytes | None]] = written.items()
    if None in values:
        gone = [key for key, value in written.items() if value is None]
        puts = [(key, value) for key, value in written.items() if value is not None]
    with txn.cursor(database) as cursor:
        cursor.putmulti(cast(Iterable[tuple[bytes, bytes]], puts))
        for key in gone:
            cursor.pop(key)
    return sum(map(len, written)) + sum(map(len, filter(None, values)))
