"""Where the database of a SQL sink is, and connections to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, NullPool, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from weir.infra.settings import environment_value
from weir.pipelines.sinks.sql import SqlTable

ANSWER_LIMIT_S = 5
"""How long a database has for an answer to a new connection, and how long a lock is waited for."""
SLEEP_LIMIT_S = 60
"""PostgreSQL ends the transaction of a publisher that sleeps for so long, so that another one can go on."""
_DRIVERS = {"postgresql": "postgresql+psycopg", "sqlite": "sqlite+pysqlite"}


class SinkAddressError(Exception):
    """A sink has no database that can be connected to, and waiting does not help."""

    def __init__(self, sink: str, reason: str) -> None:
        super().__init__(sink, reason)
        self.sink, self.reason = sink, reason

    def __str__(self) -> str:
        return f"sink {self.sink!r}: {self.reason}"


def address_of(sink: SqlTable, default: str) -> URL:
    """The URL of a sink's database; ``default`` is that of the settings.

    Raises:
        SinkAddressError: There is none, it is no URL of PostgreSQL or of a file of SQLite, or the file's folder is
            missing.
    """
    text: str | None = default if sink.url is None else sink.url
    if text and text.startswith("env:"):
        variable = text.removeprefix("env:")
        text = environment_value(variable)
        if not text:
            raise SinkAddressError(
                sink.name, f"the variable {variable} is not set; set it to the URL of the database and run again"
            )
    if not text:
        raise SinkAddressError(
            sink.name,
            'it has no database; set WEIR_SQL_URL, as in WEIR_SQL_URL=sqlite:////folder/file.db, or pass url="..." to '
            "to_sql",
        )
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        url = None  # its text may have a password
    if url is None or url.get_backend_name() not in _DRIVERS or _is_in_memory(url):
        raise SinkAddressError(
            sink.name,
            "its URL is for neither PostgreSQL nor a file of SQLite; it begins with postgresql:// or sqlite:////",
        )
    if url.get_backend_name() == "sqlite":
        _check_file(sink, Path(url.database or ""))
    return url.set(drivername=_DRIVERS[url.get_backend_name()])


def engine_of(sink: SqlTable, url: URL, *, known_as: str, writes: bool = True) -> Engine:
    """Opens connections that are each used by one thread; ``known_as`` is their name in PostgreSQL.

    Raises:
        SinkAddressError: The driver is not installed.
    """
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": ANSWER_LIMIT_S})
            begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
            event.listen(engine, "connect", _begin_explicitly)
            event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
            return engine
        arguments = {
            "connect_timeout": ANSWER_LIMIT_S,
            "application_name": known_as,
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
        }
        # With another isolation level, a publisher that is overtaken would fail before it sees that it is.
        engine = create_engine(url, poolclass=NullPool, isolation_level="READ COMMITTED", connect_args=arguments)
        event.listen(engine, "connect", _limit_waits)
        return engine
    except ImportError:
        raise SinkAddressError(
            sink.name, "PostgreSQL needs psycopg; run `pip install 'weir-streams[postgresql]'`"
        ) from None


def _check_file(sink: SqlTable, file: Path) -> None:
    if not file.is_absolute():
        raise SinkAddressError(
            sink.name,
            f"its URL does not have the full path of the file {str(file)!r}; give it with four slashes, as in "
            "sqlite:////folder/file.db",
        )
    if not file.parent.is_dir():
        raise SinkAddressError(
            sink.name,
            f"the folder {str(file.parent)!r} of its SQLite file does not exist; create it, or correct the URL",
        )


def _is_in_memory(url: URL) -> bool:
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _begin_explicitly(connection: Any, _: object) -> None:
    connection.isolation_level = None  # not when the driver sees fit: tables are made in transactions, too


def _limit_waits(connection: Any, _: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '{ANSWER_LIMIT_S}s'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{SLEEP_LIMIT_S}s'")
    connection.commit()
