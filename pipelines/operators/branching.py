"""Splitting: each record is marked with the first branch whose predicate it meets, and goes to that branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch
from weir.pipelines.operators.functions import KeyType
from weir.pipelines.operators.stateless import Predicate, meets
from weir.pipelines.serdes.row_type import RowType
from weir.state.frames import without

BRANCH = "_branch"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Adds ``_branch``: the index of the first predicate that is true, null where none is.

    A function is called only for records that met no earlier predicate.
    """

    predicates: Sequence[Predicate]
    key: KeyType
    value: RowType

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        branch = pl.repeat(None, rows.height, dtype=pl.Int32(), eager=True)
        for index, predicate in enumerate(self.predicates):
            waiting = branch.is_null().arg_true()
            found = meets(predicate, rows[waiting], self.key, self.value)
            branch = branch.scatter(waiting.filter(found), index)
        return rows.with_columns_seq(branch.alias(BRANCH))


@dataclass(frozen=True)
class Branch:
    """The rows marked ``index``; None stands for rows of no branch."""

    index: int | None

    def process(self, rows: pl.DataFrame, epoch: Epoch) -> pl.DataFrame:
        marked = pl.col(BRANCH).is_null() if self.index is None else pl.col(BRANCH) == self.index
        return without(rows.filter(marked), BRANCH)
