"""``weir query``: reads keys, ranges and windows of a store from local state, whether the application is running or
not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weir.pipelines.cli.options import (
    AppArgument,
    DebugOption,
    DirOption,
    JsonOption,
    SetOption,
    load_settings,
    parse_assignments,
)
from weir.pipelines.cli.render import console, print_json, print_table
from weir.pipelines.errors import QueryError
from weir.pipelines.operations.errors import OperationError
from weir.pipelines.operations.rows import as_dictionaries, without_bookkeeping
from weir.state.types import IsolationLevel, Positions, StoreKind, StoreSpec

if TYPE_CHECKING:
    import polars as pl

    from weir.pipelines.state_reader import Answer, Query, StateReader


def _parsed(text: Any, dtype: pl.DataType, column: str) -> Any:
    import polars as pl

    try:
        if dtype == pl.Boolean:
            return {"true": True, "false": False}[str(text).lower()]
        if dtype.is_integer():
            return int(text)
        if dtype.is_float():
            return float(text)
        if dtype == pl.Datetime:
            return _utc(datetime.fromisoformat(text))
        if dtype == pl.Date:
            return date.fromisoformat(text)
    except (KeyError, ValueError, TypeError):
        raise OperationError(f"KEY: {text!r} is not a value of the key column {column} ({dtype}); correct it") from None
    return str(text).encode() if dtype == pl.Binary else str(text)


def parse_key(text: str, schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """``text`` as one value per key column.

    For one column it is the text itself; for several, a JSON object, or the values in order with ``-`` between them
    (the last gets the rest), such as ``UA-EWR``.

    Raises:
        OperationError: Too few values, unknown columns, or a value that its column cannot have.
    """
    columns = list(schema)
    if len(columns) > 1 and text.startswith("{"):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise OperationError(f"KEY: {text!r} is not JSON: {error}") from None
        if set(values) != set(columns):
            raise OperationError(
                f"KEY: the key columns are {', '.join(columns)}, but got {', '.join(values) or 'none'}"
            )
    else:
        parts = text.split("-", len(columns) - 1)
        if len(parts) != len(columns):
            raise OperationError(
                f"KEY: the key columns are {', '.join(columns)}; give one value for each with - between "
                f"them, or a JSON object, instead of {text!r}"
            )
        values = dict(zip(columns, parts, strict=True))
    return {column: _parsed(values[column], dtype, column) for column, dtype in schema.items()}


def _key_schema(spec: StoreSpec) -> dict[str, pl.DataType]:
    """The key columns of a store without those of windows and versions."""
    return {
        name: dtype
        for name, dtype in spec.key.items()
        if spec.kind is StoreKind.KEY_VALUE or name not in ("window_start", "window_end", "valid_from")
    }


def _moment(text: str | None, option: str) -> datetime | None:
    """A time in ISO 8601, taken as UTC if it names no zone."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OperationError(f"{option}: {text!r} is not a time; write it like 2013-01-01T10:00:00Z") from None
    return _utc(moment)


def _utc(moment: datetime) -> datetime:
    """``moment``, taken as UTC if it names no zone."""
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
        spec = reader.spec(store)
        is_timed = spec.kind in (StoreKind.WINDOW, StoreKind.SESSION)
        self._refuse(
            store, spec.kind, *(("lower", "upper", "prefix", "as_of") if is_timed else ("from_time", "to_time"))
        )
        key, lower, upper = (
            None if text is None else parse_key(text, _key_schema(spec)) for text in (self.key, self.lower, self.upper)
        )
        if is_timed:
            since, until = _moment(self.from_time, "--from-time"), _moment(self.to_time, "--to-time")
            if spec.kind is StoreKind.WINDOW:
                return reader.windows(store, key, since, until, query=query)
            if key is None:
                raise OperationError(f"{store} is a session store; give a KEY")
            return reader.sessions(store, key, since, until, query=query)
        if key is not None:
            return reader.get(store, key, as_of=_moment(self.as_of, "--as-of"), query=query)
        if self.prefix is not None:
            return reader.prefix(store, self.prefix, query=query)
        return reader.range(store, lower, upper, query=query)

    def _refuse(self, store: str, kind: StoreKind, *options: str) -> None:
        for option in options:
            if getattr(self, option) is not None:
                name = {"lower": "from", "upper": "to"}.get(option, option.replace("_", "-"))
                raise OperationError(f"--{name} does not apply to {store}, which is a {kind.replace('_', '-')} store")


def query(
    application: AppArgument,
    store: Annotated[str, typer.Argument(metavar="STORE", help="A store's name, as `weir describe` shows it.")],
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="The key, for example UA-EWR, or a JSON object; all rows if left out."),
    ] = None,
    lower: Annotated[str | None, typer.Option("--from", help="The first key of a range.")] = None,
    upper: Annotated[str | None, typer.Option("--to", help="The last key of a range.")] = None,
    prefix: Annotated[str | None, typer.Option(help="What the first key column starts with.")] = None,
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
    timeout: Annotated[float, typer.Option(help="Seconds to wait for --at-least.")] = 10.0,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="Only list the tasks that hold the store, or the key.")
    ] = False,
    assignments: SetOption = None,
    as_json: JsonOption = False,
    directory: DirOption = None,
    debug: DebugOption = False,
) -> None:
    """Query a store's local state: a key, a range or a prefix, or the windows or sessions of a key."""
    from weir.pipelines.operations.registry import registered_application
    from weir.pipelines.state_reader import Query, StateReader

    settings = load_settings(directory, parse_assignments(assignments or []))
    reader = StateReader(
        settings.dir, registered_application(settings, application), schema_registry=settings.schema_registry
    )
    asked = Question(
        key=key, lower=lower, upper=upper, prefix=prefix, from_time=from_time, to_time=to_time, as_of=as_of
    )
    try:
        if tasks:
            names = (
                reader.tasks(store)
                if key is None
                else [reader.task_of(store, parse_key(key, _key_schema(reader.spec(store))))]
            )
            if as_json:
                print_json({"tasks": names})
            else:
                console.print("\n".join(names), markup=False, soft_wrap=True)
            return
        answer = asked.ask(
            reader, store, Query(isolation=isolation, at_least=_position(at_least), timeout=timedelta(seconds=timeout))
        )
    except QueryError as error:
        raise OperationError(str(error)) from None
    shown = without_bookkeeping(answer.rows)
    if as_json:
        print_json({"rows": as_dictionaries(shown), "position": answer.position})
    elif shown.is_empty():
        hint = "; a window leaves the store when it closes, and its result is in the output (`weir show`)"
        is_windowed = reader.spec(store).kind is StoreKind.WINDOW
        console.print(
            f"{store} holds nothing for {key or 'that'}{hint if is_windowed else ''}", markup=False, soft_wrap=True
        )
    else:
        print_table(shown)
