"""Decoders of classes are made when their module is imported.

msgspec 0.22 tells other threads of a class before it knows all of its fields: where two threads come to a class first,
one of them may end the process. A driver died so at its start, when it read several tables' logs at once.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("state", "pipelines", "infra", "orchestration")
BUILT_IN = {"list", "dict", "Any", "str", "kind"}
"""And ``kind``, which is a dictionary in all calls of ``load_task_row``."""


def names_of_types(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each class that is decoded without a decoder of its own."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "decode":
            for keyword in node.keywords:
                if keyword.arg == "type":
                    names = {each.id for each in ast.walk(keyword.value) if isinstance(each, ast.Name)}
                    yield from ((node.lineno, name) for name in names - BUILT_IN)


def test_one_that_is_not_is_found():
    assert list(names_of_types("msgspec.json.decode(text, type=list[Commit])")) == [(1, "Commit")]
    assert list(names_of_types("msgspec.msgpack.decode(data, type=list[list[Any]])")) == []


def test_no_class_is_decoded_for_the_first_time_by_a_thread():
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for line, name in names_of_types(path.read_text())
    ]
    assert found == []
