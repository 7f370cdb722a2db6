"""Names the file of a Delta table that cannot be read, where the libraries that read it only say what is wrong, or take
an empty log entry for one that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

import polars as pl
from deltalake.exceptions import DeltaError

from weir.state.commit.checkpoints import (
    LOG,
    covered_version,
    entry_name,
    entry_version,
    is_whole,
    last_checkpoint,
)
from weir.state.commit.files import scan_as_written
from weir.state.commit.widening import is_wider
from weir.state.errors import DamagedFileError
from weir.state.storage.contract import Folder
from weir.state.storage.object_store import away, is_away
from weir.state.storage.places import Place, folder_at

_EMPTY = "it is empty"
_LEAST_BYTES = 16
"""Of an entry with an action."""


@contextmanager
def naming_damage(place: Place, names: Iterable[str] = ()) -> Iterator[None]:
    """Errors of reading the table at a place name the file that is damaged, if one is.

    ``names`` are those of the table's files of which rows are read.

    Raises:
        DamagedFileError: A file is cut, empty, or gone, or its rows cannot be read.
        ObjectStoreAwayError: The store does not answer.
    """
    folder = folder_at(place)
    require_no_empty_entry(folder)
    try:
        yield
    except (DeltaError, pl.exceptions.PolarsError, OSError, json.JSONDecodeError) as error:
        if is_away(error):
            raise away(folder.uri, error) from error
        if (found := damaged_file(folder, list(names))) is not None:
            name, reason = found
            raise DamagedFileError(f"{folder.uri}/{name}", reason) from error
        raise


def require_no_empty_entry(folder: Folder) -> None:
    """Raise ``DamagedFileError`` if an entry of the table's log is empty that readers need: the files that it named
    would be missing without a word."""
    log, covered = folder / LOG, last_checkpoint(folder)
    for file in log.list(after=entry_name(covered) if covered else ""):
        if file.size_bytes < _LEAST_BYTES and entry_version(file.name) is not None:
            with suppress(FileNotFoundError):  # cleaned up meanwhile
                require_content(log, file.name, log.get(file.name))


def require_content(log: Folder, name: str, content: bytes) -> None:
    """Raise ``DamagedFileError`` if a log entry is empty."""
    if len(content) < _LEAST_BYTES and not content.strip():
        raise DamagedFileError(f"{log.uri}/{name}", _EMPTY)


def damaged_file(folder: Folder, names: Sequence[str] = ()) -> tuple[str, str] | None:
    """The first file of a table that cannot be read, its log first, and why; None if all can.

    It reads the whole log, of each Parquet file in the folder the footer, and all of ``names``.
    """
    log = folder / LOG
    there = [file.name for file in log.list()]
    covered = covered_version(there)
    entries = {version: name for name in there if (version := entry_version(name)) is not None}
    for number, name in sorted(entries.items()):
        if (text := log.get(name)).isspace() or not text:
            return f"{LOG}/{name}", _EMPTY
        try:
            for line in text.splitlines():
                json.loads(line)
        except ValueError:
            return f"{LOG}/{name}", "it is cut"
        if number - 1 > covered and number - 1 not in entries:
            return f"{LOG}/{entry_name(number - 1)}", "it is gone"
    for name in names:
        if folder.find(name) is None:
            return name, "it is gone"
    files = [file for file in folder.list(below=True) if file.name.endswith(".parquet")]
    for file in sorted(files, key=lambda file: (not file.name.startswith(f"{LOG}/"), file.name)):
        if not is_whole(folder, file.name):
            return file.name, "it is cut" if file.size_bytes else _EMPTY
    for name in names:
        if reason := unreadable(folder, name):
            return name, reason
    return None


def unreadable(folder: Folder, name: str, rows: int | None = None, schema: pl.Schema | None = None) -> str:
    """Why the rows of a Parquet file cannot be read, or that they are not as many, or not of the types of the table's
    ``schema``; "" if none of that. Reads all of it."""
    try:
        found = scan_as_written(folder, [name]).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        if is_away(error):
            raise away(folder.uri, error) from error
        return f"its rows cannot be read ({(str(error).splitlines() or [type(error).__name__])[0]})"
    if rows not in (None, found.height):
        return f"it has {found.height} rows, and had {rows}"
    for column, dtype in (schema or {}).items():
        if column in found.columns and not _reads_as(found.schema[column], dtype):
            return f"it has the column {column!r} as {found.schema[column]}, and the table has it as {dtype}"
    return ""


def _reads_as(found: pl.DataType, wanted: pl.DataType) -> bool:
    """Whether a file's column can be read as the table's, which may have come by a wider type or other fields. Other
    writers, such as Spark, store times in other units."""
    if isinstance(found, pl.Struct) and isinstance(wanted, pl.Struct):
        there = {field.name: field.dtype for field in found.fields}
        shared = [field for field in wanted.fields if field.name in there]
        return all(_reads_as(there[field.name], field.dtype) for field in shared)  # type: ignore[arg-type]
    if isinstance(found, pl.List) and isinstance(wanted, pl.List):
        return _reads_as(found.inner, wanted.inner)  # type: ignore[arg-type]
    if isinstance(found, pl.Datetime) and isinstance(wanted, pl.Datetime):
        return True
    is_text = wanted == pl.String and isinstance(found, (pl.Enum, pl.Categorical))
    return found == wanted or is_text or is_wider(found, wanted)
