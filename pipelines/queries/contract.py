"""What is asked of the stores of tasks, and what each task answers, wherever its stores are.

``weir.pipelines.queries.local`` answers from the disk of this host, ``weir.pipelines.queries.remote`` asks an executor
of a cluster, which answers in the same way from its own.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import polars as pl

from weir.state.types import IsolationLevel, Positions


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of a store; ``lower``, ``upper`` and the times are bounds, both included, None for no bound."""

    look: Literal["key", "range", "prefix", "windows", "sessions", "position"]
    """``key``: the row of ``lower``; ``prefix``: the rows whose first key columns are ``lower``, the last of them as a
    beginning; ``windows`` and ``sessions``: those of ``lower``; ``position``: no rows."""
    store: str
    """As it is called in stored data."""
    isolation: IsolationLevel
    at_least: Positions = field(default_factory=dict)
    """What a task must have reached of the partitions that it reads; else it gives no rows."""
    lower: pl.DataFrame | None = None
    """One row of key columns."""
    upper: pl.DataFrame | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    as_of_ms: int | None = None
    of_standbys: bool = False
    """Whether standbys are to answer, not the stores that epochs run on."""


@dataclass(frozen=True, kw_only=True)
class TaskAnswer:
    """What a task answers: its rows, or why it has none to give."""

    task: str
    """Its name in stored data."""
    rows: pl.DataFrame | None = None
    """As the store holds them, not finished; None if it is behind, has no state here, or cannot be read."""
    reached: Positions | None = None
    """The input that its state reflects; None if that is not known, or there is no state."""
    behind: str = ""
    """How far it is from ``Question.at_least``; empty if it has reached that."""
    has_state: bool = True
    """Whether there is state of it that can be read now."""
    error: str = ""
    """Why its stores cannot be read, if trying again does not help."""


_WHOLE = "global table "


def whole(table: str) -> str:
    """What stands for the task in questions about a global table, which no task has: every executor has all of it."""
    return _WHOLE + table


def who(task: str) -> str:
    """A task, or the global table that stands for one, as messages name it."""
    return task if task.startswith(_WHOLE) else f"task {task}"


class AwayError(Exception):
    """Whoever has the stores cannot be asked at the moment; the text says who and why."""


class TaskStores(Protocol):
    """The stores of some tasks, in one place."""

    def answer(self, question: Question, tasks: Sequence[str]) -> list[TaskAnswer]:
        """One answer per task, in their order; no task is waited for.

        Raises:
            AwayError: The place cannot be reached.
        """
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Location:
    """Where a task's stores are."""

    task: str
    stores: TaskStores | None
    """None if nobody has them at the moment."""
    why: str = ""
    """Why nobody does."""
    standbys: Sequence[TaskStores] = ()
    """Who has standbys of them; the one that is least behind comes first."""
    has_state: bool = True
    """Whether the task has ever run."""


def packed(question: Question, tasks: Sequence[str]) -> bytes:
    """A question to some tasks, as it travels."""
    return _ENCODER.encode((question, list(tasks)))


def unpacked(content: bytes) -> tuple[Question, list[str]]:
    """The inverse of ``packed``."""
    return _DECODER.decode(content)


def _packed_frame(value: Any) -> bytes:
    if not isinstance(value, pl.DataFrame):
        raise NotImplementedError(type(value).__name__)
    buffer = io.BytesIO()
    value.write_ipc(buffer)
    return buffer.getvalue()


def _unpacked_frame(kind: type, value: Any) -> pl.DataFrame:
    return pl.read_ipc(io.BytesIO(value))


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_packed_frame)
_DECODER = msgspec.msgpack.Decoder(tuple[Question, list[str]], dec_hook=_unpacked_frame)
