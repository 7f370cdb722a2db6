"""Random programs whose steps fail on some numbers, beside a plain model of them.

The model runs the steps on one record after another. A record on which a step raises is put aside, and what the steps
before it have kept for it is undone. Repartitions divide the steps into lists, one after another.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import polars as pl
from polars import col

from weir import Application, Json, KeyValueStore, Processor, Record, StreamsBuilder, String, Sum


@dataclass(frozen=True)
class Number:
    n: int


Rows = list[tuple[str, int]]
Failing = tuple[int, int]
"""Modulus and remainder of the numbers on which a step fails."""


class PoisonError(Exception):
    pass


def check(n: int, failing: Failing) -> int:
    if n % failing[0] == failing[1]:
        raise PoisonError(n)
    return n


def expression(failing: Failing, column: str = "n") -> pl.Expr:
    """``check`` for a column, by a cast that fails."""
    is_poison = col(column) % failing[0] == failing[1]
    return pl.when(is_poison).then(pl.lit("poison")).otherwise(col(column).cast(pl.String)).cast(pl.Int64)


def plain(value) -> Number:
    return Number(getattr(value, "n", value))


@dataclass
class Step:
    failing: Failing
    kept: dict[str, int] = field(default_factory=dict)
    name: str = ""

    def add(self, stream):
        raise NotImplementedError

    def take(self, key: str, n: int) -> Rows:
        raise NotImplementedError


class MapWithFunction(Step):
    def add(self, stream):
        def mapped(value: Number) -> Number:
            return Number(check(value.n, self.failing) + 1)

        return stream.map_values(mapped)

    def take(self, key, n):
        return [(key, check(n, self.failing) + 1)]


class MapWithExpression(Step):
    def add(self, stream):
        return stream.map_values(n=expression(self.failing) + 3)

    def take(self, key, n):
        return [(key, check(n, self.failing) + 3)]


class FilterWithFunction(Step):
    def add(self, stream):
        def is_kept(key: str, value: Number) -> bool:
            return check(value.n, self.failing) % 5 != 0

        return stream.filter(is_kept)

    def take(self, key, n):
        return [(key, n)] if check(n, self.failing) % 5 else []


class FlatMap(Step):
    """Fails on the second of two rows."""

    def add(self, stream):
        def mapped(key: str, value: Number) -> Iterable[tuple[str, Number]]:
            return [(key, Number(value.n * 2)), (key, Number(check(value.n, self.failing) + 7))]

        return stream.flat_map(mapped)

    def take(self, key, n):
        return [(key, n * 2), (key, check(n, self.failing) + 7)]


class RunningSum(Step):
    """Never fails itself; what it keeps decides whether later steps do."""

    def add(self, stream):
        return stream.group_by_key().agg(self.name, n=Sum("n")).to_stream()

    def take(self, key, n):
        self.kept[key] = self.kept.get(key, 0) + n
        return [(key, self.kept[key])]


class Fold(Step):
    def add(self, stream):
        def fold(key: str, value: Number, total: int) -> int:
            return check(total + value.n, self.failing)

        return stream.group_by_key().aggregate(self.name, int, fold).to_stream().map_values(plain)

    def take(self, key, n):
        self.kept[key] = check(self.kept.get(key, 0) + n, self.failing)
        return [(key, self.kept[key])]


class InProcessor(Step):
    """Keeps a number and forwards before it fails."""

    def add(self, stream):
        failing, name = self.failing, self.name

        class Remembers(Processor[str, Number, str, Number]):
            stores = (KeyValueStore(name, key=str, value=int),)

            def init(self, context):
                self.context, self.newest = context, context.state_store(name)

            def process(self, record: Record[str, Number]) -> None:
                before = self.newest.get(record.key) or 0
                self.newest.put(record.key, record.value.n)
                self.context.forward(record.with_value(Number(record.value.n + before)))
                check(record.value.n, failing)

        return stream.process(Remembers)

    def take(self, key, n):
        before, self.kept[key] = self.kept.get(key, 0), n
        return [(key, check(n, self.failing) + before)]


STEPS: list[Callable[[Failing], Step]] = [
    MapWithFunction,
    MapWithExpression,
    FilterWithFunction,
    FlatMap,
    RunningSum,
    Fold,
    InProcessor,
]


@dataclass
class Program:
    parts: list[list[Step]]
    """One list of steps before each repartition, and one after the last."""

    @classmethod
    def random(cls, chance: random.Random) -> Program:
        def step() -> Step:
            modulus = chance.choice([5, 11, 50])
            return chance.choice(STEPS)((modulus, chance.randrange(modulus)))

        parts = [[step() for _ in range(chance.choice([1, 2, 3, 4]))] for _ in range(chance.choice([1, 1, 2]))]
        for number, each in enumerate([each for part in parts for each in part]):
            each.name = f"s{number}"
        return cls(parts)

    def application(self, **settings) -> Application:
        builder = StreamsBuilder()
        stream = builder.stream("numbers", key=String("key"), value=Json(Number))
        for number, part in enumerate(self.parts):
            if number:
                stream = stream.repartition(f"moved{number}").map_values(plain)
            for step in part:
                stream = step.add(stream).map_values(plain)
        stream.to_delta("out")
        return Application("numbers", builder, **settings)

    def tasks(self) -> list[list[Step]]:
        """The steps of each sub-topology: a step that groups by a key that may have changed has a repartition too."""
        tasks: list[list[Step]] = []
        for part in self.parts:
            tasks.append([])
            may_have_changed = False
            for step in part:
                if may_have_changed and isinstance(step, RunningSum | Fold):
                    tasks.append([])
                    may_have_changed = False
                tasks[-1].append(step)
                may_have_changed |= isinstance(step, FlatMap | InProcessor)
        return tasks

    def model(self, rows: Rows) -> tuple[Rows, list[list[tuple[int, str, int]]]]:
        """What reaches the output; and of each part, the place, key and number of the rows on which it fails."""
        failed = []
        for part in self.tasks():
            given, rows = rows, []
            failed.append([])
            for place, (key, n) in enumerate(given):
                before = [copy.copy(step.kept) for step in part]
                through = [(key, n)]
                try:
                    for step in part:
                        through = [row for each in through for row in step.take(*each)]
                except PoisonError:
                    failed[-1].append((place, key, n))
                    for step, kept in zip(part, before, strict=True):
                        step.kept = kept
                else:
                    rows += through
        return rows, failed


def numbers(chance: random.Random, count: int) -> Rows:
    return [(f"user-{chance.randrange(5)}", chance.randrange(1000)) for _ in range(count)]


def raw(rows: Rows) -> list[tuple[bytes, bytes, int]]:
    return [(key.encode(), json.dumps({"n": n}).encode(), 1_000 + place) for place, (key, n) in enumerate(rows)]
