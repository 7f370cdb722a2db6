"""What docs/migration.md promises of state under programs that change: dictionaries by store, one record at a time.

Written apart from the engine. The model takes all records of a run in the order of their merge times, which the
generator of records makes unambiguous.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.pipelines.evolution_random.programs import APART, GAP, SIZE, Piece, Program
from tests.pipelines.order.model import partition_of

Value = dict[str, Any]
Row = tuple[tuple[str, Any], ...]
"""Columns and values, without nulls."""
BEFORE_ALL = -(1 << 62)


class Record(NamedTuple):
    topic: str
    partition: int
    key: str
    value: Value | None
    ts: int


@dataclass(frozen=True)
class Identity:
    """What makes a store the same store, and its value columns."""

    what: tuple[Any, ...]
    columns: frozenset[str]


@dataclass
class Store:
    """The rows of a store, and what each of its tasks knows of time."""

    identity: Identity
    rows: dict[Any, Value] = field(default_factory=dict)
    """By (partition, key), with (start, end) for windows."""
    clocks: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: BEFORE_ALL))
    """By partition, the greatest timestamp that reached the store."""
    closed: dict[int, int] = field(default_factory=lambda: defaultdict(lambda: BEFORE_ALL))
    """By partition, the end up to which windows are closed."""
    kept: list[tuple[int, bool, str, int, int]] = field(default_factory=list)
    """Of a join of streams: partition, side, key, time, number."""
    sides: dict[tuple[int, bool], int] = field(default_factory=lambda: defaultdict(lambda: BEFORE_ALL))


@dataclass
class Output:
    keys: tuple[Any, ...]
    columns: frozenset[str]
    way: str
    """"facts", "updates" or "upserts"."""
    facts: Counter[Any] = field(default_factory=Counter)
    standing: dict[Any, Row] = field(default_factory=dict)


def stores_of(piece: Piece, fields: tuple[str, ...]) -> dict[str, Identity]:
    """The stores of a piece that hold rows which the model follows, and one for the join's own."""
    name, values = piece.name, frozenset(fields)
    by_user = Identity(("key value", "user"), values)
    match piece.kind:
        case "aggregate":
            kind = piece.windows or "key value"
            return {name: Identity((kind, piece.by), frozenset(piece.aggregates))}
        case "chain":
            return {
                f"{name}_1": Identity(("key value", "word"), frozenset({"n"})),
                f"{name}_2": Identity(("key value", "bucket"), frozenset({"m", "total"})),
            }
        case "table":
            return {name: by_user}
        case "lookup":
            return {f"{name}_t": by_user}
        case "tables":
            return {f"{name}_l": by_user, f"{name}_r": by_user}
        case "streams":
            return {name: Identity(("join of streams",), values)}
        case "foreign":
            by_word = Identity(("key value", "word_key"), values)
            return {f"{name}_l": by_user, f"{name}_r": by_word, name: Identity(("subscriptions",), frozenset())}


def columns_out(piece: Piece, fields: tuple[str, ...]) -> frozenset[str]:
    match piece.kind:
        case "aggregate":
            return frozenset(piece.aggregates)
        case "chain":
            return frozenset({"m", "total"})
        case "table":
            return frozenset(fields)
    return frozenset({"num", "other"})


def keys_out(piece: Piece) -> tuple[Any, ...]:
    return (piece.by, bool(piece.windows)) if piece.kind == "aggregate" else ()


def way_out(piece: Piece) -> str:
    if piece.kind in ("lookup", "streams") or piece.is_final:
        return "facts"
    return "upserts" if piece.is_upsert else "updates"


TYPES = {"num": "int", "word": "str", "more": "int", "tag": "str"}
"""Of fields; aggregates are integers."""


@dataclass
class World:
    """All state of an application: that of its program, and what is kept aside."""

    partitions: int
    program: Program = field(default_factory=lambda: Program(()))
    stores: dict[str, Store] = field(default_factory=dict)
    aside: dict[str, Store] = field(default_factory=dict)
    outputs: dict[str, Output] = field(default_factory=dict)
    fates: Counter[str] = field(default_factory=Counter)

    # A program in place of another

    def refusal(self, program: Program, *, accepts_loss: bool = False) -> str:
        """Why a start of ``program`` is refused: "rebuilt", "renamed", "column renamed", "output"; "" if it is not."""
        return (not accepts_loss and self._loss(program)) or self._output_refusal(program)

    def _loss(self, program: Program) -> str:
        wanted = {name: found for piece in program.pieces for name, found in stores_of(piece, program.fields).items()}
        known = {**self.aside, **self.stores}
        if any(name in known and known[name].identity.what != wanted[name].what for name in wanted):
            return "rebuilt"
        gone = [store.identity for name, store in self.stores.items() if name not in wanted]
        if any(name not in known and wanted[name] in gone for name in wanted):
            return "renamed"
        for name in wanted:
            if name in known:
                before, now = known[name].identity.columns, wanted[name].columns
                types = {TYPES.get(column, "int") for column in before - now}
                if types & {TYPES.get(column, "int") for column in now - before}:
                    return "column renamed"
        return ""

    def has_other_keys(self, program: Program) -> bool:
        """Whether a store has another key, which its changelog cannot take even if the rows are given up."""
        known = {**self.aside, **self.stores}
        wanted = {name: found for piece in program.pieces for name, found in stores_of(piece, program.fields).items()}
        return any(name in known and known[name].identity.what[1:] != found.what[1:] for name, found in wanted.items())

    def _output_refusal(self, program: Program) -> str:
        for piece in program.pieces:
            output = self.outputs.get(piece.output)
            if output is None:
                continue
            if output.way != way_out(piece) and "upserts" in (output.way, way_out(piece)):
                return "output"
            if output.keys != keys_out(piece) or not output.columns <= columns_out(piece, program.fields):
                return "output"
        return ""

    def start(self, program: Program) -> None:
        """Go on with ``program``. What it would be refused for, other than an output, was accepted: a store that means
        something else now begins empty."""
        self.program = program
        known = {**self.aside, **self.stores}
        stores: dict[str, Store] = {}
        for piece in program.pieces:
            for name, identity in stores_of(piece, program.fields).items():
                fate = "begins empty" if name not in known else "comes back" if name in self.aside else "goes on"
                if name in known and known[name].identity.what != identity.what:
                    fate = "is rebuilt"
                    del known[name]
                store = stores[name] = known.get(name) or Store(identity)
                if store.identity != identity:
                    fate = "evolves" if fate == "goes on" else "comes back and evolves"
                    for row in store.rows.values():
                        for column in identity.columns - store.identity.columns:
                            row[column] = None
                        for column in store.identity.columns - identity.columns:
                            del row[column]
                    store.identity = identity
                self.fates[fate] += 1
            columns, way = columns_out(piece, program.fields), way_out(piece)
            output = self.outputs.setdefault(piece.output, Output(keys_out(piece), columns, way))
            output.columns, output.way = columns, way
        self.aside = {name: store for name, store in known.items() if name not in stores}
        self.fates["kept aside"] += sum(name in self.stores for name in self.aside)
        self.stores = stores

    # Records

    def take(self, record: Record) -> None:
        for piece in self.program.pieces:
            self._take(piece, record)

    def _take(self, piece: Piece, record: Record) -> None:
        out, name = self.outputs[piece.output], piece.name
        first = "users" if piece.kind in ("table", "tables", "foreign") else "clicks"
        if record.topic == first and not _passes(piece, record.value):
            return
        match piece.kind:
            case "aggregate" if record.topic == "clicks":
                self._aggregate(piece, record, out)
            case "chain" if record.topic == "clicks":
                count = _fold(self.stores[f"{name}_1"], self._place(record.value["word"]), {"n": None}, ("n",))
                bucket = str(count["n"] % 3)
                row = _fold(self.stores[f"{name}_2"], self._place(bucket), {"num": count["n"]}, ("m", "total"))
                out.standing[bucket,] = named(row)
            case "table" if record.topic == "users":
                row = self._put(name, record)
                _stand(out, (record.key,), row and named(row))
            case "lookup" if record.topic == "users":
                self._put(f"{name}_t", record)
            case "lookup" if record.topic == "clicks":
                other = self.stores[f"{name}_t"].rows.get((record.partition, record.key))
                if other or piece.is_left:
                    out.facts[record.key, _joined(record.value, other, is_left_join=True)] += 1
            case "tables" if record.topic in ("users", "views"):
                is_left = record.topic == "users"
                mine = self._put(f"{name}_l" if is_left else f"{name}_r", record)
                at = record.partition, record.key
                other = self.stores[f"{name}_r" if is_left else f"{name}_l"].rows.get(at)
                if other is not None or (piece.is_left and is_left):
                    left, right = (mine, other) if is_left else (other, mine)
                    _stand(out, (record.key,), _joined(left, right, is_left_join=piece.is_left))
            case "streams" if record.topic in ("clicks", "views"):
                self._join_streams(piece, record, out)
            case "foreign" if record.topic == "users":
                row = self._put(f"{name}_l", record)
                self._stand_foreign(piece, record.key, row, out)
            case "foreign" if record.topic == "words":
                self._put(f"{name}_r", record)
                for (_, key), row in self.stores[f"{name}_l"].rows.items():
                    if row["word"] == record.key:
                        self._stand_foreign(piece, key, row, out)

    def _place(self, key: str) -> tuple[int, str]:
        return partition_of(key, self.partitions), key

    def _put(self, store: str, record: Record) -> Value | None:
        found = self.stores[store]
        at = record.partition, record.key
        if record.value is None:
            found.rows.pop(at, None)
            return None
        found.rows[at] = {column: record.value[column] for column in found.identity.columns}
        return found.rows[at]

    def _stand_foreign(self, piece: Piece, key: str, left: Value | None, out: Output) -> None:
        right = left and self.stores[f"{piece.name}_r"].rows.get(self._place(left["word"]))
        _stand(out, (key,), _joined(left, right, is_left_join=piece.is_left))

    def _aggregate(self, piece: Piece, record: Record, out: Output) -> None:
        store = self.stores[piece.name]
        key = record.key if piece.by == "user" else record.value["word"]
        partition = record.partition if piece.by == "user" else self._place(key)[0]
        if not piece.windows:
            row = _fold(store, (partition, key), record.value, piece.aggregates)
            out.standing[key,] = named(row)
            return
        size = {"tumbling": SIZE, "wide": 2 * SIZE}.get(piece.windows, 0)
        delay = piece.grace if size else piece.grace + GAP + 1
        store.clocks[partition] = max(store.clocks[partition], record.ts)
        store.closed[partition] = max(store.closed[partition], store.clocks[partition] - delay)
        start = end = record.ts
        met: list[Any] = []
        if size:
            start = record.ts - record.ts % size
            end = start + size
        else:
            met = sorted(
                (
                    at
                    for at in store.rows
                    if at[:2] == (partition, key)
                    and at[3] > store.closed[partition]
                    and record.ts - GAP <= at[3]
                    and at[2] <= record.ts + GAP
                ),
                key=lambda at: at[3],
            )
            start, end = min([start, *(at[2] for at in met)]), max([end, *(at[3] for at in met)])
        if end > store.closed[partition]:
            merged: Value = {}
            for at in met:
                merged = _merged(merged, store.rows.pop(at), piece.aggregates)
                out.standing.pop((key, *at[2:]), None)
            at = partition, key, start, end
            if merged:
                store.rows[at] = merged
            row = _fold(store, at, record.value, piece.aggregates)
            if not piece.is_final:
                out.standing[key, start, end] = named(row)
        for at in [at for at in store.rows if at[0] == partition and at[3] <= store.closed[partition]]:
            row = store.rows.pop(at)
            if piece.is_final:
                out.facts[(*at[1:], named(row))] += 1

    def _join_streams(self, piece: Piece, record: Record, out: Output) -> None:
        store, is_left = self.stores[piece.name], record.topic == "clicks"
        retention = 2 * APART + piece.grace
        partition = record.partition
        times = store.sides
        times[partition, is_left] = max(times[partition, is_left], record.ts)
        oldest = times[partition, not is_left] - retention
        for place, side, key, ts, num in store.kept:
            if (
                (place, side, key) == (partition, not is_left, record.key)
                and abs(ts - record.ts) <= APART
                and ts > oldest
            ):
                left, right = (record.value, {"num": num}) if is_left else ({"num": num}, record.value)
                out.facts[record.key, _joined(left, right, is_left_join=False)] += 1
        store.kept.append((partition, is_left, record.key, record.ts, record.value["num"]))

    def end(self) -> None:
        """The run has ended: what a join of streams no longer needs under this program is gone."""
        for piece in self.program.pieces:
            if piece.kind == "streams":
                store = self.stores[piece.name]
                retention = 2 * APART + piece.grace
                store.kept = [each for each in store.kept if each[3] > store.sides[each[0], each[1]] - retention]


def _passes(piece: Piece, value: Value | None) -> bool:
    return value is None or piece.front != "some" or value["num"] % 3 != 0


def _fold(store: Store, at: Any, value: Value, aggregates: tuple[str, ...]) -> Value:
    row = store.rows.setdefault(at, dict.fromkeys(aggregates))
    num = value.get("num")
    for name in aggregates:
        before = row[name]
        match name:
            case "n" | "m":
                row[name] = (before or 0) + 1
            case "total":
                row[name] = (before or 0) + num
            case "least":
                row[name] = num if before is None else min(before, num)
            case "most":
                row[name] = num if before is None else max(before, num)
    return row


def _merged(one: Value, other: Value, aggregates: tuple[str, ...]) -> Value:
    if not one:
        return dict(other)
    merged = {}
    for name in aggregates:
        found = [row[name] for row in (one, other) if row[name] is not None]
        merged[name] = {"least": min, "most": max}.get(name, sum)(found) if found else None
    return merged


def _joined(left: Value | None, right: Value | None, *, is_left_join: bool) -> Row | None:
    if left is None or (right is None and not is_left_join):
        return None
    return named({"num": left["num"], "other": -1 if right is None else right["num"]})


def _stand(out: Output, key: Any, row: Row | None) -> None:
    out.standing.pop(key, None)
    if row is not None:
        out.standing[key] = row


def named(row: Value) -> Row:
    """A row without its nulls, in a form that can be compared."""
    return tuple(sorted((name, value) for name, value in row.items() if value is not None))
