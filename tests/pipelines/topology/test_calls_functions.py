"""Which sub-topologies call functions of the program, so that their part of an epoch has a budget of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest
from polars import col

from weir import (
    Application,
    BatchProcessor,
    Count,
    FixedKeyProcessor,
    Json,
    StreamsBuilder,
    String,
    Sum,
    TimeWindows,
)


@dataclass(frozen=True)
class Click:
    page: str
    ms: int


class Passes(FixedKeyProcessor[str, Click, Click]):
    def process(self, record):
        pass


class PassesBatches(BatchProcessor[str, Click, str, Click]):
    def process_batch(self, rows):
        return rows


def changed(click: Click) -> Click:
    return click


def add(user: str, click: Click, total: int) -> int:
    return total + click.ms


def seen(user: str, click: Click) -> None:
    pass


def chosen(user: str, click: Click) -> bool:
    return True


def page_of(user: str, click: Click) -> str:
    return click.page


MINUTES = TimeWindows.of_size_with_no_grace(timedelta(minutes=1))
BY_EXPRESSIONS = {
    "nothing": lambda clicks: clicks,
    "filter": lambda clicks: clicks.filter(col("ms") > 3),
    "values": lambda clicks: clicks.map_values(ms=col("ms") + 1),
    "sum": lambda clicks: clicks.group_by_key().agg("sums", total=Sum("ms"), clicks=Count()),
    "windows": lambda clicks: clicks.group_by_key().windowed_by(MINUTES).count("minutes"),
}
BY_FUNCTIONS = {
    "filter": lambda clicks: clicks.filter(chosen),
    "values": lambda clicks: clicks.map_values(changed),
    "key": lambda clicks: clicks.select_key(page_of),
    "peek": lambda clicks: clicks.peek(seen),
    "aggregate": lambda clicks: clicks.group_by_key().aggregate("sums", lambda: 0, add),
    "windows": lambda clicks: clicks.group_by_key().windowed_by(MINUTES).aggregate("minutes", lambda: 0, add),
    "processor": lambda clicks: clicks.process_values(Passes, name="passes"),
    "batches": lambda clicks: clicks.process(PassesBatches, name="passes"),
}


def first_calls_functions(program) -> bool:
    builder = StreamsBuilder()
    program(builder.stream("clicks", key=String("user"), value=Json(Click))).to_delta("out")
    return Application("shop", builder).topology.sub_topologies[0].calls_functions


@pytest.mark.parametrize("name", BY_EXPRESSIONS)
def test_expressions_are_no_functions(name):
    assert not first_calls_functions(BY_EXPRESSIONS[name])


@pytest.mark.parametrize("name", BY_FUNCTIONS)
def test_functions_and_processors_are_found_in_every_operator(name):
    assert first_calls_functions(BY_FUNCTIONS[name])
