"""``weir query``: reads keys, ranges and windows of a store, whether the application is running or not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from weir.pipelines.cli.advice import advised
from weir.pipelines.cli.keys import parse_key, parse_prefix, utc
from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    SetOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import console, notices, print_json, print_table
from weir.pipelines.errors import QueryError
from weir.pipelines.operations.errors import OperationError
from weir.state.types import IsolationLevel, Positions, StoreKind

if TYPE_CHECKING:
    import polars as pl

    from weir.pipelines.state_reader import Answer, Query, StateReader


def _moment(text: str | None, option: str) -> datetime | None:
    """A time in ISO 8601, taken as UTC if it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OperationError(f"{option}: {text!r} is not a time; write it like 2013-01-01T10:00:00Z") from None
    return utc(moment)


def _position(text: str | None) -> Positions:
    """``topic-partition=offset``, comma-separated."""
    position: Positions = {}
    for part in text.split(",") if text else ():
        found = re.fullmatch(r"(.+)-(\d+)=(\d+)", part.strip())
        if found is None:
            raise OperationError(
                f"--at-least: {part!r} is not a position; write topic-partition=offset, for example flights-0=100"
            )
        position.setdefault(found[1], {})[int(found[2])] = int(found[3])
    return position


def position_rows(position: Positions) -> pl.DataFrame:
    """One row for each topic partition: ``topic``, ``partition``, ``offset``."""
    import polars as pl

    rows = [(topic, number, offset) for topic, found in position.items() for number, offset in found.items()]
    return pl.DataFrame(sorted(rows), schema=["topic", "partition", "offset"], orient="row")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the command line asks a store, as text."""

    key: str | None = None
    lower: str | None = None
    upper: str | None = None
    prefix: str | None = None
    from_time: str | None = None
    to_time: str | None = None
    as_of: str | None = None

    def ask(self, reader: StateReader, store: str, query: Query) -> Answer:
        """Ask in the way that fits the store's kind.

        Raises:
            OperationError: The key, a time, or what is asked for does not fit the store.
            QueryError, TaskCorruptedError: As ``StateReader`` raises.
        """

        from weir.state.stores.specs import key_columns

        spec = reader.spec(store)
        is_timed = spec.kind in (StoreKind.WINDOW, StoreKind.SESSION)
        self._refuse(
            store, spec.kind, *(("lower", "upper", "prefix", "as_of") if is_timed else ("from_time", "to_time"))
        )
        columns = key_columns(spec)
        key, lower, upper = (
            None if text is None else parse_key(text, columns, option)
            for text, option in ((self.key, "KEY"), (self.lower, "--from"), (self.upper, "--to"))
        )
        if is_timed:
            since, until = _moment(self.from_time, "--from-time"), _moment(self.to_time, "--to-time")
            if spec.kind is StoreKind.WINDOW:
                return reader.windows(store, key, since, until, query=query)
            if key is None:
                raise OperationError(f"{store} is a session store; give a KEY")
            return reader.sessions(store, key, since, until, query=query)
        is_range = lower is not None or upper is not None
        if (key is not None) + is_range + (self.prefix is not None) > 1:
            raise OperationError("KEY, --from with --to, and --prefix do not go together; give one of them")
        if self.as_of is not None and key is None:
            raise OperationError("--as-of looks up one key; give a KEY, too")
        if key is not None:
            return reader.get(store, key, as_of=_moment(self.as_of, "--as-of"), query=query)
        if self.prefix is not None:
            return reader.prefix(store, parse_prefix(self.prefix, columns), query=query)
        return reader.range(store, lower, upper, query=query)

    def __str__(self) -> str:
        """For example "for the key ann"; empty if all rows are asked for."""
        ends = (self.lower or self.from_time, self.upper or self.to_time)
        what = "keys" if self.lower or self.upper else "times"
        match ends:
            case (None, None):
                span = None
            case (first, None):
                span = f"with {what} from {first} on"
            case (None, last):
                span = f"with {what} up to {last}"
            case (first, last):
                span = f"with {what} from {first} to {last}"
        parts = (
            self.key and f"for the key {self.key}",
            self.prefix and f"with keys that begin with {self.prefix}",
            span,
            self.as_of and f"as of {self.as_of}",
        )
        return " ".join(part for part in parts if part)

    def _refuse(self, store: str, kind: StoreKind, *options: str) -> None:
        for option in options:
            if getattr(self, option) is not None:
                name = {"lower": "from", "upper": "to"}.get(option, option.replace("_", "-"))
                raise OperationError(f"--{name} does not apply to {store}, which is a {kind.replace('_', '-')} store")


def query(
    context: typer.Context,
    application: AppArgument,
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="A store's name, as `weir describe MODULE:APP` shows it.")
    ],
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY", help="The key, for example UA-EWR, or a JSON object of its columns; all rows if left out."
        ),
    ] = None,
    lower: Annotated[str | None, typer.Option("--from", help="The first key of a range.")] = None,
    upper: Annotated[str | None, typer.Option("--to", help="The last key of a range.")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="How the first key column begins, or a JSON object of the first columns.")
    ] = None,
    from_time: Annotated[
        str | None, typer.Option(help="The earliest start of a window, or the earliest end of a session.")
    ] = None,
    to_time: Annotated[str | None, typer.Option(help="The latest start of a window or session.")] = None,
    as_of: Annotated[str | None, typer.Option(help="A time in the history of a versioned store.")] = None,
    isolation: Annotated[
        IsolationLevel | None,
        typer.Option(help="read_uncommitted sees the newest epoch too; by default, the application's own."),
    ] = None,
    at_least: Annotated[
        str | None,
        typer.Option(metavar="TOPIC-PARTITION=OFFSET,...", help="Wait until the answer includes this much input."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds to wait for --at-least, and for tasks that are being restored elsewhere.")
    ] = 10.0,
    allow_stale: Annotated[
        bool, typer.Option("--allow-stale", help="On a cluster, take what standbys have where an executor is lost.")
    ] = False,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Only list the tasks that hold the store, or the key.")
    ] = False,
    position: Annotated[
        bool, typer.Option("--position", help="Only show how much input the store reflects at its last commit.")
    ] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows; 0 for all.")] = 0,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Query a store: a key, a range or a prefix, or the windows or sessions of a key."""

    from weir.pipelines.operations.registry import registered_application
    from weir.pipelines.operations.rows import as_dictionaries, without_bookkeeping
    from weir.pipelines.state_reader import Query, StateReader
    from weir.state.stores.specs import key_columns

    settings = load_settings(directory, parse_assignments(assignments or []))
    reader = StateReader(
        settings.dir,
        registered_application(settings, application),
        warehouse=settings.warehouse,
        schema_registry=settings.schema_registry,
        control_url=settings.control_url,
    )
    asked = Question(
        key=key, lower=lower, upper=upper, prefix=prefix, from_time=from_time, to_time=to_time, as_of=as_of
    )
    try:
        if tasks:
            names = (
                reader.tasks(store)
                if key is None
                else [reader.task_of(store, parse_key(key, key_columns(reader.spec(store))))]
            )
            if as_json:
                print_json({"tasks": names})
            else:
                console.print("\n".join(names), markup=False, soft_wrap=True)
            return
        if position:
            offsets = reader.committed_position(store)
            if as_json:
                print_json({"position": offsets})
            else:
                print_table(position_rows(offsets))
            return
        options = Query(
            isolation=isolation,
            at_least=_position(at_least),
            timeout=timedelta(seconds=timeout),
            allow_stale=allow_stale,
        )
        answer = asked.ask(reader, store, options)
    except QueryError as error:
        raise OperationError(str(error)) from None
    rows = without_bookkeeping(answer.rows)
    shown = rows.head(limit) if limit else rows
    if as_json:
        print_json({"rows": as_dictionaries(shown), "position": answer.position})
    elif shown.is_empty():
        hint = (
            f"; a window leaves the store when it closes, and its result is in the output "
            f"(`weir show {application} TABLE`)"
        )
        is_windowed = reader.spec(store).kind is StoreKind.WINDOW
        told = f"{store} has no rows {asked}" if str(asked) else f"{store} is empty"
        told += hint if is_windowed else ""
        console.print(advised(told, context), markup=False, soft_wrap=True)
    else:
        print_table(shown)
        if shown.height < rows.height:
            notices.print(f"{shown.height:,} of {rows.height:,} rows", soft_wrap=True)
