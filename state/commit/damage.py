"""Names the file of a Delta table that cannot be read, where the libraries that read it only say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from deltalake.exceptions import DeltaError

from weir.state.commit.checkpoints import is_whole
from weir.state.errors import DamagedFileError


@contextmanager
def naming_damage(folder: Path) -> Iterator[None]:
    """Errors of reading the table in ``folder`` name the file that is damaged, if one is.

    Raises:
        DamagedFileError: A file is cut, empty, or gone.
    """
    try:
        yield
    except (DeltaError, pl.exceptions.PolarsError, OSError, json.JSONDecodeError) as error:
        if (found := damaged_file(folder)) is not None:
            path, reason = found
            raise DamagedFileError(str(path), reason) from error
        raise


def damaged_file(folder: Path) -> tuple[Path, str] | None:
    """The first file of a table that cannot be read, its log first, and why; None if all can.

    It reads the whole log, and of each Parquet file in the folder the footer.
    """
    log = folder / "_delta_log"
    entries = {int(path.stem): path for path in log.glob("*.json") if path.stem.isdecimal()}
    for number, path in sorted(entries.items()):
        if (text := path.read_bytes()).isspace() or not text:
            return path, "it is empty"
        try:
            for line in text.splitlines():
                json.loads(line)
        except ValueError:
            return path, "it is cut"
        if number > min(entries) and number - 1 not in entries:
            return log / f"{number - 1:020}.json", "it is gone"
    for path in sorted(folder.rglob("*.parquet"), key=lambda path: (log not in path.parents, path)):
        if not is_whole(path):
            return path, "it is cut" if path.stat().st_size else "it is empty"
    return None
