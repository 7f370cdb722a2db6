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
    """Rows ordered by record; rows of one record in the order of ``parts``."""
    parts = [part for part in parts if part.height] or list(parts[:1])
    return parts[0] if len(parts) == 1 else pl.concat(parts).sort("_offset", maintain_order=True)
