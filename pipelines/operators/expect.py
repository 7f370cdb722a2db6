"""The operator of an expectation, on streams and on tables: counts the rows that meet it, and those that do not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from weir.pipelines.errors import ExpectationError
from weir.pipelines.expectations import OnViolation, count_name
from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType, Records
from weir.pipelines.operators.stateless import Predicate, meets
from weir.pipelines.serdes.row_type import RowType


@dataclass(frozen=True, kw_only=True)
class Expect:
    """Forwards the rows as they are, or with ``on_violation="drop"`` those for which the predicate is true.

    Null counts as false. A table's tombstones pass unjudged and uncounted.
    """

    node: str
    expectation: str
    predicate: Predicate
    on_violation: OnViolation
    key: KeyType
    value: RowType
    is_table: bool

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        """Raises ``ExpectationError`` for rows that violate it, if the records that caused them are to be put aside, or
        to stop the run."""
        passes = meets(self.predicate, rows, self.key, self.value, is_table=self.is_table)
        tombstones = rows.get_column("_deleted") if self.is_table else pl.repeat(False, rows.height, eager=True)
        violates = ~(passes | tombstones)
        failed = int(violates.sum())
        if failed and self.on_violation in ("fail", "dead_letter"):
            raise self._violated_by(rows.filter(violates), epoch)
        epoch.counts[count_name(self.expectation, "passed")] += rows.height - int(tombstones.sum()) - failed
        if not failed:
            return rows
        epoch.counts[count_name(self.expectation, "failed")] += failed
        if self.on_violation == "count":
            return rows
        epoch.counts[count_name(self.expectation, "dropped")] += failed
        return rows.filter(~violates)

    def _violated_by(self, rows: pl.DataFrame, epoch: Epoch) -> ExpectationError:
        record = Records(rows, self.key.names).at(0)
        if (read := epoch.metadata_of(record.partition, record.offset)) is not None:
            record = replace(record, topic=read.topic, partition=read.partition, offset=read.offset)
        names = dict.fromkeys([*self.key.names, *self.value.columns])
        return ExpectationError(
            self.node,
            self.expectation,
            self.on_violation,
            tuple(rows.get_column("_offset").to_list()),
            record,
            {name: rows.get_column(name)[0] for name in names},
        )
