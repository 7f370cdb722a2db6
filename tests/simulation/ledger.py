"""What commits have for each sink, and whether that is what it gets: checked at each publication.

Rows are read from the files that a commit names, while it is written; which commits stand, from the commit log. Neither
an outbox nor a mark is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import polars as pl
from polars import selectors

from tests.simulation.delta_log import read_file, transactions
from tests.simulation.invariants import Invariants
from tests.simulation.place import SimulatedPlace
from weir.state.commit.log import COMMITS
from weir.state.commit.outbox import BYTES, Mark, outbox_name
from weir.state.commit.protocol import Committer
from weir.state.commit.record import CommitRecord
from weir.state.commit.refused import REASON

Row = dict[str, Any]
"""A row as it leaves, with times in ms."""


def rows_of(frame: pl.DataFrame) -> list[Row]:
    """The rows that leave, of a file of an outbox or of what a publisher sends."""
    leaving = frame.drop("_epoch", BYTES, *REASON, strict=False)
    return leaving.with_columns(selectors.datetime().dt.timestamp("ms")).to_dicts()


class Ledger:
    """The commits of a place, as far as they have rows for sinks."""

    def __init__(self, place: SimulatedPlace, invariants: Invariants) -> None:
        self._place, self.require = place, invariants._require
        self._tried: dict[int, dict[str, list[tuple[int, list[Row]]]]] = {}
        """Epochs with their rows, by the version of the commit, whether it stands or not, and sink."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block all commits are noted."""
        with patch.object(Committer, "_append_row", self._noting(Committer._append_row)):
            yield

    def committed(self, sink: str) -> list[tuple[int, list[Row]]]:
        """Epochs with their rows, of the commits that stand."""
        application = self._place.application.id
        versions = transactions(self._place.warehouse / application / COMMITS.name, application)
        return [found for version in versions for found in self._tried.get(version, {}).get(sink, ())]

    def _noting(self, append: Any) -> Any:
        def appending(committer: Committer, record: CommitRecord, *arguments: Any) -> None:
            is_of_backfill = committer._application != self._place.application.id
            if record.kind == "commit" and not is_of_backfill:
                self._tried[record.state_id.version] = self._rows_of(record)
            append(committer, record, *arguments)

        return appending

    def _rows_of(self, record: CommitRecord) -> dict[str, list[tuple[int, list[Row]]]]:
        """By sink and epoch; an epoch's rows come in the order of their files' names."""
        application, found = self._place.application, dict[str, list[tuple[int, list[Row]]]]()
        for sink in application.topology.outside_sinks:
            table = outbox_name(sink.name)
            folder = self._place.warehouse / application.id / table
            files = [read_file(folder, path) for path in sorted(e.path for e in record.files if e.table == table)]
            epochs = sorted({file["_epoch"][0] for file in files})
            found[sink.name] = [
                (epoch, [row for file in files if file["_epoch"][0] == epoch for row in rows_of(file)])
                for epoch in epochs
            ]
        return found


class Deliveries:
    """What one sink has got. Its rows are numbered from 0, over all commits."""

    def __init__(self, ledger: Ledger, sink: str, rule: int) -> None:
        self._ledger, self.sink, self._rule = ledger, sink, rule
        self.got = Counter[int]()
        """How often it has got each row."""
        self.refused = set[int]()
        """The rows that it has refused, alone or in a batch."""
        self._taken = 0
        """All rows before have been delivered, or refused and put aside."""
        self._batches = set[range]()

    @property
    def rows(self) -> list[Row]:
        """All that is committed."""
        return [row for _, rows in self._ledger.committed(self.sink) for row in rows]

    @property
    def missing(self) -> list[int]:
        """The rows that it has not got."""
        return [number for number in range(len(self.rows)) if number not in self.got]

    def numbers(self, rows: Sequence[Row], through: Mark) -> range:
        """Those of rows that end at a mark; they have to be committed there."""
        committed = self._ledger.committed(self.sink)
        end = sum(len(of_epoch) for epoch, of_epoch in committed if epoch < through.epoch) + through.rows
        found = range(end - len(rows), end)
        there = [row for _, of_epoch in committed for row in of_epoch][max(0, found.start) : end]
        self.require(there == list(rows), f"was sent rows up to {through} that no commit has there: {rows}, {there}")
        return found

    def take(self, numbers: range) -> None:
        """It has got rows with its mark, or the mark alone: each row once, and in order."""
        self.require(numbers.start >= self._taken, f"got row {numbers.start} again, after {self._taken - 1}")
        self._move(numbers)
        self._deliver(numbers)

    def take_batch(self, numbers: range) -> None:
        """It has got rows that may come again, but only in the same batch."""
        if numbers.start < self._taken:
            self.require(numbers in self._batches, f"got {numbers}, which is no batch that it got before")
        else:
            self._move(numbers)
        self._batches.add(numbers)
        self.got.update(numbers)

    def refuse_batch(self, numbers: range) -> None:
        """It has refused a batch, which may come late once more."""
        self.refused.update(numbers)
        self._batches.add(numbers)

    def take_refused(self, rows: Sequence[Row]) -> None:
        """It has got rows that were put aside, once."""
        waiting, all_rows = (number for number in sorted(self.refused) if number not in self.got), self.rows
        for row in rows:
            number = next((number for number in waiting if all_rows[number] == row), None)
            self.require(number is not None, f"got {row} again, or though it had not refused it")
            self._deliver([number])  # type: ignore[list-item]

    def take_refused_batch(self, numbers: range) -> None:
        """It has got a batch that was put aside."""
        self.require(self.refused.issuperset(numbers), f"got {numbers} again, though it had not refused it")
        self.got.update(numbers)

    def _deliver(self, numbers: Sequence[int]) -> None:
        again = [number for number in numbers if number in self.got]
        self.require(not again, f"got the rows {again} twice")
        self.got.update(numbers)

    def _move(self, numbers: range) -> None:
        skipped = [number for number in range(self._taken, numbers.start) if number not in self.refused]
        self.require(not skipped, f"got row {numbers.start}, and not {skipped}, which it had not refused")
        self._taken = numbers.stop

    def require(self, holds: bool, what: str) -> None:
        """Break the rule of this sink unless something ``holds``."""
        self._ledger.require(holds, f"{self._rule}: {self.sink} {what}")
