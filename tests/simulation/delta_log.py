"""What a table's Delta log says, and the rows of its files, read without the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

LOG = "_delta_log"

File = Mapping[str, str | None]
"""A file's partition values."""


def transactions(table: Path, application: str) -> list[int]:
    """The versions of the application's transactions, in the order of the log."""
    entries = sorted((table / LOG).glob("*.json"))
    found = [action for entry in entries for action in _actions(entry, "txn")]
    return [each["version"] for each in found if each["appId"] == application]


def live_files(table: Path) -> dict[str, File]:
    """The files of the table as of now, by path."""
    entries = sorted((table / LOG).glob("*.json"))
    files = _files_before(table, int(entries[0].stem))
    for entry in entries:
        for removed in _actions(entry, "remove"):
            files.pop(removed["path"], None)
        files |= {added["path"]: added["partitionValues"] for added in _actions(entry, "add")}
    return files


def read_file(table: Path, path: str) -> pl.DataFrame:
    """The rows of a file; a log has its path as a part of a URI."""
    return _rows((table / unquote(path)).read_bytes())


@lru_cache(256)
def _rows(content: bytes) -> pl.DataFrame:
    """A file is looked at again and again, and may be torn meanwhile."""
    return pl.read_parquet(content)


def _files_before(table: Path, version: int) -> dict[str, File]:
    """The files that the oldest checkpoint has, if entries before ``version`` are gone."""
    if version == 0:
        return {}
    kept = sorted((table / LOG).glob("*.checkpoint.parquet"))
    checkpoint = next(each for each in kept if int(each.name.partition(".")[0]) >= version - 1)
    added = pl.read_parquet(checkpoint.read_bytes())["add"].drop_nulls()
    return {each["path"]: {pair["key"]: pair["value"] for pair in each["partitionValues"] or ()} for each in added}


def _actions(entry: Path, kind: str) -> Iterator[Any]:
    for line in entry.read_text().splitlines():
        if line.lstrip("{ ").startswith(f'"{kind}"'):
            yield json.loads(line)[kind]
