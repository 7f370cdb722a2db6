"""The examples in docstrings give what they show, and no method of the public surface is without one.

An example finds all of ``weir`` and ``weir.testing``, ``dataclass``, ``datetime``, ``timedelta``, ``UTC``, ``col`` and
``pl`` without importing them, and the rest is written out: a ``StreamsBuilder``, an ``Application``, a
``TopologyTestDriver``. Runs of spaces count as one, and ``...`` in what it shows stands for any text.
"""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from polars import col

import weir
import weir.testing

NAMES = dict(dataclass=dataclass, datetime=datetime, timedelta=timedelta, UTC=UTC, col=col, pl=pl)
PUBLIC = {name: getattr(module, name) for module in (weir, weir.testing) for name in module.__all__}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NEED_EXAMPLES = ("weir.pipelines.dsl.", "weir.pipelines.testing.", "weir.pipelines.state_reader")
STILL_MISSING = {
    "BranchedKStream",
    "BufferConfig",
    "CogroupedKStream",
    "EagerBufferConfig",
    "EmitStrategy",
    "GlobalKTable",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "StateReader",
    "StreamsBuilder",
    "StrictBufferConfig",
    "Suppressed",
    "TestInputTopic",
    "TestOutputTable",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TopologyTestDriver",
}
"""Classes whose examples are being written."""


def documented() -> dict[str, Any]:
    """The public functions and classes, and what the classes inherit from within Weir."""
    found = {}
    for name, item in PUBLIC.items():
        for owner in item.__mro__ if inspect.isclass(item) else [item]:
            if owner.__module__.partition(".")[0] == "weir" and owner not in found.values():
                found[name if owner is item else f"{name}: {owner.__name__}"] = owner
    return found


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder()
    return [
        test
        for name, item in documented().items()
        for test in finder.find(item, name, module=False, globs={**NAMES, **PUBLIC})
        if test.examples
    ]


def public_methods() -> Iterator[tuple[str, str, Any]]:
    """Class, name and definition of each public method that needs an example."""
    for name, owner in documented().items():
        for attribute, member in vars(owner).items() if inspect.isclass(owner) else ():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if (
                inspect.isfunction(function)
                and not attribute.startswith("_")
                and function.__module__.startswith(NEED_EXAMPLES)
            ):
                yield name, attribute, function


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_gives_what_it_shows(example):
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert not result.failed, "".join(said)


def test_every_public_method_has_an_example():
    parse = doctest.DocTestParser().get_examples
    missing = [
        f"{name}.{attribute}"
        for name, attribute, function in public_methods()
        if name.partition(":")[0] not in STILL_MISSING and not parse(function.__doc__ or "")
    ]
    assert missing == []


def test_the_methods_that_need_examples_are_found():
    found = {f"{name}.{attribute}" for name, attribute, _ in public_methods()}
    assert {"KStream.join", "KGroupedStream: _Grouped.count", "Suppressed.until_window_closes"} <= found
    assert {"TopologyTestDriver.counts", "TestInputTopic.pipe_input", "StateReader.get"} <= found
