"""The stores of joins of streams from their changelogs: records get the numbers that Weir tells them apart by."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from weir.pipelines.topology.joins import StreamJoinNode


def numbered(node: StreamJoinNode, rows: Mapping[str, pl.DataFrame]) -> tuple[dict[str, pl.DataFrame], dict[str, int]]:
    """The rows of a task's stores with the right ``_seq``, and the clocks of the join.

    ``rows`` are by store, with ``_order``. A record that waits has the number that it has on its side.
    """
    found, clocks, newest = dict[str, pl.DataFrame](), dict[str, int](), list[int]()
    for side in (node.left, node.right):
        own = rows[side.store.name].sort("_order").with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("_seq"))
        found[side.store.name] = own.drop("_order")
        if own.height:
            clocks[side.store.name] = int(own["_ts"].max())  # type: ignore[arg-type]
            clocks[f"_rows:{side.store.name}"] = own.height
            newest.append(clocks[side.store.name])
    if newest:
        clocks[f"{node.left.store.name}&{node.right.store.name}"] = max(newest)
    if node.held is not None:
        found[node.held.name] = _waiting(node, rows[node.held.name], found)
    return found, clocks


def _waiting(node: StreamJoinNode, waiting: pl.DataFrame, sides: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """All records of one key, side and time wait, or none: so each is the last one but as many on its side."""
    key = list(node.left.key)
    by = [*key, "_ts", "_is_left"]
    every = pl.concat(
        [
            sides[side.store.name]
            .rename(dict(zip(side.key, key, strict=True)) if list(side.key) != key else {})
            .select(*key, "_ts", pl.lit(is_left).alias("_is_left"), pl.col("_seq").alias("_number"))
            for side, is_left in ((node.left, True), (node.right, False))
        ]
    ).sort("_number")
    place = (pl.len() - 1 - pl.int_range(pl.len())).over(by).cast(pl.Int64).alias("_from_last")
    waiting = waiting.sort("_seq").with_columns(place).drop("_seq")
    found = waiting.join(every.with_columns(place), on=[*by, "_from_last"], how="inner", nulls_equal=True)
    assert node.held is not None
    return found.rename({"_number": "_seq"}).select(*node.held.key, *node.held.value, "_ts")
