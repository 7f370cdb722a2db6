"""The rows of an epoch in turn, as a task's processor takes them, from plain frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from weir.pipelines.tasks.order import MERGE, Arrivals, Part, Turns, with_keys


def in_turn(
    frames: Mapping[str, pl.DataFrame], inputs: Sequence[str] = (), merge_ms: dict[str, int] | None = None
) -> Turns:
    """By topic or edge; rows that were not sent get the keys of a topic's records. At equal merge times, the inputs
    named first come first. ``merge_ms`` are the topics' merge times so far, which advance."""
    so_far = {} if merge_ms is None else merge_ms
    ranks = {name: rank for rank, name in enumerate(inputs or frames)}
    return Arrivals(
        Part(
            input=name,
            rank=ranks[name],
            partition=0,
            frame=frame if MERGE in frame.columns else _keyed(name, frame, ranks[name], so_far),
        )
        for name, frame in frames.items()
    ).turns


def _keyed(name: str, frame: pl.DataFrame, rank: int, so_far: dict[str, int]) -> pl.DataFrame:
    keyed = with_keys(frame, rank, 0, so_far.get(name))
    if keyed.height:
        so_far[name] = keyed[MERGE][-1]
    return keyed
