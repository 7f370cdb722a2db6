"""The result of joining two rows: the columns of both, or what a function of the two values returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.functions import KeyType, Records, UserFunction
from weir.pipelines.operators.stateless import reserved, with_tombstones
from weir.pipelines.serdes.row_type import RowType
from weir.state.frames import framed, picked, without


@dataclass(frozen=True, kw_only=True)
class Joiner:
    """Makes results of pairs: key columns, the left value's columns, and the right value's under ``right_names``.

    The columns of a missing side are null, and ``_left_gone`` or ``_right_gone`` is true.
    """

    key: KeyType
    key_columns: tuple[str, ...]
    left: RowType
    right: RowType
    right_names: Mapping[str, str]
    """The right value's columns and their names in pairs, and in results without a function."""
    function: UserFunction | None
    """Takes ``(left, right)`` or ``(key, left, right)``; None joins the columns of both."""
    takes_key: bool
    result: RowType

    @property
    def pair_values(self) -> pl.Schema:
        """The value columns of a pair that are not key columns."""
        right = {self.right_names[name]: dtype for name, dtype in self.right.columns.items()}
        return pl.Schema(
            {name: dtype for name, dtype in {**self.left.columns, **right}.items() if name not in self.key_columns}
        )

    def join(self, pairs: pl.DataFrame) -> pl.DataFrame:
        """One result per pair, with the pair's reserved columns except ``_left_gone`` and ``_right_gone``.

        It is a tombstone if both sides are missing or the function returns None.
        """
        left_gone, right_gone = pairs.get_column("_left_gone"), pairs.get_column("_right_gone")
        pairs, deleted = without(pairs, "_left_gone", "_right_gone"), left_gone & right_gone
        key = picked(pairs, self.key_columns).get_columns()
        if self.function is None:
            rows = framed([*key, *picked(pairs, self.pair_values).get_columns(), *reserved(pairs, deleted)])
            return with_tombstones(rows, self.result, self.key_columns, deleted)
        is_asked = ~deleted
        asked = pairs.filter(is_asked)
        right = pl.DataFrame([asked.get_column(self.right_names[name]).alias(name) for name in self.right.columns])
        arguments = [
            self.left.to_objects(asked, left_gone.filter(is_asked)),
            self.right.to_objects(right, right_gone.filter(is_asked)),
        ]
        if self.takes_key:
            arguments.insert(0, self.key.to_objects(asked))
        answers = iter(self.function.over(zip(*arguments, strict=True), Records(asked, self.key_columns)))
        objects = [next(answers) if is_given else None for is_given in is_asked.to_list()]
        columns = self.function.columns(self.result, objects, Records(pairs, self.key_columns))
        return pl.DataFrame(
            [*key, *columns, *reserved(pairs, pl.Series([item is None for item in objects], dtype=pl.Boolean()))]
        )


def renamed(rows: pl.DataFrame, keys: pl.DataFrame, names: Mapping[str, str]) -> list[pl.Series]:
    """The columns of the right side of pairs; its key columns are taken from ``keys``."""
    gone = rows.get_column("_deleted")
    return [
        (rows.get_column(name) if name in rows.columns else keys.get_column(name).set(gone, None)).alias(pair_name)
        for name, pair_name in names.items()
    ]
