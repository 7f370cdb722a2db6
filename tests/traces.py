"""What processes leave that others may read: their arguments, and all that files say."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from threading import Event, Thread

import polars as pl
import psutil


@contextmanager
def command_lines() -> Iterator[set[str]]:
    """The arguments of all processes that are there at some time during the block, as ``ps`` shows them."""
    seen: set[str] = set()
    has_ended = Event()

    def look() -> None:
        while not has_ended.wait(0.02):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    seen.add(" ".join(process.cmdline()))

    thread = Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        has_ended.set()
        thread.join()


def texts_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Everything that files say, by their paths: also what Parquet or Dagster compresses."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        yield str(path), content.decode(errors="replace")
        if path.suffix == ".parquet":
            yield str(path), repr(pl.read_parquet(path, hive_partitioning=False).rows())
        elif content.startswith(b"SQLite format 3"):
            yield str(path), "\n".join(cells_of(path))


def cells_of(path: Path) -> Iterator[str]:
    with closing(sqlite3.connect(path)) as database:
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for cell in chain.from_iterable(database.execute(f'SELECT * FROM "{table}"')):
                if isinstance(cell, bytes):
                    with suppress(zlib.error):
                        cell = zlib.decompress(cell)
                    cell = cell.decode(errors="replace")
                yield str(cell)
