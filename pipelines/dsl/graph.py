"""The graph that a builder grows: node names, checks of user names, and how user code becomes typed columns."""

from __future__ import annotations

import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import polars as pl

from weir.pipelines.errors import TopologyError
from weir.pipelines.operators.aggregates import expression_dtype
from weir.pipelines.operators.functions import UserFunction
from weir.pipelines.operators.windows import WINDOW_COLUMNS
from weir.pipelines.place import Place
from weir.pipelines.serdes.headers import HEADERS_TYPE
from weir.pipelines.serdes.row_type import RowType, row_type_of
from weir.pipelines.serdes.shapes import normal_dtype
from weir.pipelines.store_options import StoreOptions
from weir.pipelines.topology.lineage import is_made_up
from weir.pipelines.topology.nodes import Node, RecordType, RepartitionNode
from weir.pipelines.topology.processors import SharedStore
from weir.state.own_stores import Supplier
from weir.state.stores.specs import HELD_HEADERS
from weir.state.types import StoreKind, StoreSpec

N = TypeVar("N", bound=Node)

_INSIDE = ', for example select_key(id=col("{}").struct.field("id"))'
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Graph:
    """Nodes in the order they are made, numbered together as Kafka Streams numbers them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.streams: dict[str, bool] = {}
        """The nodes whose records are a stream, by name, and whether its key counts as changed."""
        self.stores: dict[str, SharedStore] = {}
        """The stores that the program declares on their own."""
        self._next = 0

    def new_name(self, prefix: str) -> str:
        """``prefix`` and the next running number in ten digits."""
        self._next += 1
        return f"{prefix}{self._next - 1:010d}"

    def add(self, node: N) -> N:
        self.nodes.append(node)
        return node

    def node(self, name: str) -> Node:
        """The node with this name; raises ``KeyError`` when none has it."""
        return {node.name: node for node in self.nodes}[name]

    def check_new(self, what: str, given: Any) -> str:
        """The name that the program gives to a node; raises ``TopologyError`` when another has it."""
        name = check_name(what, given)
        if is_made_up(name):
            raise TopologyError(
                f"the {what} name {name!r} is one that Weir makes up for nodes without a name; choose another"
            )
        if places := [node.place for node in self.nodes if node.name == name]:
            raise TopologyError(
                f"the name {name!r} is given to two nodes; give each its own name", places=[Place.of_call(), *places]
            )
        return name

    def check_meets(self, node: Node, other: Graph, other_node: Node) -> None:
        """Raises ``TopologyError`` when the two sides were made by two builders: a topology comes from one."""
        if other is not self:
            raise TopologyError(
                "the two sides come from two StreamsBuilders, but a topology reads the topics of one; make both with "
                "the same builder",
                places=places_of(node, other_node),
            )

    def record(
        self,
        where: str,
        key: RowType,
        value: RowType,
        *,
        is_windowed: bool = False,
        shared: Sequence[str] = (),
        is_grouped: bool = False,
    ) -> RecordType:
        """The record type of these columns, checked; ``shared`` are columns that key and value may both have.

        ``is_grouped`` says that the value was computed for the key, which decides what an error suggests.

        Raises:
            TopologyError: A column's name is reserved, or a key and a value column have one name.
        """
        for name in [*key.columns, *value.columns]:
            if name.startswith("_"):
                raise TopologyError(
                    f"{where}: the column {name!r} begins with an underscore, which is reserved; rename it"
                )
            if is_windowed and name in WINDOW_COLUMNS:
                raise TopologyError(f"{where}: the column name {name!r} is reserved for the window; rename it")
        for name in key.columns:
            if name in value.columns and name not in shared:
                way_out = (
                    "rename one of them"
                    if not is_grouped
                    else (
                        f'give the key another name, for example group_by({name}_key=col("{name}")), or rename or '
                        "drop the value's column"
                    )
                )
                raise TopologyError(f"{where}: {name!r} is both a key column and a value column; {way_out}")
        return RecordType(key=key, value=value, is_windowed=is_windowed)


def places_of(*nodes: Node) -> list[Place | None]:
    """For errors: the present call of the program, and the calls that made ``nodes``."""
    present = Place.of_call()
    made = (
        node.parent if isinstance(node, RepartitionNode) and node.place == present else node  # made for this call
        for node in nodes
    )
    return [present, *(node.place for node in made)]


@dataclass(frozen=True)
class Materialized(StoreOptions):
    """A store's name and options, or what opens the store of your own that keeps its rows; may stand where the name
    does.

    With ``logging=False`` the store has no changelog: if its rows on disk are lost, they are computed again from its
    topic, or, with ``on_loss="empty"``, it begins empty. With ``in_memory=True`` its rows are in memory instead of on
    disk, and are lost when the machine restarts.

    Examples:
        >>> class Rows(KeyValueBytesStore):
        ...     def __init__(self, folder):
        ...         self.rows = {}
        ...     def get(self, key):
        ...         return self.rows.get(key)
        ...     def put(self, key, value):
        ...         self.rows[key] = value
        >>> builder = StreamsBuilder()
        >>> clicks = builder.stream("clicks", key=String("user"), value=String("page"))
        >>> clicks.group_by_key().count(Materialized("clicks_of", Rows)).to_delta("users")
        >>> driver = TopologyTestDriver(Application("example", builder))
        >>> driver.create_input_topic("clicks").pipe_key_value_list([("ann", "/docs"), ("ann", "/")])
        >>> driver.get_key_value_store("clicks_of").get("ann")
        2
    """

    name: str
    supplier: Supplier | None = None
    """Given a folder of the store's own; called once for each task in each process that opens it. None: Weir keeps the
    rows."""

    def __post_init__(self) -> None:
        check_name("store", self.name)
        super().__post_init__()
        if self.supplier is not None and not self.logging:
            raise TopologyError(
                f"the store of your own behind {self.name!r} gets committed rows that it lacks from its changelog; "
                "leave logging=False out, or let Weir keep the rows"
            )
        if self.supplier is not None and self.in_memory:
            raise TopologyError(
                f"a store of your own keeps the rows of {self.name!r}, wherever it likes; leave in_memory=True out, or "
                "let Weir keep the rows"
            )
        if self.supplier is not None and not callable(self.supplier):
            raise TopologyError(
                f"Materialized({self.name!r}) got {self.supplier!r}; pass a class or function that opens a store in a "
                "folder"
            )


def check_store(store: Any) -> str:
    """The name of a store; raises ``TopologyError`` as ``check_name`` does."""
    return store.name if isinstance(store, Materialized) else check_name("store", store)


def store_options(what: str, store: Any) -> StoreOptions:
    """The name and options of state that Weir itself keeps; raises ``TopologyError`` as ``check_name`` does, and if it
    is to be in a store of the program's own."""
    if not isinstance(store, Materialized):
        return StoreOptions(name=check_name("store", store))
    if store.supplier is not None:
        raise TopologyError(f"{what}, those of {store.name!r}, cannot be in a store of your own; leave it out")
    return store


def check_name(what: str, name: Any) -> str:
    """A store's or table's name; raises ``TopologyError`` when it is missing or cannot name a folder."""
    if isinstance(name, Materialized):
        raise TopologyError(
            f"Weir itself keeps the {what} {name.name!r}; pass only its name, since Materialized is for the stores of "
            "aggregations, tables, batches, suppressions and joins"
        )
    if name is not None and not isinstance(name, str):
        raise TopologyError(f"the {what} name is {name!r}; pass text")
    if not name:
        raise TopologyError(
            f"the {what} has no name; pass one, because unnamed state and outputs would not survive a change of the "
            "code"
        )
    if not _NAME.fullmatch(name):
        raise TopologyError(
            f"the {what} name {name!r} is invalid; use letters, digits, dots, dashes and underscores, and begin with "
            "a letter or digit"
        )
    return name


def held_value(parent: Node, value: pl.Schema) -> pl.Schema:
    """The value columns of a buffer that holds rows of ``parent``: with their headers, if they have any."""
    return pl.Schema({**value, HELD_HEADERS: HEADERS_TYPE}) if parent.has_headers else value


def store_spec(
    where: str,
    store: str | Materialized,
    record: RecordType,
    value: pl.Schema,
    *,
    kind: StoreKind = StoreKind.KEY_VALUE,
) -> StoreSpec:
    """The store of ``where``; raises ``TopologyError`` for a key that cannot be ordered."""
    for column, dtype in record.key_columns.items():
        if dtype.is_nested():
            raise TopologyError(
                f"{where} keeps state by {column!r}, which is a {'struct' if dtype == pl.Struct else 'list'}; choose "
                f"a key of single values{_INSIDE.format(column) if dtype == pl.Struct else ''}"
            )
    if not isinstance(store, Materialized):
        return StoreSpec(name=check_store(store), key=record.key_columns, value=value, kind=kind)
    return store.applied(
        StoreSpec(name=store.name, key=record.key_columns, value=value, kind=kind, supplier=store.supplier)
    )


def user_function(call: Callable[..., Any], node: str, *arguments: str) -> UserFunction:
    """``call`` for ``node``; raises ``TopologyError`` when its signature, if it has one, does not fit
    ``arguments``."""
    if not callable(call):
        raise TopologyError(f"{node} got {call!r}; pass a polars expression or a function")
    function = UserFunction(call, node)
    if (taken := parameters_of(call)) is not None:
        try:
            taken.bind(*arguments)
        except TypeError:
            names = inspect.Signature([each.replace(annotation=each.empty) for each in taken.parameters.values()])
            raise TopologyError(
                f"{node}: function {function.name} takes {names}, but is called with ({', '.join(arguments)}); give "
                "it these parameters"
            ) from None
    return function


def takes_arguments(call: Any, count: int) -> bool:
    """Whether a function is known to have ``count`` parameters."""
    taken = parameters_of(call)
    return taken is not None and len(taken.parameters) == count


def parameters_of(call: Callable[..., Any]) -> inspect.Signature | None:
    """What a function takes; None where it cannot be known, as for some functions written in C."""
    try:
        return inspect.signature(call, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def return_annotation(function: UserFunction, example: str) -> Any:
    """What a function says it returns; if it does not say, raises ``TopologyError`` with ``example`` as the way out."""
    for call in _annotated(function.call):
        try:
            hints = typing.get_type_hints(call)
        except (TypeError, NameError) as error:
            hints = getattr(call, "__annotations__", {})
            if isinstance(hints.get("return"), str):
                raise TopologyError(
                    f"{function.node}: the annotations of {function.name} cannot be read: {error}; use "
                    "types that are defined at module level"
                ) from None
        if "return" in hints:
            return hints["return"]
    raise TopologyError(
        f"{function.node}: function {function.name} has no return annotation, but state and tables need types; "
        f"write def f(...) -> {example}, or use expressions"
    )


def _annotated(call: Any) -> Iterator[Any]:
    """What may have the annotations of ``call``: itself, what a ``partial`` calls, or the ``__call__`` of an object."""
    yield call
    if isinstance(call, functools.partial):
        yield from _annotated(call.func)
    elif not isinstance(call, type):
        yield type(call).__call__


def returned_type(function: UserFunction, scalar_name: str) -> RowType:
    """The row type of a function's return annotation; raises ``TopologyError`` when it has none."""
    return row_type_of(return_annotation(function, "YourDataclass"), scalar_name)


def named_expressions(
    where: str, record: RecordType, positional: Sequence[Any], named: Mapping[str, Any]
) -> tuple[dict[str, pl.Expr], RowType]:
    """Columns from ``"name"``, ``name="column"`` and ``name=expression``, with their types over ``record``."""
    schema = record.columns
    expressions: dict[str, pl.Expr] = {}
    for item in positional:
        expression = pl.col(item) if isinstance(item, str) else item
        if not isinstance(expression, pl.Expr):
            raise TopologyError(f"{where} got {item!r}; pass column names, expressions, or a single function")
        expressions[expression.meta.output_name()] = expression
    for name, item in named.items():
        expressions[name] = pl.col(item) if isinstance(item, str) else item
        if not isinstance(expressions[name], pl.Expr):
            raise TopologyError(f"{where}: {name} is {item!r}; pass a column's name or an expression")
    if not expressions:
        raise TopologyError(f"{where} got no columns; name at least one")
    columns = {
        name: normal_dtype(expression_dtype(expression, schema, name), name) for name, expression in expressions.items()
    }
    declared: dict[str, Any] = {}
    for name, expression in expressions.items():
        if expression.meta.is_column():
            declared |= record.declared_as({expression.meta.root_names()[0]: name})
    return expressions, RowType(pl.Schema(columns), declared=declared)


def unchanged_columns(expressions: Mapping[str, pl.Expr]) -> list[str]:
    """The columns that keep their name and are otherwise unchanged."""
    return [
        name
        for name, expression in expressions.items()
        if expression.meta.is_column() and expression.meta.root_names() == [name]
    ]
