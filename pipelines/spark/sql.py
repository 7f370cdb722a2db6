"""Spark SQL over an application's tables: each is a view by its plain name, as of one commit.

Which commit that is belongs to ``weir.state.commit.pinned``, the session itself to ``weir.infra.spark.session``, and
telling statements apart to ``weir.pipelines.operations.statements``.
"""

from __future__ import annotations

import difflib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace

import polars as pl
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from weir.pipelines.expectations import expectation_counts
from weir.pipelines.spark.expectation_counts import expectation_counts_query
from weir.state.commit.evolution import UPDATES_PROPERTY
from weir.state.commit.log import COMMITS, newest_commit
from weir.state.commit.pinned import pinned
from weir.state.commit.tables import key_columns
from weir.state.storage.places import Place, table_at, tables_in
from weir.state.types import CHANGELOG_FOLDER

UPDATES, CHANGELOG, STORE, OF_COMMITS = "updates", "changelog", "store", "commits"
"""Schemas: all rows of tables of updates, all rows of changelogs, what stores hold, and what commits counted."""
CANCEL_EVERY_S = 0.2
"""Until a statement has ended that somebody has cancelled: its next job may not have begun yet."""
_PLACE = "`_weir_place`"
"""A column that no table has, since names of a program begin with another character."""
_LIST_ALL = re.compile(r"\s*show\s+tables\s*", re.IGNORECASE)
_LISTS_SOME = re.compile(r"\s*(show|desc|describe)\b", re.IGNORECASE)
_LINE = re.compile(r"\bline (\d+)[, ]+pos")
_NOT_FOUND = ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND")
_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark prints each error through these, with its stack."""


class SqlError(Exception):
    """A statement cannot be carried out; the text names its line."""


class SparkEndedError(SqlError):
    """There is no session any more: Spark's Java process has ended."""


@dataclass(frozen=True, kw_only=True)
class View:
    """A table by the name that SQL has for it."""

    schema: str
    """Empty for what outputs say now."""
    name: str
    table: str
    """The path below the application's folder."""
    keys: tuple[str, ...]
    """By which the newest row counts; empty if all rows do."""
    updates: str = ""
    """For a table of upserts, where its updates are."""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    @property
    def what(self) -> str:
        """What its rows are, in words."""
        if self.schema == CHANGELOG:
            return "every change of a store that is kept"
        if self.schema == STORE:
            return "what a store holds: the newest row of each key"
        if self.schema == UPDATES:
            return "every update that is kept"
        if self.schema == OF_COMMITS:
            return "how many records met each expectation, by commit"
        return "the newest row of each key" if self.keys or self.updates else "all rows"

    def query(self, app_folder: Place, tables: Mapping[str, DeltaTable], application: str) -> str:
        """The rows, from tables at their versions."""
        source, keys, columns = self.table, self.keys, _columns(tables[self.table])
        if self.schema == OF_COMMITS:
            return expectation_counts_query(_rows(app_folder, tables, source))
        if self.updates and _is_behind(tables[self.table], tables[self.updates], application):
            source, keys = self.updates, tuple(key_columns(tables[self.updates]))
        if self.schema == STORE:
            columns = ["task", *(name for name in columns if name not in ("task", "segment", "_deleted"))]
        rows = _rows(app_folder, tables, source)
        if not keys:
            return f"SELECT {_list(columns)} FROM {rows}"
        by = _list(keys)
        if self.schema == STORE:  # a store's rows belong to its task in a partition, under whatever name
            by = f"substring_index(task, '_', -1), {by}"
        order = "_epoch DESC" + (", _seq DESC" if "_seq" in _columns(tables[source]) else "")
        ranked = f"SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {order}) AS {_PLACE} FROM {rows}"
        return f"SELECT {_list(columns)} FROM ({ranked}) WHERE {_PLACE} = 1 AND NOT _deleted"


def _rows(app_folder: Place, tables: Mapping[str, DeltaTable], name: str) -> str:
    """The rows of a table at its version, in SQL."""
    return f"delta.{_quoted(str(app_folder / name))} VERSION AS OF {tables[name].version()}"


def views(app_folder: Place, outputs: Sequence[str]) -> list[View]:
    """What there is to read: outputs by their names, then their updates, changelogs, what stores hold, and what commits
    counted of expectations, if there are any.

    A name has only letters, digits and underscores in SQL: what else it has becomes an underscore.
    """
    found = list[View]()
    for output in outputs:
        table = table_at(app_folder / output)
        keys, updates = tuple(key_columns(table)), table.metadata().configuration.get(UPDATES_PROPERTY, "")
        found.append(View(schema="", name=output, table=output, keys=keys, updates=updates))
        if keys or updates:
            found.append(View(schema=UPDATES, name=output, table=updates or output, keys=()))
    for store in tables_in(app_folder / CHANGELOG_FOLDER):
        name = f"{CHANGELOG_FOLDER}/{store}"
        keys = tuple(key_columns(table_at(app_folder / name)))
        found.append(View(schema=CHANGELOG, name=store, table=name, keys=()))
        found.append(View(schema=STORE, name=store, table=name, keys=keys))
    newest = newest_commit(app_folder.parent, app_folder.name)
    if newest is not None and any(expectation_counts(task.totals) for task in newest.tasks.values()):
        found.append(View(schema=OF_COMMITS, name="expectations", table=COMMITS.name, keys=()))
    order = ("", UPDATES, CHANGELOG, STORE, OF_COMMITS)
    return list(_named(sorted(found, key=lambda view: order.index(view.schema))))


def _named(found: Sequence[View]) -> Iterator[View]:
    """The views under names that Spark takes, which does not tell capitals apart."""
    taken = set[str]()
    for view in found:
        plain = name = re.sub(r"[^A-Za-z0-9_]", "_", view.name)
        number = 1
        while f"{view.schema}.{name}".lower() in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(f"{view.schema}.{name}".lower())
        yield replace(view, name=name)


class SqlSession:
    """Statements over an application's tables, each as of the newest commit when it begins.

    ``session`` is one of ``sql_session``; stopping it is up to the caller. ``outputs`` are the tables to be read by
    their plain names.
    """

    def __init__(self, session: SparkSession, warehouse: Place, application: str, outputs: Sequence[str]) -> None:
        self._session, self._warehouse, self.application = session, warehouse, application
        self._folder = warehouse / application
        self._views = views(self._folder, outputs)
        self._shown = dict[str, str]()
        """The query of each view that has been made."""
        for name in _LOGGERS:
            logging.getLogger(name).disabled = True

    @property
    def names(self) -> list[str]:
        """The views' names, in order."""
        return [str(view) for view in self._views]

    def run(self, statement: str, *, at_most: int = 0, first_line: int = 1) -> pl.DataFrame:
        """The rows of a statement, or the first ``at_most``; empty if it has none.

        Raises:
            SqlError: Spark refuses the statement, or fails; ``first_line`` is the line where it begins.
            SparkEndedError: Its Java process has ended.
            KeyboardInterrupt: As it came; what Spark was doing is cancelled.
        """
        if _LIST_ALL.fullmatch(statement):
            return pl.DataFrame([{"table": str(view), "rows": view.what} for view in self._views])
        try:
            return self._interruptible(lambda: self._answer(statement, at_most))
        except PySparkException as error:
            raise SqlError(self._sentence(error, first_line)) from error
        except (Py4JError, OSError) as error:
            raise SparkEndedError(
                "Spark's Java process has ended, perhaps for want of memory: start again with a LIMIT, or with more "
                "by --set spark.driver.memory=4g"
            ) from error

    def _answer(self, statement: str, at_most: int) -> pl.DataFrame:
        self._show([view for view in self._views if _is_named(view.name, statement)])
        rows = self._session.sql(statement)
        return as_frame(rows.limit(at_most) if at_most else rows)

    def _interruptible(self, answer: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """``answer()`` from another thread: one that waits for Java is not interrupted before Java has answered."""
        found = Future[pl.DataFrame]()

        def work() -> None:
            try:
                found.set_result(answer())
            except BaseException as error:
                found.set_exception(error)

        worker = threading.Thread(target=work, name="statement", daemon=True)
        try:
            worker.start()
            return found.result()
        except BaseException:  # it may come while the thread starts
            while not found.done() and worker in threading.enumerate():
                self._session.sparkContext.cancelAllJobs()
                wait([found], CANCEL_EVERY_S)
            raise

    def _show(self, wanted: Sequence[View]) -> None:
        """Make views of the newest commit, as far as they are not."""
        names = {name for view in wanted for name in (view.table, view.updates) if name}
        found = pinned(self._warehouse, self.application, sorted(names))
        if found is None:
            return
        for view in wanted:
            query = view.query(self._folder, found.tables, self.application)
            if self._shown.get(str(view)) == query:
                continue
            if view.schema:
                self._session.sql(f"CREATE SCHEMA IF NOT EXISTS {view.schema}")
            place = f"{view.schema or 'default'}.{_quoted(view.name)}"
            self._session.sql(f"CREATE OR REPLACE VIEW {place} AS {query}")
            self._shown[str(view)] = query

    def _sentence(self, error: PySparkException, first_line: int) -> str:
        """What is wrong with a statement, and where."""
        text = str(error)
        place = _LINE.search(text)
        line = f"line {first_line - 1 + int(place[1])}: " if place else ""
        condition = error.getCondition() or ""
        if condition in _NOT_FOUND:
            wanted = (error.getMessageParameters() or {}).get("relationName", "").replace("`", "")
            wanted = wanted.removeprefix("spark_catalog.").removeprefix("default.")
            near = difflib.get_close_matches(wanted, self.names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(self.names) or 'none yet'}"
            return f"{line}{self.application} has no table {wanted!r}; {hint}"
        reasons = re.findall(r"\[[A-Z0-9_.]+\] ((?:.|\n)*?)(?: SQLSTATE: |\n== SQL|\n\tat |$)", text)
        reason = reasons[-1] if reasons else text.partition("\n\tat ")[0].partition("\n== SQL")[0]
        return line + " ".join(reason.split()).removesuffix(".")


def as_frame(rows: DataFrame) -> pl.DataFrame:
    """A query's rows; columns of the same name get numbers."""
    table = rows.toArrow()
    names, taken = list[str](), set[str]()
    for name in table.column_names:
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        names.append(unique)
    frame = pl.from_arrow(table.rename_columns(names))
    assert isinstance(frame, pl.DataFrame)
    return frame


def _is_named(name: str, statement: str) -> bool:
    """Whether a statement may read a table: it has its name somewhere, or asks what tables there are."""
    is_there = re.search(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])", statement, re.IGNORECASE)
    return is_there is not None or _LISTS_SOME.match(statement) is not None


def _is_behind(shown: DeltaTable, updates: DeltaTable, application: str) -> bool:
    """Whether a table of upserts has yet to show commits that its updates have."""
    shows, has = (table.transaction_version(application) or 0 for table in (shown, updates))
    return shows < has


def _columns(table: DeltaTable) -> list[str]:
    return [field.name for field in table.schema().fields]


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
