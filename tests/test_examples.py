"""The examples in docstrings give what they show, and every public method has one.

An example finds all of ``weir`` and ``weir.testing``, ``dataclass``, ``datetime``, ``timedelta``, ``UTC``, ``col``,
``pl``, ``re`` and ``Path`` without importing them, and the rest is written out: a ``StreamsBuilder``, an
``Application``, a ``TopologyTestDriver``. Runs of spaces count as one, and ``...`` in what it shows stands for any
text. Examples run in a folder where ``weir run shop:app`` has left ``.weir``; ``shop`` is ``tests/pipelines/shop.py``.
"""

from __future__ import annotations

import doctest
import inspect
import pydoc
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars import col

import weir
import weir.testing
from tests.pipelines import shop

NAMES = dict(dataclass=dataclass, datetime=datetime, timedelta=timedelta, UTC=UTC, col=col, pl=pl, re=re, Path=Path)
PUBLIC = {name: getattr(module, name) for module in (weir, weir.testing) for name in module.__all__}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NEED_EXAMPLES = ("weir.pipelines.dsl.", "weir.pipelines.testing.", "weir.pipelines.state_reader")


def definitions() -> Iterator[tuple[str, Any]]:
    """The public functions and classes, and the classes' public methods and properties, each under its name.

    What a class inherits from a private base counts once, under the first class that has it.
    """
    seen = set()
    for name, item in PUBLIC.items():
        yield name, item
        for owner in item.__mro__ if inspect.isclass(item) else ():
            for attribute, member in vars(owner).items() if owner.__module__.startswith("weir") else ():
                function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
                if inspect.isfunction(function) and not attribute.startswith("_") and function not in seen:
                    seen.add(function)
                    yield f"{name}.{attribute}", function


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    return [
        test
        for name, item in definitions()
        for test in finder.find(item, name, module=False, globs={**NAMES, **PUBLIC})
        if test.examples
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    shop.run(folder / ".weir")
    return folder


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_gives_what_it_shows(example, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setitem(sys.modules, "shop", shop)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert not result.failed, "".join(said)


def test_every_public_method_has_an_example():
    parse = doctest.DocTestParser().get_examples
    missing = [
        name
        for name, item in definitions()
        if "." in name and item.__module__.startswith(NEED_EXAMPLES) and not parse(item.__doc__ or "")
    ]
    assert missing == []


def test_the_methods_that_need_examples_are_found():
    found = {name for name, item in definitions() if item.__module__.startswith(NEED_EXAMPLES)}
    assert {"KStream.join", "KGroupedStream.count", "Suppressed.until_window_closes"} <= found
    assert {"TopologyTestDriver.counts", "TestInputTopic.pipe_input", "StateReader.get"} <= found


@pytest.mark.parametrize("name", PUBLIC)
def test_help_shows_it(name):
    assert name in pydoc.render_doc(PUBLIC[name], renderer=pydoc.plaintext)
