"""Turns: the order in which a task takes the records of several topics and edges.

The next record is the oldest of those that are next in their inputs, as in Kafka Streams; the order within an input
stays, whatever the timestamps. At equal timestamps the inputs of tables that a join looks up come first, then those
declared first (``SubTopology.inputs``). Reading an epoch's records belongs to ``weir.pipelines.tasks.epoch``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import polars as pl

TURNS = "_turns"
"""The task's clock that counts the records taken, which is the turn of the next one."""


def turns(frames: Sequence[pl.DataFrame]) -> list[np.ndarray]:
    """The place of each row among the rows of all inputs, from 0; ``frames`` are in the order that decides ties.

    A record that is older than its predecessor in the same input is next as soon as that one is taken, so the greatest
    timestamp up to a record counts for it.
    """
    if not frames:
        return []
    heads = np.concatenate([_heads(frame) for frame in frames])
    places = np.empty(len(heads), np.int64)
    places[np.argsort(heads, kind="stable")] = np.arange(len(heads))
    return np.split(places, np.cumsum([frame.height for frame in frames])[:-1])


def takeable(frames: Mapping[str, pl.DataFrame], order: Sequence[str], unfinished: Collection[str]) -> dict[str, int]:
    """How many rows of each input come before anything that may still arrive in ``unfinished`` inputs.

    All of them if no input is unfinished; none of the other inputs while an unfinished one has no rows.
    """
    taken = {name: frame.height for name, frame in frames.items()}
    bounds = [
        (int(_heads(frames[name])[-1]) if taken.get(name) else -(1 << 62), order.index(name)) for name in unfinished
    ]
    if not bounds:
        return taken
    time_ms, rank = min(bounds)
    for name, frame in frames.items():
        if order.index(name) != rank:
            side = "right" if order.index(name) < rank else "left"
            taken[name] = int(np.searchsorted(_heads(frame), time_ms, side=side))  # type: ignore[call-overload]
    return taken


def _heads(frame: pl.DataFrame) -> np.ndarray:
    return np.maximum.accumulate(frame.get_column("_ts").to_numpy())
