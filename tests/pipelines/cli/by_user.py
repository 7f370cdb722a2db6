"""Clicks by user: the small application of commands that are typed, and a plain count of its records."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from tests.pipelines.cli.typed import Terminal
from tests.pipelines.spark.evolving import Click
from weir import Application, Count, Json, StreamsBuilder, String
from weir.state.commit.tables import read_table


def by_user(value: type = Click, **settings: str) -> Application:
    builder = StreamsBuilder()
    stream = builder.stream("clicks", key=String("user"), value=Json(value))
    stream.group_by_key().agg("users", n=Count()).to_delta("users")
    return Application("clicks", builder, commit_interval=timedelta(milliseconds=1), **settings)


def counts(terminal: Terminal) -> dict[str, int]:
    return dict(read_table(terminal.warehouse / "clicks" / "users").select("user", "n").iter_rows())


def counted(terminal: Terminal) -> dict[str, int]:
    return dict(Counter(key.decode() for rows in terminal.topics.rows.values() for key, _, _ in rows))
