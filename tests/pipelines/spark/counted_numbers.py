"""A program with an expectation, numbers in one topic, and a plain count of them by commit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from deltalake import DeltaTable
from polars import col

from tests.pipelines.spark.inline import Place, Topics
from weir import Application, Int64, StreamsBuilder, String
from weir.pipelines.operations.positions import committed_positions
from weir.state.commit.log import COMMITS, commits_above
from weir.state.commit.record import CommitRecord
from weir.state.commit.tables import file_actions

NUMBERS = [number % 7 - 1 for number in range(100)]


def application() -> Application:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key=String("user"), value=Int64("n"))
    numbers.expect("not_negative", col("n") >= 0, on_violation="drop").to_delta("out")
    return Application("numbers", builder, commit_interval=timedelta(milliseconds=1))


app = application()


def place(folder: Path, max_records: int = 15) -> Place:
    rows = [(b"a", n.to_bytes(8, "big", signed=True), number) for number, n in enumerate(NUMBERS)]
    return Place(application(), Topics({("numbers", 0): rows}), folder, max_records=max_records)


def commits(warehouse: Path) -> list[CommitRecord]:
    """All of them, oldest first."""
    log = warehouse / "numbers" / COMMITS.name
    return list(commits_above(log, file_actions(DeltaTable(log)), 0))


def read_by(record: CommitRecord) -> list[int]:
    """The numbers up to a commit."""
    return NUMBERS[: committed_positions(record)["numbers"].get(0, 0)]
