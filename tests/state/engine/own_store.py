"""Stores as a user writes them, over SQLite and over a dictionary, for the tests of what keeps rows in them."""

from __future__ import annotations

import os
import signal
import sqlite3
from pathlib import Path

from weir import KeyValueBytesStore


class InMemory(KeyValueBytesStore):
    """Only what has to be written."""

    def __init__(self, folder: Path) -> None:
        self.rows: dict[bytes, bytes | None] = {}

    def get(self, key):
        return self.rows.get(key)

    def put(self, key, value):
        self.rows[key] = value


class InSqlite(KeyValueBytesStore):
    """Persistent, without offsets: each commit is a transaction."""

    def __init__(self, folder: Path) -> None:
        self.file = sqlite3.connect(folder / "rows.sqlite", check_same_thread=False, isolation_level="IMMEDIATE")
        self.file.execute("create table if not exists rows (key blob primary key, value blob)")
        self.file.execute(
            "create table if not exists offsets (topic text, partition int, next int, primary key (topic, partition))"
        )

    def get(self, key):
        found = self.file.execute("select value from rows where key = ?", [key]).fetchone()
        return found and found[0]

    def put(self, key, value):
        if value is None:
            self.file.execute("delete from rows where key = ?", [key])
        else:
            self.file.execute("insert or replace into rows values (?, ?)", [key, value])

    def commit(self, offsets):
        self.file.commit()

    def is_persistent(self):
        return True

    def close(self):
        self.file.close()


class InSqliteWithOffsets(InSqlite):
    """Saves its offsets in the transaction of its rows."""

    def commit(self, offsets):
        for topic, of_topic in offsets.items():
            for partition, following in of_topic.items():
                self.file.execute("insert or replace into offsets values (?, ?, ?)", [topic, partition, following])
        super().commit(offsets)

    def manages_offsets(self):
        return True

    def committed_offset(self, topic, partition):
        found = self.file.execute(
            "select next from offsets where topic = ? and partition = ?", [topic, partition]
        ).fetchone()
        return found and found[0]


class Dying(InSqlite):
    """Kills its process, as ``kill -9`` does, at the step that ``DIE_AT`` names."""

    def put_all(self, rows):
        rows = list(rows)
        _die_at("before the rows")
        super().put_all(rows[:1])
        _die_at("between two rows")
        super().put_all(rows[1:])
        _die_at("after the rows")

    def commit(self, offsets):
        super().commit(offsets)
        _die_at("after its commit")


def _die_at(step: str) -> None:
    if os.environ.get("DIE_AT") == step:
        os.kill(os.getpid(), signal.SIGKILL)
