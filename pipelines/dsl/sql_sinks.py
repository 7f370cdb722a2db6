"""Declares tables of SQL databases as sinks: their mode, key and address, checked against the records."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, get_args

from weir.pipelines.dsl.graph import check_name
from weir.pipelines.errors import TopologyError
from weir.pipelines.sinks.sql import SqlMode, SqlTable
from weir.pipelines.topology.nodes import RecordType

_DATABASES = ("postgresql", "sqlite")
_PASSWORD = re.compile(r"^[^/]*:[^/]+@|[?&](ssl)?password=[^&]")
"""In what follows the scheme of a URL: that of its login, which may have an @, or a parameter."""
_LONGEST_NAME_BYTES = 63
"""PostgreSQL cuts longer names off."""


def sql_table(
    record: RecordType,
    table: Any,
    *,
    mode: Any,
    key: str | Sequence[str] | None,
    url: Any,
    name: str | None,
    schema: str | None,
    is_table: bool = False,
) -> SqlTable:
    """A table that takes records of this type; those of a table if ``is_table``.

    Raises:
        TopologyError: An argument is invalid.
    """
    where = f"to_sql({table!r})"
    if mode not in get_args(SqlMode):
        raise TopologyError(f'{where} got mode={mode!r}; pass "append" or "upsert"')
    for kind, text in (("table", table), ("schema", schema), *(("column", column) for column in record.columns)):
        if text is not None or kind == "table":
            _check_identifier(where, kind, text)
    return SqlTable(
        name=check_name("sink", table if name is None else name),
        table=table,
        schema=schema,
        mode=mode,
        key=_key(where, record, mode, key, is_table),
        record_key=record.key_type,
        value=record.value,
        url=_url(where, url),
    )


def _check_identifier(where: str, kind: str, text: Any) -> None:
    if not isinstance(text, str) or not text or "\0" in text:
        raise TopologyError(f"{where}: the {kind} {text!r} is no name")
    if len(text.encode()) > _LONGEST_NAME_BYTES:
        raise TopologyError(
            f"{where}: the {kind} {text!r} is longer than the {_LONGEST_NAME_BYTES} bytes that PostgreSQL takes; "
            "shorten it"
        )


def _key(
    where: str, record: RecordType, mode: SqlMode, key: str | Sequence[str] | None, is_table: bool
) -> tuple[str, ...]:
    if mode == "append":
        if key is not None:
            raise TopologyError(
                f'{where} got key=, but every record becomes a row; leave key= out, or add mode="upsert"'
            )
        return ()
    names = tuple(record.key_columns) if key is None else (key,) if isinstance(key, str) else tuple(key)
    unknown = [name for name in names if name not in record.columns]
    if unknown or not names or len(set(names)) < len(names):
        raise TopologyError(
            f"{where} got key={key!r}; name each column of the key once, out of {', '.join(record.columns)}"
        )
    if is_table and (of_value := [name for name in names if name not in record.key_columns]):
        raise TopologyError(
            f"{where} got {', '.join(of_value)} of the value as its key, but the row of a deleted key is found by the "
            f"table's key: leave key= out, or name columns out of {', '.join(record.key_columns)}"
        )
    return names


def _url(where: str, url: Any) -> str | None:
    """The URL; its text is never shown, since it may have a password."""
    text = "" if url is None else str(url)
    scheme, separator, rest = text.partition("://")
    if url is None or (text.startswith("env:") and len(text) > len("env:")):
        return text or None
    database = scheme.partition("+")[0]
    if not separator or not rest or database not in _DATABASES:
        raise TopologyError(
            f"{where} got a url= for neither PostgreSQL nor a file of SQLite; pass one such as "
            '"postgresql://user@host/database" or "sqlite:////folder/file.db", or "env:NAME" for that of a variable'
        )
    if database == "sqlite" and not rest.startswith("//"):
        raise TopologyError(
            f"{where} got a url= for SQLite without the full path of a file, but a run may have another current "
            'folder; pass it with four slashes, for example "sqlite:////folder/file.db"'
        )
    if database == "postgresql" and _PASSWORD.search(rest):
        raise TopologyError(
            f"{where} got a url= with a password; leave it out, and pass the variable of the run that has the whole "
            'URL instead: url="env:NAME"'
        )
    return text
