"""The rows of an epoch in turn, as a task's processor takes them, from plain frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from weir.pipelines.tasks.order import MERGE, Arrivals, Part, Turns, with_keys


def in_turn(frames: Mapping[str, pl.DataFrame], inputs: Sequence[str] = ()) -> Turns:
    """By topic or edge; rows that were not sent get the keys of a topic's records. At equal merge times, the inputs
    named first come first."""
    ranks = {name: rank for rank, name in enumerate(inputs or frames)}
    return Arrivals(
        Part(
            input=name,
            rank=ranks[name],
            partition=0,
            frame=frame if MERGE in frame.columns else with_keys(frame, ranks[name], 0),
        )
        for name, frame in frames.items()
    ).turns
