"""Gives dead letters to the tasks that process them again (PROTOCOL 36); doing so belongs to
``weir.pipelines.tasks.replay``."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from weir.pipelines.serdes.headers import headers_of
from weir.pipelines.serdes.shapes import LAST_TIME_MS
from weir.pipelines.spark.coordinator import Coordinator
from weir.pipelines.spark.errors import ReplayRefusedError
from weir.pipelines.spark.task import Task
from weir.pipelines.tasks.dead_letter_files import DeadLetterFiles
from weir.pipelines.tasks.dead_letters import Letter
from weir.pipelines.tasks.replay import Replayed, fits

MOST = 100_000
"""How many letters a request takes at most, since the driver holds them."""


def begin_replay(coordinator: Coordinator, ids: Sequence[str]) -> Replayed:
    """Let tasks process the committed dead letters with these ids again, or all that wait, oldest first.

    Letters that were processed again, or are about to be, are left as they are.

    Raises:
        ReplayRefusedError: A store of their task is computed again if it is lost, which would be without them.
    """
    on_their_way = [letter.id for task in coordinator.tasks.values() for letter in (*task.letters, *task.replayed)]
    letters = DeadLetterFiles(coordinator.folder).waiting(ids, without=on_their_way)
    letters = letters.with_columns(pl.col("timestamp").dt.epoch("ms").fill_null(LAST_TIME_MS + 1))
    given, misfits = list[tuple[Task, Letter]](), dict[str, int]()
    for row in letters.head(MOST).iter_rows(named=True):
        letter = Letter(
            **{name: row[name] for name in ("id", "topic", "partition", "offset", "key", "value", "row")},
            timestamp_ms=row["timestamp"],
            headers=None if row["headers"] is None else headers_of(row["headers"]),
        )
        task = _task_of(coordinator, letter)
        if task is None:
            misfits[letter.topic] = misfits.get(letter.topic, 0) + 1
        elif rebuilt := coordinator.rebuilt(task.id):
            raise ReplayRefusedError(coordinator.application.id, rebuilt[0].name)
        else:
            given.append((task, letter))
    for task, letter in given:
        task.letters.append(letter)
    return Replayed(tuple(letter.id for _, letter in given), misfits, max(0, letters.height - MOST))


def _task_of(coordinator: Coordinator, letter: Letter) -> Task | None:
    topology = coordinator.application.topology
    fitting = (
        task
        for task in coordinator.tasks.values()
        if task.id.partition == letter.partition and fits(letter, topology.sub_topology(task.id.sub_topology))
    )
    return next(fitting, None)
