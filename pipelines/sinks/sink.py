"""What every sink outside the warehouse is: a name, and the columns of its outbox.

Tasks write rows into the outbox in the form in which they leave, so that serializing is part of the epoch: it uses all
slots, and a value that cannot be written stops the task before anything is committed. Publishing belongs to
``weir.pipelines.publishing``.
"""

from __future__ import annotations

from typing import Protocol

import polars as pl

from weir.pipelines.serdes.serde import Serde


class Sink(Protocol):
    """One sink of a program."""

    @property
    def name(self) -> str:
        """The application's name for it, which its outbox and its progress go by."""
        ...

    @property
    def kind(self) -> str:
        """What kind of system takes its rows, as Dagster names it: ``kafka``, ``postgresql``."""
        ...

    @property
    def columns(self) -> pl.Schema:
        """The columns of its outbox, before those that commits add."""
        ...

    @property
    def serdes(self) -> tuple[Serde, ...]: ...

    def outgoing(self, rows: pl.DataFrame) -> pl.DataFrame:
        """What leaves for the rows of a stream: ``columns``, one row each, in order.

        Raises:
            UserFunctionError: A serde cannot write a key or value, or a function names no topic.
            OperatorError: An expression names no topic.
        """
        ...

    def shown_key(self, row: pl.DataFrame) -> str:
        """The key of a row of the outbox, for people."""
        ...

    def __str__(self) -> str:
        """Where the rows go, as ``describe`` shows it."""
        ...
