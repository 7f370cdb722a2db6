"""The control database: who drives which application, the status of its tasks, and what was requested of it.

SQLite in the folder by default, PostgreSQL by URL. It never holds the durable truth: missing tables are created, so
losing the database loses only history. Methods raise ``ControlDatabaseError`` when the database fails; the driver uses
it through ``weir.infra.control.guard``, which logs that and continues.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache, partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    ColumnElement,
    Connection,
    Engine,
    QueuePool,
    Row,
    RowMapping,
    Select,
    create_engine,
    delete,
    event,
    func,
    inspect,
    select,
    update,
)
from sqlalchemy import insert as plain_insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from weir.infra.control.models import (
    ASSIGNMENTS_KEPT,
    FORMAT_VERSION,
    METRICS_KEPT_MS,
    MINUTES_KEPT_MS,
    Assignment,
    Base,
    Format,
    Instance,
    Metric,
    Minute,
    QueryServer,
    Readings,
    Request,
    Sinks,
    TaskStatus,
    Waiting,
    Watched,
)
from weir.infra.control.rows import (
    AT_REST,
    ApplicationStatus,
    AssignmentRow,
    Lease,
    MetricRow,
    MinuteRow,
    QueryServerRow,
    RequestKind,
    RequestRow,
    TaskStatusRow,
)
from weir.infra.process import start_ticks
from weir.infra.settings import mask_url

_POLL_S = 0.05
_BUSY_POLL_S = 0.005
_VERSION = "PRAGMA data_version"
"""A number that changes, on one connection, when another one commits."""
_REQUESTS_READ_AT = "weir_requests_read_at"
_PRUNE_EVERY_MS = 60_000
_MINUTE_MS = 60_000
_ROOM_BYTES = 1 << 20
"""What SQLite may need for its log and that log's index."""
_TABLES_LOCK = 0x77656972
"""PostgreSQL's advisory lock for creating the tables: "weir"."""


class ControlDatabaseError(Exception):
    """The control database cannot be read or written at the moment."""


class LeaseHeldError(Exception):
    """Another process drives the application."""

    def __init__(self, application: str, owner: str, host: str, pid: int, started_at_ms: int) -> None:
        super().__init__(application, owner, host, pid, started_at_ms)
        self.application, self.owner, self.host, self.pid = application, owner, host, pid
        self.started_at_ms = started_at_ms

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started_at_ms / 1000))
        return (
            f"application {self.application!r} is already driven by {self.owner} (process {self.pid} on "
            f"{self.host}, since {since}); stop it with `weir stop {self.application}`, or replace it with "
            "`weir run MODULE:APP --take-over` (in Dagster, with take_over in the ingest's config)"
        )


class ControlDatabase:
    """All access to one control database. Threads may share it; a forked child creates its own."""

    def __init__(self, url: str, *, busy_timeout_s: float = 5.0) -> None:
        """Opens nothing yet. ``busy_timeout_s`` bounds the wait for a locked or unreachable database.

        Raises:
            ControlDatabaseError: The URL is invalid, or its driver is not installed.
        """
        self._shown_url = mask_url(url)
        self._tables_in: int | None = None
        """The inode of the file whose tables were checked; 1 once a server's were."""
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):  # of a port, for example, that is a password
            raise ControlDatabaseError(
                "the setting control_url is not a URL; write one such as "
                "postgresql+psycopg://user:password@host/database, or leave it out for SQLite in the folder"
            ) from None
        self._without_requests: tuple[tuple[int, int], ...] | None = None
        """SQLite's files when there were none but those that have been read."""
        try:
            if parsed.get_backend_name() == "sqlite":
                # Opening the file takes longer than most calls, so one connection is kept while it is the same file.
                self._engine = create_engine(
                    parsed, poolclass=QueuePool, pool_size=1, connect_args={"timeout": busy_timeout_s}
                )
                self._file = Path(parsed.database) if parsed.database else None
                event.listen(self._engine, "connect", partial(_prepare_sqlite, busy_timeout_s))
                event.listen(self._engine, "begin", _begin_sqlite)
            else:
                self._engine = _server_engine(parsed, max(2, round(busy_timeout_s)), os.getpid())
                self._file = None
        except (SQLAlchemyError, ImportError) as error:
            raise ControlDatabaseError(f"control database {self._shown_url}: {error}") from None

    def acquire_lease(
        self, application: str, *, owner: str, pid: int, host: str, ttl_s: float, take_over: bool = False
    ) -> Lease:
        """Become the application's driver on record, in state ``starting``.

        A lease is free if nobody holds it, if it has expired, if its holder was a process of this host that has ended,
        or if its holder is of another host and from before the clock went back. ``take_over`` takes it from a living
        holder, too (the commit log fences that one).

        Raises:
            LeaseHeldError: Another process holds it.
        """
        now = _now_ms()
        try:
            with self._writing() as connection:
                holder = _open_instance(connection, application)
                if holder is not None:
                    if not take_over and _is_alive(holder, host, now):
                        raise LeaseHeldError(application, holder.owner, holder.host, holder.pid, holder.started_at_ms)
                    state = "failed" if _is_alive(holder, host, now) else "dead"
                    connection.execute(
                        update(Instance)
                        .where(Instance.id == holder.id)
                        .values(ended_at_ms=now, state=state, error=f"replaced by {owner} ({host}, {pid})")
                    )
                for model in (TaskStatus, QueryServer):
                    connection.execute(delete(model).where(model.application == application))
                return _open_lease(connection, application, owner, pid, host, now, ttl_s)
        except IntegrityError:  # somebody else inserted one after we looked
            with self._reading() as connection:
                holder = _open_instance(connection, application)
            if holder is None:
                raise ControlDatabaseError(
                    f"the lease of {application!r} changed hands twice at once; try again"
                ) from None
            raise LeaseHeldError(application, holder.owner, holder.host, holder.pid, holder.started_at_ms) from None

    def heartbeat(self, lease: Lease, *, state: str, generation: int | None = None) -> bool:
        """Extend the lease by its time to live; False if another driver has taken it.

        If the database has lost the lease, it is written again.
        """
        now = _now_ms()
        values = {"state": state, "heartbeat_at_ms": now, "lease_until_ms": now + round(lease.ttl_s * 1000)}
        if generation is not None:
            values["generation"] = generation
        mine = _is_of(lease)
        try:
            with self._writing() as connection:
                if connection.execute(
                    update(Instance).where(*mine, Instance.ended_at_ms.is_(None)).values(values)
                ).rowcount:
                    return True
                if connection.execute(select(Instance.id).where(*mine)).first() is not None:
                    return False  # ended by whoever took it over
                connection.execute(
                    plain_insert(Instance).values(
                        application=lease.application,
                        owner=lease.owner,
                        host=lease.host,
                        pid=lease.pid,
                        process_start=start_ticks(lease.pid),
                        started_at_ms=lease.started_at_ms,
                        **values,
                    )
                )
                return True
        except IntegrityError:  # another one is open
            return False

    def release(self, lease: Lease, *, state: str = "stopped", error: str | None = None) -> None:
        """End the lease; ``state`` is stopped or failed. Harmless if somebody else has taken it."""
        with self._writing() as connection:
            connection.execute(
                update(Instance)
                .where(*_is_of(lease), Instance.ended_at_ms.is_(None))
                .values(state=state, error=error, ended_at_ms=_now_ms())
            )

    def report_tasks(self, application: str, rows: Sequence[TaskStatusRow]) -> None:
        """Replace the status rows of these tasks in one statement."""
        if not rows:
            return
        now = _now_ms()
        values = [{"application": application, **asdict(row), "updated_at_ms": now} for row in rows]
        statement: Any = self._upsert(TaskStatus)
        changed = {
            field.name: statement.excluded[field.name] for field in fields(TaskStatusRow) if field.name != "task"
        }
        statement = statement.on_conflict_do_update(index_elements=["application", "task"], set_=changed)
        with self._writing() as connection:
            connection.execute(statement, values)

    def report_query_servers(self, application: str, servers: Sequence[QueryServerRow]) -> None:
        """Replace what is known of the servers of the application's executors."""
        with self._writing() as connection:
            connection.execute(delete(QueryServer).where(QueryServer.application == application))
            if servers:
                values = [{"application": application, **asdict(server)} for server in servers]
                connection.execute(plain_insert(QueryServer), values)

    def query_servers(self, application: str) -> tuple[list[QueryServerRow], list[TaskStatusRow]]:
        """The servers of the application's executors, and the status of its tasks as of the same moment; none of
        either if nobody drives it, or not on a cluster."""
        with self._reading() as connection:
            driver = _open_instance(connection, application)
            if driver is None or not _is_alive(driver, this_host(), _now_ms()):
                return [], []
            found = connection.execute(select(QueryServer.__table__).where(QueryServer.application == application))
            servers = [QueryServerRow(**_without_application(row)) for row in found.mappings()]
            if not servers:
                return [], []
            found = connection.execute(select(TaskStatus.__table__).where(TaskStatus.application == application))
            return servers, [TaskStatusRow(**_without_application(row)) for row in found.mappings()]

    def report_readings(self, application: str, readings: Sequence[Mapping[str, Any]]) -> None:
        """Replace the application's readings, which are plain JSON values."""
        self._replace(Readings, [application], {"readings": list(readings)})

    def report_sinks(self, application: str, sinks: Sequence[Mapping[str, Any]]) -> None:
        """Replace what is known of the application's sinks, which are plain JSON values."""
        self._replace(Sinks, [application], {"sinks": list(sinks)})

    def report_waiting(self, application: str, reason: str) -> None:
        """Replace what the application's driver waits for; an empty text if nothing."""
        self._replace(Waiting, [application], {"reason": reason})

    def note_watched(self, applications: Sequence[str]) -> None:
        """Note that Dagster's sensors have looked at them now."""
        if applications:
            self._replace(Watched, applications, {})

    def watched_at_ms(self, application: str) -> int | None:
        """When Dagster's sensors have looked at it last, in ms since 1970; None if they never did."""
        with self._reading() as connection:
            return connection.scalar(select(Watched.at_ms).where(Watched.application == application))

    def add_metric(self, application: str, row: MetricRow) -> None:
        """Append a reading; from time to time, readings older than an hour are replaced by summaries of their minutes,
        and summaries older than a day are deleted."""
        now = _now_ms()
        with self._writing() as connection:
            values = {"application": application, **asdict(row), "at_ms": row.at_ms or now}
            connection.execute(plain_insert(Metric).values(**values))
            if now % _PRUNE_EVERY_MS < _PRUNE_EVERY_MS // 60:
                self._fold_readings(connection, now)

    def add_assignment(self, application: str, row: AssignmentRow) -> None:
        """Append an assignment; only the newest ``ASSIGNMENTS_KEPT`` of the application stay."""
        own = select(Assignment.id).where(Assignment.application == application).order_by(Assignment.id.desc())
        oldest = own.offset(ASSIGNMENTS_KEPT).limit(1).scalar_subquery()
        with self._writing() as connection:
            values = {"application": application, **asdict(row), "at_ms": row.at_ms or _now_ms()}
            connection.execute(plain_insert(Assignment).values(**values))
            connection.execute(delete(Assignment).where(Assignment.application == application, Assignment.id <= oldest))

    def assignments(self, application: str) -> list[AssignmentRow]:
        """Those that are kept, oldest first."""
        with self._reading() as connection:
            found = connection.execute(
                select(Assignment.__table__).where(Assignment.application == application).order_by(Assignment.id)
            )
            return [_assignment(row) for row in found.mappings()]

    def request(
        self,
        application: str,
        kind: RequestKind,
        *,
        by: str,
        reason: str = "",
        arguments: Mapping[str, str] | None = None,
    ) -> int:
        """Send the application's driver a request; returns the request's id."""
        with self._writing() as connection:
            return int(
                connection.execute(
                    plain_insert(Request)
                    .values(
                        application=application,
                        kind=kind,
                        arguments=dict(arguments or {}),
                        requested_by=by,
                        reason=reason,
                        requested_at_ms=_now_ms(),
                        state="pending",
                        result="",
                    )
                    .returning(Request.id)
                ).scalar_one()
            )

    def pending_requests(self, application: str) -> list[RequestRow]:
        """Unanswered requests, oldest first."""
        with self._reading() as connection:
            version = None if self._file is None else connection.exec_driver_sql(_VERSION).scalar_one()
            found = connection.execute(
                select(Request.__table__)
                .where(Request.application == application, Request.state == "pending")
                .order_by(Request.id)
            )
            rows = [RequestRow(**row) for row in found.mappings()]
            connection.info[_REQUESTS_READ_AT] = version
            return rows

    def may_have_requests(self) -> bool:
        """Whether somebody may have written since ``pending_requests`` was called; cheap enough to call each 100 ms.

        SQLite counts the commits of other connections, and is asked once its files have changed; other databases are
        not asked. A file's time of change has steps of some milliseconds, so a write right after a look may be noticed
        only after the driver's next heartbeat.
        """
        if self._file is None:
            return True
        try:
            if (files := self._files()) == self._without_requests:
                return False
            self._ensure_tables()
            with contextlib.closing(self._engine.raw_connection()) as connection:
                [(version,)] = connection.cursor().execute(_VERSION).fetchall()
                may_have = bool(version != connection.info.get(_REQUESTS_READ_AT))
            if not may_have:
                self._without_requests = files
            return may_have
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._translated(error) from error

    def finish_request(self, request_id: int, result: str, *, failed: bool = False) -> None:
        """Answer a request."""
        with self._writing() as connection:
            connection.execute(
                update(Request)
                .where(Request.id == request_id)
                .values(state="failed" if failed else "done", result=result, finished_at_ms=_now_ms())
            )

    def wait_request(self, request_id: int, timeout_s: float) -> RequestRow:
        """The request once it is answered, or still ``pending`` after ``timeout_s``.

        Raises:
            ControlDatabaseError: There is no such request.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._reading() as connection:
                row = connection.execute(select(Request.__table__).where(Request.id == request_id)).mappings().first()
            if row is None:
                raise ControlDatabaseError(f"control database {self._shown_url} has no request {request_id}")
            if row["state"] != "pending" or time.monotonic() > until:
                return RequestRow(**row)
            time.sleep(_POLL_S)

    def latest_request(self, application: str, kind: RequestKind, by: str) -> RequestRow | None:
        """The newest request of this kind by ``by``, answered or not."""
        with self._reading() as connection:
            row = (
                connection.execute(
                    select(Request.__table__)
                    .where(Request.application == application, Request.kind == kind, Request.requested_by == by)
                    .order_by(Request.id.desc())
                    .limit(1)
                )
                .mappings()
                .first()
            )
        return None if row is None else RequestRow(**row)

    def requests_by(self, application: str, prefix: str, since_ms: int) -> list[RequestRow]:
        """Requests since then, answered or not, of those whose names begin with ``prefix``; the newest first."""
        with self._reading() as connection:
            found = connection.execute(
                select(Request.__table__)
                .where(
                    Request.application == application,
                    Request.requested_by.startswith(prefix, autoescape=True),
                    Request.requested_at_ms >= since_ms,
                )
                .order_by(Request.id.desc())
            )
            return [RequestRow(**row) for row in found.mappings()]

    def reading_before(self, application: str, at_ms: int) -> MetricRow | None:
        """The newest reading up to then; None if there was none in the hour that is kept."""
        with self._reading() as connection:
            row = (
                connection.execute(
                    select(Metric.__table__)
                    .where(Metric.application == application, Metric.at_ms <= at_ms)
                    .order_by(Metric.at_ms.desc(), Metric.id.desc())
                    .limit(1)
                )
                .mappings()
                .first()
            )
        return None if row is None else MetricRow(**{field.name: row[field.name] for field in fields(MetricRow)})

    def last_hour(self, application: str) -> list[MinuteRow]:
        """The readings of the last hour, one row per minute that has any, oldest first."""
        return self._minutes(application, _now_ms() - METRICS_KEPT_MS)

    def last_day(self, application: str) -> list[MinuteRow]:
        """The same of the last day."""
        return self._minutes(application, _now_ms() - MINUTES_KEPT_MS)

    def _minutes(self, application: str, since_ms: int) -> list[MinuteRow]:
        folded = select(*Minute.__table__.c).where(Minute.application == application, Minute.at_ms > since_ms)
        read = _by_minute(Metric.application == application, Metric.at_ms > since_ms)
        with self._reading() as connection:
            found = connection.execute(folded.union_all(read).order_by("at_ms")).mappings().all()
        return [MinuteRow(**{field.name: row[field.name] for field in fields(MinuteRow)}) for row in found]

    def _fold_readings(self, connection: Connection, now_ms: int) -> None:
        """Of whole minutes, so that none is folded twice; where the clock went back, the first summary stays."""
        is_old = Metric.at_ms < (now_ms - METRICS_KEPT_MS) // _MINUTE_MS * _MINUTE_MS
        columns = [column.name for column in Minute.__table__.c]
        folded = _by_minute(is_old).order_by(Metric.application, "minute_ms")  # so that two drivers never deadlock
        connection.execute(self._upsert(Minute).from_select(columns, folded).on_conflict_do_nothing())
        connection.execute(delete(Metric).where(is_old))
        connection.execute(delete(Minute).where(Minute.at_ms < now_ms - MINUTES_KEPT_MS))

    def lags(self, application: str, *, until_ms: int, step_ms: int, steps: int) -> list[int]:
        """The greatest lag, in records, of each step that has a reading, oldest first; the last step ends at
        ``until_ms``, in ms since 1970."""
        step = ((until_ms - Metric.at_ms) // step_ms).label("step")
        with self._reading() as connection:
            found = connection.execute(
                select(step, func.max(Metric.lag))
                .where(
                    Metric.application == application,
                    Metric.at_ms <= until_ms,
                    Metric.at_ms > until_ms - steps * step_ms,
                )
                .group_by("step")
                .order_by(step.desc())
            ).all()
        return [lag for _, lag in found]

    def is_running(self, application: str, host: str | None = None) -> bool:
        """Whether a living driver holds the lease."""
        status = self.application_status(application, host)
        return status is not None and status.is_running

    def has_ended(self, application: str) -> bool:
        """Whether no driver of the application is left that could still answer: ``ApplicationStatus.has_ended``."""
        status = self.application_status(application)
        return status is None or status.has_ended

    def application_status(
        self, application: str, host: str | None = None, *, of_driver: bool = False
    ) -> ApplicationStatus | None:
        """The newest life of an application; None if the database knows of none.

        ``of_driver`` skips lives that were ``AT_REST`` and gives the newest driver's, with or without the lease.
        """
        return self.application_statuses([application], host, of_driver=of_driver).get(application)

    def application_statuses(
        self, applications: Sequence[str], host: str | None = None, *, of_driver: bool = False
    ) -> dict[str, ApplicationStatus]:
        """The same of each application that the database knows, by its id, with as many queries as for one."""
        here = host or this_host()
        newest_life = select(func.max(Instance.id)).where(Instance.application.in_(applications))
        if of_driver:
            newest_life = newest_life.where(Instance.owner != AT_REST)
        reading = (
            select(Metric.id)
            .where(Metric.application == Instance.application)
            .order_by(Metric.at_ms.desc(), Metric.id.desc())
            .limit(1)
            .correlate(Instance)
            .scalar_subquery()
        )
        with self._reading() as connection:
            lives = connection.execute(
                select(Instance.__table__, reading.label("reading")).where(
                    Instance.id.in_(newest_life.group_by(Instance.application))
                )
            ).all()
            known = [life.application for life in lives]
            metrics = {
                row["application"]: MetricRow(**{field.name: row[field.name] for field in fields(MetricRow)})
                for row in connection.execute(
                    select(Metric.__table__).where(Metric.id.in_([life.reading for life in lives]))
                ).mappings()
            }
            tasks: dict[str, list[TaskStatusRow]] = {}
            for row in connection.execute(
                select(TaskStatus.__table__).where(TaskStatus.application.in_(known))
            ).mappings():
                task = TaskStatusRow(**_without_application(row))
                tasks.setdefault(row["application"], []).append(task)
            newest = select(func.max(Assignment.id)).where(Assignment.application.in_(known))
            assignments = {
                row["application"]: _assignment(row)
                for row in connection.execute(
                    select(Assignment.__table__).where(Assignment.id.in_(newest.group_by(Assignment.application)))
                ).mappings()
            }
            readings, sinks, waits = (
                _by_application(connection, value, known) for value in (Readings.readings, Sinks.sinks, Waiting.reason)
            )
        return {
            life.application: _status(
                life,
                here,
                tasks=tuple(
                    sorted(tasks.get(life.application, ()), key=lambda row: tuple(map(int, row.task.split("_"))))
                ),
                metric=metrics.get(life.application),
                readings=tuple(readings.get(life.application) or ()),
                sinks=tuple(sinks.get(life.application) or ()),
                waits_for=waits.get(life.application) or "",
                assignment=assignments.get(life.application),
            )
            for life in lives
        }

    def applications(self) -> list[str]:
        """The ids of all known applications, sorted."""
        with self._reading() as connection:
            return sorted(connection.execute(select(Instance.application).distinct()).scalars())

    def forget(self, application: str) -> None:
        """Delete everything about an application."""
        with self._writing() as connection:
            for model in (
                Instance,
                TaskStatus,
                QueryServer,
                Readings,
                Sinks,
                Waiting,
                Watched,
                Request,
                Metric,
                Minute,
                Assignment,
            ):
                connection.execute(delete(model).where(model.application == application))

    def _replace(self, model: type[Base], applications: Sequence[str], values: Mapping[str, Any]) -> None:
        """Write the only row that each of the applications has in a table."""
        now = _now_ms()
        rows = [{"application": application, **values, "at_ms": now} for application in applications]
        statement: Any = self._upsert(model)
        statement = statement.on_conflict_do_update(
            index_elements=["application"], set_={name: statement.excluded[name] for name in (*values, "at_ms")}
        )
        with self._writing() as connection:
            connection.execute(statement, rows)

    def _upsert(self, model: type[Base]) -> Any:
        """An insert in this database's dialect, which can say what to do with rows that exist."""
        return (postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert)(model)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        try:
            self._ensure_tables()
            with self._engine.connect() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise self._translated(error) from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        try:
            self._ensure_tables()
            with self._engine.connect().execution_options(weir_writes=True) as connection, connection.begin():
                yield connection
        except IntegrityError:
            raise
        except (SQLAlchemyError, OSError) as error:
            raise self._translated(error) from error

    def _files(self) -> tuple[tuple[int, int], ...]:
        """Size and time of change of SQLite's files, in ns."""
        assert self._file is not None
        names = (self._file, self._file.with_name(f"{self._file.name}-wal"))
        return tuple((found.st_size, found.st_mtime_ns) for found in (file.stat() for file in names if file.exists()))

    def _ensure_tables(self) -> None:
        found = self._file.stat().st_ino if self._file is not None and self._file.exists() else 0
        if self._tables_in == (found if self._file is not None else 1):
            return
        if self._file is not None:
            self._engine.dispose()  # a file that was deleted or replaced
            self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._engine.connect() as connection:
            are_there = self._are_tables_there(connection)
        if not are_there:  # only then wait for whoever writes, who may be frozen
            self._create_tables()
        self._tables_in = self._file.stat().st_ino if self._file is not None else 1

    def _create_tables(self) -> None:
        with self._engine.connect().execution_options(weir_writes=True) as connection, connection.begin():
            if self._file is None:  # when two create tables at once, PostgreSQL fails one, despite IF NOT EXISTS
                connection.execute(select(func.pg_advisory_xact_lock(_TABLES_LOCK)))
            if not self._are_tables_there(connection):
                Base.metadata.create_all(connection)
                for table, column in _missing_columns(connection):
                    kind = column.type.compile(connection.dialect)
                    connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}")
                if connection.execute(select(Format.version)).first() is None:
                    connection.execute(plain_insert(Format).values(version=FORMAT_VERSION))

    def _are_tables_there(self, connection: Connection) -> bool:
        """Whether all are, with all their columns.

        Raises:
            ControlDatabaseError: They are of another format.
        """
        found = set(inspect(connection).get_table_names())
        version = connection.scalar(select(Format.version)) if Format.__tablename__ in found else None
        if version not in (None, FORMAT_VERSION):
            raise ControlDatabaseError(
                f"control database {self._shown_url} has format version {version}, but this Weir reads "
                f"{FORMAT_VERSION}; point control_url at a new one, or drop its weir_ tables (history is lost)"
            )
        return version is not None and found.issuperset(Base.metadata.tables) and not list(_missing_columns(connection))

    def _translated(self, error: SQLAlchemyError | sqlite3.Error | OSError) -> ControlDatabaseError:
        cause = str(error.orig if isinstance(error, DBAPIError) else error).strip().splitlines()
        why = cause[0] if cause else repr(error)
        return ControlDatabaseError(f"control database {self._shown_url}: {why}{self._full_disk()}")

    def _full_disk(self) -> str:
        """What a disk without room means for SQLite, which then fails at reads as well; empty if there is room."""
        if self._file is None or not self._file.parent.exists():
            return ""
        disk = os.statvfs(self._file.parent)
        free = disk.f_bavail * disk.f_frsize
        if free >= _ROOM_BYTES:
            return ""
        return (
            f"; the disk of {self._file.parent} has {free:,} bytes free, but {_ROOM_BYTES:,} may be needed: free some "
            "space there, and a run goes on by itself, while a command is given again"
        )


@cache
def _server_engine(url: URL, connect_timeout_s: int, pid: int) -> Engine:
    """One per process ``pid``: each has connections of its own, which a server has few of, and which stay open until
    Python happens to collect them."""
    return create_engine(url, pool_pre_ping=True, connect_args={"connect_timeout": connect_timeout_s})


def this_host() -> str:
    """The host name in leases of this machine."""
    return socket.gethostname()


def _missing_columns(connection: Connection) -> Iterator[tuple[str, Column[Any]]]:
    """Columns that a later version has added to tables that are there, each with its table; they may be null."""
    for (_, name), columns in inspect(connection).get_multi_columns().items():
        if name in Base.metadata.tables:
            found = {column["name"] for column in columns}
            yield from ((name, column) for column in Base.metadata.tables[name].columns if column.name not in found)


def _open_lease(
    connection: Connection, application: str, owner: str, pid: int, host: str, now: int, ttl_s: float
) -> Lease:
    connection.execute(
        plain_insert(Instance).values(
            application=application,
            state="starting",
            owner=owner,
            host=host,
            pid=pid,
            process_start=start_ticks(pid),
            started_at_ms=now,
            heartbeat_at_ms=now,
            lease_until_ms=now + round(ttl_s * 1000),
        )
    )
    return Lease(application=application, owner=owner, host=host, pid=pid, started_at_ms=now, ttl_s=ttl_s)


def _is_of(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (
        Instance.application == lease.application,
        Instance.host == lease.host,
        Instance.pid == lease.pid,
        Instance.started_at_ms == lease.started_at_ms,
    )


def _open_instance(connection: Connection, application: str) -> Row[Any] | None:
    return connection.execute(
        select(Instance.__table__).where(Instance.application == application, Instance.ended_at_ms.is_(None))
    ).first()


def _without_application(row: RowMapping) -> dict[str, Any]:
    return {str(key): row[key] for key in row if key != "application"}


def _by_minute(*conditions: ColumnElement[bool]) -> Select[Any]:
    """The columns of ``Minute``, from readings."""
    minute_ms = (Metric.at_ms // _MINUTE_MS * _MINUTE_MS).label("minute_ms")
    return (
        select(
            Metric.application,
            minute_ms,
            func.max(Metric.epoch),
            func.avg(Metric.records_per_s),
            func.max(Metric.lag),
            func.max(Metric.commit_ms),
            func.max(Metric.state_bytes),
        )
        .where(*conditions)
        .group_by(Metric.application, "minute_ms")
    )


def _assignment(row: Mapping[Any, Any]) -> AssignmentRow:
    return AssignmentRow(**{field.name: row[field.name] for field in fields(AssignmentRow)})


def _by_application(connection: Connection, value: Any, applications: Sequence[str]) -> dict[str, Any]:
    """What a table with a row per application has in the column ``value``."""
    application = value.class_.application
    found = connection.execute(select(application, value).where(application.in_(applications)))
    return {row[0]: row[1] for row in found}


def _status(life: Row[Any], here: str, *, waits_for: str, **reported: Any) -> ApplicationStatus:
    is_running = life.ended_at_ms is None and _is_alive(life, here, _now_ms())
    return ApplicationStatus(
        application=life.application,
        state="dead" if life.ended_at_ms is None and not is_running else life.state,
        is_running=is_running,
        generation=life.generation,
        owner=life.owner,
        host=life.host,
        pid=life.pid,
        has_process=life.host == here and _has_process(life),
        started_at_ms=life.started_at_ms,
        heartbeat_at_ms=life.heartbeat_at_ms,
        ended_at_ms=life.ended_at_ms,
        error=life.error,
        waits_for=waits_for if is_running else "",
        **reported,
    )


def _is_alive(holder: Row[Any], host: str, now_ms: int) -> bool:
    """A heartbeat of another host that is further in the future than a lease lasts is from before the clock went back:
    a living driver has given another one since."""
    if holder.lease_until_ms < now_ms:
        return False
    if holder.host == host:
        return _has_process(holder)
    return bool(2 * holder.heartbeat_at_ms - holder.lease_until_ms <= now_ms)


def _has_process(holder: Row[Any]) -> bool:
    started = start_ticks(holder.pid)
    return started is not None and holder.process_start in (None, started)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _prepare_sqlite(busy_timeout_s: float, connection: Any, _: object) -> None:
    connection.isolation_level = None  # transactions begin explicitly, below, not when the driver sees fit
    until = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            # When two switch a new file to this journal at once, SQLite fails one of them without waiting.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_BUSY_POLL_S)
    connection.execute("PRAGMA synchronous = NORMAL")


def _begin_sqlite(connection: Connection) -> None:
    # A writer that begins as a reader fails if another has written in between; one that begins as a writer waits.
    is_writing = connection.get_execution_options().get("weir_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writing else "BEGIN")
