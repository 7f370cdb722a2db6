"""``weir query``: one key of one store, read from the local state while the application runs or after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.cli.options import AppArgument, CommandError, DebugOption, DirOption, JsonOption, load_settings
from pipelines.cli.render import console, print_json, print_table, without_bookkeeping
from state.types import IsolationLevel, StoreKind

if TYPE_CHECKING:
    import polars as pl

    from infra.settings import Settings
    from pipelines.application import Application
    from state.stores.typed import TypedStore

WINDOW_COLUMNS = ("window_start", "window_end")


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
            return datetime.fromisoformat(text)
    except (KeyError, ValueError, TypeError):
        raise CommandError(f"KEY: {text!r} is not a value for the key column {column} ({dtype}); correct it") from None
    return str(text).encode() if dtype == pl.Binary else str(text)


def parse_key(text: str, schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """``text`` as one value per key column.

    One column takes the text itself; several take a JSON object, or the values in order with ``-`` between them
    (the last takes what is left), as ``UA-EWR``.

    Raises:
        CommandError: Too few values, unknown columns, or a value that its column cannot have.
    """
    columns = list(schema)
    if len(columns) > 1 and text.startswith("{"):
        try:
            values = json.loads(text)
        except ValueError as error:
            raise CommandError(f"KEY: {text!r} is not JSON: {error}") from None
        if set(values) != set(columns):
            raise CommandError(f"KEY: the key columns are {', '.join(columns)}, and got {', '.join(values) or 'none'}")
    else:
        parts = text.split("-", len(columns) - 1)
        if len(parts) != len(columns):
            raise CommandError(f"KEY: the key columns are {', '.join(columns)}; give a value for each with - between "
                               f"them, or a JSON object, instead of {text!r}")
        values = dict(zip(columns, parts, strict=True))
    return {column: _parsed(values[column], dtype, column) for column, dtype in schema.items()}


def _rows_of(typed: TypedStore, wanted: Mapping[str, Any]) -> pl.DataFrame:
    """Key columns and state of the wanted key: one row or none, or in a window store one a window, oldest first."""
    import polars as pl

    if typed.spec.kind is StoreKind.WINDOW:
        keys, rows = typed.scan()
        rows = pl.concat([typed.decode(keys), rows], how="horizontal")
        return rows.filter(pl.col(name).eq_missing(pl.lit(value)) for name, value in wanted.items())
    asked = pl.DataFrame({name: [value] for name, value in wanted.items()}, schema=typed.spec.key)
    return pl.concat([asked, typed.fetch(typed.encode(asked))], how="horizontal").filter("_found").drop("_found")


def read_key(settings: Settings, application: Application, store: str, key: str,
             isolation: IsolationLevel) -> pl.DataFrame:
    """The rows that ``store`` holds for ``key`` on this host: key columns and finished values; none is no error.

    Raises:
        CommandError: The application has no such store, the key does not fit it, or it has no state here yet.
        TaskCorruptedError: The local state cannot be read.
    """
    import polars as pl

    from state.engine.instances import current_instance
    from state.engine.task_store import open_reader
    from state.stores.typed import TypedStore

    stores = {spec.name: (sub_topology, spec) for sub_topology in application.topology.sub_topologies
              for spec in sub_topology.stores}
    if store not in stores:
        raise CommandError(f"{application.id} has no store {store!r}; it has {', '.join(stores) or 'none'}")
    sub_topology, spec = stores[store]
    wanted = parse_key(key, {name: dtype for name, dtype in spec.key.items()
                             if not (spec.kind is StoreKind.WINDOW and name in WINDOW_COLUMNS)})
    tasks = sorted((settings.state_dir / application.id).glob(f"{sub_topology.stored_name}_*"))
    instances = [instance for instance in map(current_instance, tasks) if instance is not None]
    if not instances:
        raise CommandError(f"{application.id} has no state in {settings.state_dir} yet; run it first")
    found = []
    for instance in instances:
        with open_reader(instance, isolation) as reader:
            found.append(_rows_of(TypedStore(spec, reader), wanted))
    return application.topology.finish(store, pl.concat(found))


def query(application: AppArgument,
          store: Annotated[str, typer.Argument(metavar="STORE", help="A store's name, as `weir describe` shows.")],
          key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as UA-EWR, or a JSON object.")],
          isolation: Annotated[IsolationLevel, typer.Option(
              help="read_uncommitted sees the newest epoch too.")] = IsolationLevel.READ_COMMITTED,
          as_json: JsonOption = False, directory: DirOption = None, debug: DebugOption = False) -> None:
    """Look up a key in a store's local state; a window store answers with all windows of the key."""
    from pipelines.cli.registry import registered_application

    settings = load_settings(directory)
    rows = read_key(settings, registered_application(settings, application), store, key, isolation)
    shown = without_bookkeeping(rows)
    if as_json:
        print_json(shown.to_dicts())
    elif rows.is_empty():
        hint = "; a window leaves the store when it closes, its result is in the output (weir show)"
        console.print(f"{store} holds nothing for {key}{hint if WINDOW_COLUMNS[0] in rows.columns else ''}",
                      markup=False, soft_wrap=True)
    else:
        print_table(shown)
