"""Merging streams: the rows of all, in the order of the records that caused them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from weir.pipelines.operators.epoch import Epoch


@dataclass(frozen=True, kw_only=True)
class Merge:
    """All rows of all inputs, with the columns ``names``; rows of one record in the order of the inputs it reaches."""

    names: tuple[str, ...]
    by_arrival: tuple[int, ...]

    def process_all(self, inputs: Sequence[pl.DataFrame], epoch: Epoch) -> pl.DataFrame:
        return in_turn([inputs[index].select_seq(self.names) for index in self.by_arrival])


def in_turn(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Rows ordered by record; rows of one record in the order of ``parts``, with columns in any order."""
    first, *others = [part for part in parts if part.height] or parts[:1]
    if not others:
        return first
    if any(part.columns != first.columns for part in others):
        others = [part.select_seq(first.columns) if part.width == first.width else part for part in others]
    return pl.concat([first, *others]).sort("_offset", maintain_order=True)
