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

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.joiner import Joiner, renamed
from weir.pipelines.operators.mapping import SelectKey
from weir.pipelines.operators.table_table_join import JoinedSide, JoinKind, with_tombstones_of
from weir.pipelines.operators.table_view import look_up
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
AFTER_ALL_TURNS = 1 << 62


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
        found = self.selector.process(rows.filter(is_there), epoch)
        names = zip(self.foreign_key, self.selector.result.columns, strict=True)
        at = pl.select(pl.when(is_there).then(is_there.cum_sum() - 1)).to_series()
        return found.select_seq(pl.col(name).gather(at).alias(known) for known, name in names)

    def hashes(self, foreign_keys: pl.DataFrame, is_one: pl.Series) -> pl.Series:
        """64 bits per foreign key, the same in every process; null where ``is_one`` is false.

        Not of the whole row: its columns may be others in the next program, which keeps the subscriptions.
        """
        return _hashes(foreign_keys, foreign_keys.schema).set(~is_one, None)

    def row_hashes(self, rows: pl.DataFrame, is_one: pl.Series) -> pl.Series:
        """The same of whole rows."""
        return _hashes(rows, self.value).set(~is_one, None)


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
        is_same = pl.DataFrame([old[name].eq_missing(new[name]).alias(name) for name in old.columns])
        leaves = had & ~is_same.select_seq(pl.all_horizontal(pl.all())).to_series()
        asks = was | now if self.naming.is_left else has
        if not self.naming.is_left and (without := int((now & ~has).sum())):
            epoch.counts["null_keys"] += without
        rest = pl.DataFrame(
            [
                *(newest.get_column(name).alias(known) for name, known in self.key.items()),
                self.naming.hashes(new, now if self.naming.is_left else has),
                *newest.select_seq("_ts", "_partition", "_offset").get_columns(),
                pl.int_range(newest.height, eager=True).alias("_update"),
            ]
        )
        cancels = old.hstack(rest).with_columns_seq(
            pl.lit(False).alias(KEEPS), (~has & (not self.naming.is_left)).alias(ASKS)
        )
        requests = new.hstack(rest).with_columns_seq(has.alias(KEEPS), pl.lit(True).alias(ASKS))
        messages = pl.concat([cancels.filter(leaves), requests.filter(asks)]).sort("_update", maintain_order=True)
        return messages.drop("_update").with_columns_seq(_deleted=pl.lit(False))


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
        store.put_rows(messages.filter(_is_key(messages.select_seq(foreign))).with_columns_seq(_deleted=~pl.col(KEEPS)))
        newest = messages.unique(primary, keep="last", maintain_order=True)
        names = [*foreign, *primary, HASH, SENDER, "_ts", "_offset", KEEPS]
        changed = updates.group_by(foreign, maintain_order=True).agg(pl.col("_offset").last())
        subscribed = store.get_prefixed(changed.select_seq(foreign))
        subscribed = subscribed.join(newest, on=primary, how="anti", nulls_equal=True)
        subscribed = subscribed.join(changed, on=foreign, how="left", maintain_order="left")
        asked = pl.concat(
            [
                newest.filter(ASKS).select_seq(names).with_columns_seq(_is_update=pl.lit(False)),
                subscribed.with_columns_seq(pl.lit(True).alias(KEEPS))
                .select_seq(names)
                .with_columns_seq(_is_update=pl.lit(True)),
            ]
        )
        keys = asked.select_seq(*foreign, pl.lit(AFTER_ALL_TURNS, pl.Int64).alias("_offset"))
        met = look_up(keys, self.right.table, updates, epoch, is_written_first=True)
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
        keys = answers.select_seq(*self.left.key, pl.lit(AFTER_ALL_TURNS, pl.Int64).alias("_offset"))
        met = look_up(keys, self.left.table, updates, epoch, is_written_first=True)
        rows = answers.select_seq(self.left.key).hstack(met.select_seq(pl.exclude("_partition", "_offset")))
        foreign_keys, told = self.naming.foreign_keys(rows, epoch), answers.get_column(HASH)
        is_one = ~rows.get_column("_deleted") if self.naming.is_left else _is_key(foreign_keys)
        is_current = told.eq_missing(self.naming.hashes(foreign_keys, is_one))
        is_current |= told.eq_missing(self.naming.row_hashes(rows, is_one))
        pairs = answers.drop(HASH, SENDER).hstack(
            [column for column in met.get_columns() if not column.name.startswith("_")]
        )
        pairs = pairs.with_columns_seq(
            met.get_column("_deleted").alias("_left_gone"), answers.get_column("_deleted").alias("_right_gone")
        ).filter(is_current)
        results = self.joiner.join(with_tombstones_of(self.kind, pairs))
        return results if self.standing is None else self._with_due_tombstones(results, self.standing, epoch)

    def _with_due_tombstones(self, results: pl.DataFrame, standing: StoreSpec, epoch: Epoch) -> pl.DataFrame:
        """``results`` without tombstones for results that do not exist; records which keys have a result."""
        by, store = list(self.left.key), TypedStore(standing, epoch.session)
        keys = results.select_seq(by).unique(maintain_order=True)
        held = store.encode(keys)
        stood = store.fetch(held).get_column("_found")
        told = results.select_seq(*by, "_ts", (~pl.col("_deleted")).alias("_stands"))
        history = pl.concat([keys.with_columns_seq(stood.alias("_stands")), told.drop("_ts")])
        before = history.select_seq(pl.col("_stands").shift(1).over(by)).to_series()[keys.height :]
        newest = keys.join(told.unique(by, keep="last"), on=by, how="left", nulls_equal=True, maintain_order="left")
        stands = newest.get_column("_stands")
        added, removed = ((stands & ~stood).arg_true(), (~stands & stood).arg_true())
        store.write([held[place] for place in added], newest[added])
        store.delete([held[place] for place in removed])
        return results.filter(~pl.col("_deleted") | before)


def _hashes(rows: pl.DataFrame, columns: pl.Schema) -> pl.Series:
    packed = RowCodec(columns).encode(rows.with_columns_seq(pl.lit(None, pl.Int64).alias("_ts")))
    numbers = [int.from_bytes(hashlib.blake2b(row, digest_size=8).digest(), signed=True) for row in packed]
    return pl.Series(HASH, numbers, dtype=pl.Int64)


def _is_key(keys: pl.DataFrame) -> pl.Series:
    """Which keys are not null."""
    return keys.select_seq(pl.any_horizontal(pl.all().is_not_null())).to_series()
