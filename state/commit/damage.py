"""Names the file of a Delta table that cannot be read, where the libraries that read it only say what is wrong, or take
an empty log entry for one that changes nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from deltalake.exceptions import DeltaError

from weir.state.commit.checkpoints import is_whole, last_checkpoint
from weir.state.errors import DamagedFileError

_EMPTY = "it is empty"
_LEAST_BYTES = 16
"""Of an entry with an action."""


@contextmanager
def naming_damage(folder: Path, paths: Sequence[Path] = ()) -> Iterator[None]:
    """Errors of reading the table in ``folder`` name the file that is damaged, if one is.

    ``paths`` are those of the table's files of which rows are read.

    Raises:
        DamagedFileError: A file is cut, empty, or gone, or its rows cannot be read.
    """
    require_no_empty_entry(folder)
    try:
        yield
    except (DeltaError, pl.exceptions.PolarsError, OSError, json.JSONDecodeError) as error:
        if (found := damaged_file(folder, paths)) is not None:
            path, reason = found
            raise DamagedFileError(str(path), reason) from error
        raise


def require_no_empty_entry(folder: Path) -> None:
    """Raise ``DamagedFileError`` if an entry of the table's log is empty that readers need: the files that it named
    would be missing without a word."""
    log = folder / "_delta_log"
    if not log.is_dir():
        return
    covered = last_checkpoint(folder)
    with os.scandir(log) as entries:
        for entry in entries:
            name, suffix = os.path.splitext(entry.name)
            if suffix == ".json" and name.isdecimal() and (int(name) > covered or not covered):
                require_content(Path(entry.path))


def require_content(entry: Path) -> None:
    """Raise ``DamagedFileError`` if a log entry is empty; one that was cleaned up meanwhile is not."""
    try:
        if entry.stat().st_size < _LEAST_BYTES and not entry.read_bytes().strip():
            raise DamagedFileError(str(entry), _EMPTY)
    except FileNotFoundError:
        pass


def damaged_file(folder: Path, paths: Sequence[Path] = ()) -> tuple[Path, str] | None:
    """The first file of a table that cannot be read, its log first, and why; None if all can.

    It reads the whole log, of each Parquet file in the folder the footer, and all of ``paths``.
    """
    log = folder / "_delta_log"
    entries = {int(path.stem): path for path in log.glob("*.json") if path.stem.isdecimal()}
    for number, path in sorted(entries.items()):
        if (text := path.read_bytes()).isspace() or not text:
            return path, _EMPTY
        try:
            for line in text.splitlines():
                json.loads(line)
        except ValueError:
            return path, "it is cut"
        if number > min(entries) and number - 1 not in entries:
            return log / f"{number - 1:020}.json", "it is gone"
    for path in paths:
        if not path.exists():
            return path, "it is gone"
    for path in sorted(folder.rglob("*.parquet"), key=lambda path: (log not in path.parents, path)):
        if not is_whole(path):
            return path, "it is cut" if path.stat().st_size else _EMPTY
    for path in paths:
        if reason := unreadable(path):
            return path, reason
    return None


def unreadable(path: Path, rows: int | None = None) -> str:
    """Why the rows of a Parquet file cannot be read, or that they are not as many; "" if neither. Reads all of it."""
    try:
        found = pl.read_parquet(path, hive_partitioning=False).height
    except (pl.exceptions.PolarsError, OSError) as error:
        return f"its rows cannot be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return "" if rows in (None, found) else f"it has {found} rows, and had {rows}"
