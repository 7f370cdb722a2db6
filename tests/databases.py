"""Real databases for tests: a PostgreSQL server with a database for each test, and files of SQLite."""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError

from tests.waiting import wait_for


class Database:
    """One database, as its users see it."""

    def __init__(self, url: str) -> None:
        self.url, self.name = url, make_url(url).database
        self.is_postgresql = url.startswith("postgresql")
        self._engine = create_engine(make_url(url).set(drivername="postgresql+psycopg") if self.is_postgresql else url)

    def run(self, *statements: str) -> None:
        with self._engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def query(self, statement: str) -> list[dict[str, Any]]:
        with self._engine.begin() as connection:
            return [dict(row._mapping) for row in connection.execute(text(statement))]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows, in the order in which they were inserted."""
        return self.query(f"SELECT * FROM {table} ORDER BY {'ctid' if self.is_postgresql else 'rowid'}")

    def types(self, table: str) -> dict[str, str]:
        """The type of each column, as the database names it."""
        if self.is_postgresql:
            found = self.query(
                "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute "
                f"WHERE attrelid = '{table}'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
            )
        else:
            found = self.query(f"SELECT name, type FROM pragma_table_info('{table}')")
        return {each["name"]: each["type"] for each in found}

    def close(self) -> None:
        self._engine.dispose()


class PostgresqlServer:
    """A server in a folder of its own, which listens at a socket there and goes with it.

    The folder is not below pytest's: each run of pytest closes that to other users, and for root the server is one.
    """

    def __init__(self) -> None:
        pgserver = pytest.importorskip("pgserver")
        self._server = pgserver.get_server(tempfile.mkdtemp(prefix="weir-postgresql-"), cleanup_mode="delete")
        self._control = pgserver.pg_ctl

    def url(self, database: str = "postgres") -> str:
        return str(self._server.get_uri(database=database))

    @contextmanager
    def database(self, name: str) -> Iterator[Database]:
        """A new database, dropped afterwards."""
        name = f"{re.sub(r'[^a-z0-9]+', '_', name.lower())[:40]}_{uuid.uuid4().hex[:8]}"
        self._admin(f"CREATE DATABASE {name}")
        database = Database(self.url(name))
        try:
            yield database
        finally:
            database.close()
            self._admin(f"DROP DATABASE {name} WITH (FORCE)")

    def url_of(self, user: str, password: str, database: str) -> str:
        """The URL by which ``user`` logs in; the server refuses another password for those of ``add_user``."""
        url = make_url(self.url(database)).set(drivername="postgresql+psycopg", username=user, password=password)
        return url.render_as_string(hide_password=False)

    def add_user(self, name: str, password: str) -> None:
        """A superuser who has to show the password; everybody else is let in without one."""
        self._admin(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{password}'")
        rules = Path(self._server.pgdata) / "pg_hba.conf"
        rules.write_text(f"local all {name} scram-sha-256\n{rules.read_text()}")
        self._admin("SELECT pg_reload_conf()")
        wait_for(lambda: not self._lets_in(name, "another"), "the server asks for the password")

    def _lets_in(self, user: str, password: str) -> bool:
        engine = create_engine(self.url_of(user, password, "postgres"), poolclass=NullPool)
        try:
            engine.connect().close()
        except OperationalError:
            return False
        return True

    def stop(self) -> None:
        command = ["-w", "-m", "immediate", "stop"]
        self._control(command, pgdata=self._server.pgdata, user=self._server.system_user)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def close(self) -> None:
        self._server.cleanup()

    def _admin(self, statement: str) -> None:
        engine = create_engine(make_url(self.url()).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()
