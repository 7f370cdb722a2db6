"""Foreign-key joins of tables (KIP-213): rows of the left table subscribe to rows of the right one and get answers.

``SubscriptionSend`` and ``ResponseJoin`` run where the left table is, ``SubscriptionJoin`` where the right one is.
Messages between them keep the order in which they were sent. A batch of updates counts as one: only the rows that
remain after it are sent and joined (docs/adr/0006). How messages find their task belongs to
``weir.pipelines.topology.foreign_key``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.joiner import Joiner, renamed
from weir.pipelines.operators.mapping import SelectKey
from weir.pipelines.operators.numbering import numbered, numbers_of
from weir.pipelines.operators.table_table_join import JoinedSide, JoinKind, with_tombstones_of
from weir.pipelines.operators.table_view import look_up_newest
from weir.state.frames import framed, picked, repeated, where, with_series, without
from weir.state.stores.codec import RowCodec
from weir.state.stores.key_value import KeyValueStore
from weir.state.stores.typed import TypedStore
from weir.state.types import StoreSpec

HASH = "_hash"
"""Of the foreign key of the left row that a message is about; null if that row is deleted or, in an inner join, has no
foreign key. Subscriptions that older versions wrote have the hash of the whole row."""
KEEPS, ASKS = "_keeps", "_asks"
"""Whether to keep the subscription (else to delete it), and whether to answer."""
SENDER = "_sender"
"""Partition of the left task that holds the primary key: answers go back there, however the topic is partitioned."""


@dataclass(frozen=True, kw_only=True)
class Naming:
    """The foreign key of a left row, and what distinguishes the row from others of its primary key."""

    selector: SelectKey
    foreign_key: tuple[str, ...]
    """The right table's key columns."""
    value: pl.Schema
    """The left table's columns that are not key columns."""
    is_left: bool
    """Whether rows without a foreign key have results."""

    def foreign_keys(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """The foreign key of each row, null if the row is deleted, under the names of the right table's key columns."""
        is_there = ~rows.get_column("_deleted")
        if not is_there.any():
            types = self.selector.result.columns.values()
            nulls = [pl.Series(name, [None], dtype) for name, dtype in zip(self.foreign_key, types, strict=True)]
            return framed([null.new_from_index(0, rows.height) for null in nulls])
        is_whole = is_there.all()
        found = self.selector.process(rows if is_whole else rows.filter(is_there), epoch)
        names = zip(self.foreign_key, self.selector.result.columns, strict=True)
        keys = framed([found.get_column(name).alias(known) for known, name in names])
        if is_whole:
            return keys
        at = pl.select(pl.when(is_there).then(is_there.cum_sum() - 1)).to_series()
        return keys.select_seq(pl.all().gather(at))

    def hashes(self, foreign_keys: pl.DataFrame, is_one: pl.Series) -> pl.Series:
        """64 bits per foreign key, the same in every process; null where ``is_one`` is false.

        Not of the whole row: its columns may be others in the next program, which keeps the subscriptions. Rows share
        foreign keys, so each is hashed once.
        """
        distinct = foreign_keys.unique(maintain_order=True) if foreign_keys.height > 1 else foreign_keys
        found = _hashes(distinct, foreign_keys.schema)
        if distinct.height < foreign_keys.height:
            found = found.gather(numbers_of(foreign_keys, distinct.with_row_index("_id")))
        return found if is_one.all() else found.set(~is_one, None)

    def is_current(self, rows: pl.DataFrame, told: pl.Series, epoch: Epoch) -> pl.Series:
        """Which of the left ``rows`` have the foreign keys, or are the rows, whose hashes are ``told``: null for a row
        that is deleted or, in an inner join, has no foreign key."""
        foreign_keys = self.foreign_keys(rows, epoch)
        is_one = ~rows.get_column("_deleted") if self.is_left else _is_key(foreign_keys)
        is_current = told.eq_missing(self.hashes(foreign_keys, is_one))
        if not (is_other := ~is_current & is_one & told.is_not_null()).any():
            return is_current
        others = is_other.arg_true()
        return is_current.scatter(others, told.gather(others) == _hashes(rows[others], self.value))


@dataclass(frozen=True, kw_only=True)
class SubscriptionSend:
    """The messages of the left table's updates to the right one, under their foreign keys.

    A row asks for the right row of its foreign key and subscribes to it; a row that had another foreign key before
    cancels that subscription. In a left join, rows with a null foreign key and deleted rows ask too, and get an empty
    answer; in an inner join a null foreign key is counted in ``null_keys``.

    Columns: foreign key, primary key, ``_hash``, ``_keeps``, ``_asks``, ``_ts _partition _offset _deleted``.
    """

    left: JoinedSide
    key: Mapping[str, str]
    """The left table's key columns and their names in messages."""
    naming: Naming

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        own = list(self.key)
        newest = self.left.in_order(rows, epoch).unique(own, keep="last", maintain_order=True)
        before = self.left.table.before(newest.select_seq(own), epoch)
        was, now = (~frame.get_column("_deleted") for frame in (before, newest))
        old, new = (self.naming.foreign_keys(frame, epoch) for frame in (before, newest))
        had, has = _is_key(old), _is_key(new)
        leaves = had
        if had.any():
            is_same = pl.DataFrame([old[name].eq_missing(new[name]).alias(name) for name in old.columns])
            leaves = had & ~is_same.select_seq(pl.all_horizontal(pl.all())).to_series()
        asks = was | now if self.naming.is_left else has
        if not self.naming.is_left and (unnamed := int((now & ~has).sum())):
            epoch.counts["null_keys"] += unnamed
        rest = pl.DataFrame(
            [
                *(newest.get_column(name).alias(known) for name, known in self.key.items()),
                self.naming.hashes(new, now if self.naming.is_left else has),
                *newest.select_seq("_ts", "_partition", "_offset").get_columns(),
                pl.int_range(newest.height, eager=True).alias("_update"),
            ]
        )
        requests = new.hstack(rest).with_columns_seq(has.alias(KEEPS), pl.lit(True).alias(ASKS))
        messages = where(requests, asks)
        if leaves.any():
            cancels = old.hstack(rest).with_columns_seq(
                pl.lit(False).alias(KEEPS), (~has & (not self.naming.is_left)).alias(ASKS)
            )
            messages = pl.concat([cancels.filter(leaves), messages]).sort("_update", maintain_order=True)
        return with_series(without(messages, "_update"), repeated("_deleted", False, messages.height, np.bool_))


@dataclass(frozen=True, kw_only=True)
class SubscriptionJoin:
    """Keeps subscriptions by foreign key, then primary key. Answers each that asks, and when the right row of a foreign
    key changes, all that subscribe to it.

    Answers: the left table's key columns, the right row's columns under ``right_names``, ``_hash`` of the left row that
    asked, ``_sender``, ``_ts`` (the greater of the two rows), ``_partition _offset``, ``_deleted`` (no right row).
    """

    right: JoinedSide
    store: StoreSpec
    key: Mapping[str, str]
    right_names: Mapping[str, str]

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        messages, updates = inputs[0], self.right.in_order(inputs[1], epoch)
        foreign, primary = list(self.right.key), list(self.key.values())
        store = KeyValueStore(self.store, epoch.session)
        messages = messages.rename({"_partition": SENDER})
        kept = with_series(messages, (~messages.get_column(KEEPS)).alias("_deleted"))
        store.put_rows(where(kept, _is_key(picked(messages, foreign))))
        newest = messages.unique(primary, keep="last", maintain_order=True) if messages.height > 1 else messages
        names = [*foreign, *primary, HASH, SENDER, "_ts", "_offset", KEEPS]
        asked = picked(where(newest, newest.get_column(ASKS)), names)
        asked = with_series(asked, repeated("_is_update", False, asked.height, np.bool_))
        if updates.height:
            changed = updates.group_by(foreign, maintain_order=True).agg(pl.col("_offset").last())
            subscribed = store.get_prefixed(changed.select_seq(foreign))
            subscribed = subscribed.join(newest, on=primary, how="anti", nulls_equal=True)
            subscribed = subscribed.join(changed, on=foreign, how="left", maintain_order="left")
            is_one = repeated("_is_update", True, subscribed.height, np.bool_)
            subscribed = picked(with_series(subscribed, is_one.alias(KEEPS)), names)
            asked = pl.concat([asked, with_series(subscribed, is_one)])
        keys = picked(asked, foreign)
        met = look_up_newest(keys, self.right.table, updates, epoch)
        gone = met.get_column("_deleted") | ~asked.get_column(KEEPS)
        times = pl.DataFrame([asked.get_column("_ts"), met.get_column("_ts").alias("_other")])
        is_told = ~met.get_column("_deleted") | asked.get_column("_is_update")
        return pl.DataFrame(
            [
                *(asked.get_column(known).alias(name) for name, known in self.key.items()),
                *renamed(met, keys, self.right_names),
                asked.get_column(HASH),
                asked.get_column(SENDER),
                times.select_seq(pl.max_horizontal("_ts", pl.when(is_told).then(pl.col("_other")))).to_series(),
                asked.get_column(SENDER).alias("_partition"),
                asked.get_column("_offset"),
                gone.alias("_deleted"),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class ResponseJoin:
    """Joins answers with the left rows that they are for. An answer for a foreign key that the row no longer has is
    dropped: the newer row has asked too.

    An inner join forwards a tombstone only if there is a result to delete.
    """

    left: JoinedSide
    naming: Naming
    joiner: Joiner
    kind: JoinKind
    standing: StoreSpec | None
    """The keys that have a result; None for a left join, whose results last as long as their left rows."""

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        answers, updates = inputs
        if self.left.newest is not None:
            updates = self.left.newest.process(updates, epoch)
        keys = picked(answers, self.left.key)
        met = look_up_newest(keys, self.left.table, updates, epoch)
        rows = keys.hstack(without(met, "_partition", "_offset"))
        is_current = self.naming.is_current(rows, answers.get_column(HASH), epoch)
        pairs = without(answers, HASH, SENDER).hstack(
            [
                *(column for column in met.get_columns() if not column.name.startswith("_")),
                met.get_column("_deleted").alias("_left_gone"),
                answers.get_column("_deleted").alias("_right_gone"),
            ]
        )
        pairs = where(pairs, is_current)
        results = self.joiner.join(with_tombstones_of(self.kind, pairs))
        return results if self.standing is None else self._with_due_tombstones(results, self.standing, epoch)

    def _with_due_tombstones(self, results: pl.DataFrame, standing: StoreSpec, epoch: Epoch) -> pl.DataFrame:
        """``results`` without tombstones for results that do not exist; records which keys have a result."""
        if results.is_empty():
            return results
        keys, store = picked(results, self.left.key), TypedStore(standing, epoch.session)
        distinct, ids = numbered(keys)
        held, places = store.encode_sorted(distinct)
        stood = np.empty(distinct.height, np.bool_)
        stood[places] = store.has(held)
        stands, of_key = ~results.get_column("_deleted").to_numpy(), ids.to_numpy().astype(np.int64)
        order = np.argsort(of_key, kind="stable")
        is_first = np.diff(of_key[order], prepend=-1) != 0
        stood_before = np.empty(results.height, np.bool_)
        stood_before[order] = np.where(is_first, stood[of_key[order]], np.roll(stands[order], 1))
        newest = order[np.roll(is_first, -1)][places]
        added, removed = stands[newest] & ~stood[places], ~stands[newest] & stood[places]
        store.write(list(compress(held, added)), results[newest[added]])
        store.delete(list(compress(held, removed)))
        return where(results, pl.Series(stands | stood_before))


def _hashes(rows: pl.DataFrame, columns: pl.Schema) -> pl.Series:
    packed = RowCodec(columns).encode(rows.with_columns_seq(pl.lit(None, pl.Int64).alias("_ts")))
    numbers = [int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), signed=True) for row in packed]
    return pl.Series(HASH, numbers, dtype=pl.Int64)


def _is_key(keys: pl.DataFrame) -> pl.Series:
    """Which keys are not null."""
    if keys.width == 1:
        return keys.to_series().is_not_null()
    return keys.select_seq(pl.any_horizontal(pl.all().is_not_null())).to_series()
